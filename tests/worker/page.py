"""The commands of the worker's pages, taken from them: every one has a test that runs it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "workers", "sqs", "own-loop", "celery", "service", "load-balancers", "alone", "networks",
    "redis", "rabbitmq", "languages",
)  # fmt: skip
DOC = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in PAGES)
HERE = "tests/worker/test_docs.py"
LAB = "tests/endpoint/test_workers_page.py"
DOCKER = "tests/endpoint/test_workers_image.py"
PROGRAMS = "tests/endpoint/test_workers_programs.py"
OVERRIDES = "tests/operator/test_looking.py"
MISTAKES = "tests/worker/test_mistakes.py"
RABBITMQ = "tests/worker/test_rabbitmq.py"
RUN_BY = {
    "aws cloudformation deploy": LAB,
    "aws cloudformation describe-stacks": LAB,
    "aws s3 cp": LAB,
    "aws ssm put-parameter": OVERRIDES,
    "docker build": DOCKER,
    "docker run": DOCKER,
    "docker stop": DOCKER,
    "make release": LAB,
    "make sam-build": PROGRAMS,
    "pip install": PROGRAMS,
    "pip wheel": DOCKER,
    "python -m bench worker": PROGRAMS,
    "python -m spotkeeper_worker.example": PROGRAMS,
    "sam deploy": LAB,
    "spotkeeper-agent --version": MISTAKES,
    "spotkeeper-agent check": MISTAKES,
    "spotkeeper-agent forward": RABBITMQ,
    "spotkeeper-agent notice": HERE,
    "spotkeeper-agent run": HERE,
}
"""What a command begins with, after its settings, and the test that runs all that begin so."""
_PROSE = re.sub(r"```.*?```", "", DOC, flags=re.DOTALL)
_PROGRAMS = sorted({begins.split()[0] for begins in RUN_BY})
_SETTINGS = re.compile(r"(?:[A-Z][A-Z_]*=\S+ )*")


def _found() -> list[str]:
    """Every indented line, and what reads as a command in the midst of a sentence."""
    lines = re.findall(r"^ {4,}(\S.*)$", _PROSE, re.MULTILINE)
    spans = re.findall(rf"`((?:{'|'.join(_PROGRAMS)}) [^`]+)`", _PROSE)
    # A command in a sentence may be wrapped: it reads as one line.
    return list(dict.fromkeys([*lines, *(" ".join(span.split()) for span in spans)]))


COMMANDS = _found()


def plain(command: str) -> str:
    """A command without the settings before it."""
    return _SETTINGS.sub("", command, count=1)


def of(begins: str) -> list[str]:
    """The page's commands that begin so."""
    return [each for each in COMMANDS if plain(each).startswith(begins)]
