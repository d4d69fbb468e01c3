"""docs/workers.md: its commands run, and its tables are the code's."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from cfnlint.decode import decode

from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.states import TARGETS, Hook, State
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "workers.md").read_text()
TITLES = re.findall(r"^## (.+)$", DOC, re.MULTILINE)
TEXTS = re.split(r"^## .+$", DOC, flags=re.MULTILINE)[1:]
SECTIONS = dict(zip(TITLES, TEXTS, strict=True))
FIRST_WORDS = ("pip", "python", "docker", "aws", "sam", "spotkeeper-agent")
PROSE = re.sub(r"```.*?```", "", DOC, flags=re.DOTALL)
SET = re.compile(r"(?:SPOTKEEPER_[A-Z_]+=\S+ )+")
COMMANDS = [
    line.strip()
    for line in re.findall(r"^ {4,}(\S.*)$", PROSE, re.MULTILINE)
    if SET.sub("", line).split()[0] in FIRST_WORDS
]


def run_in_python(arguments: list[str], tmp_path: Path) -> None:
    """`python -m ...` with the interpreter of the tests; test_package has Python 3.9's."""
    ended = subprocess.run([sys.executable, *arguments], cwd=tmp_path, timeout=60, check=False)
    assert ended.returncode == 0


def build_wheel(arguments: list[str], tmp_path: Path) -> None:
    """`pip install` and `pip wheel` of ./worker: what both do first. test_package installs it."""
    asked = re.fullmatch(r"\./worker(\[(\w+)\])?", arguments[-1])
    assert asked is not None
    known = tomllib.loads((ROOT / "worker" / "pyproject.toml").read_text())["project"]
    assert asked[2] is None or asked[2] in known["optional-dependencies"]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT / "worker", check=True, capture_output=True)
    assert len(list(tmp_path.glob("spotkeeper_worker-*.whl"))) == 1


def has_context(arguments: list[str], tmp_path: Path) -> None:
    """`docker build`: there may be no Docker here; its context must be."""
    assert arguments[0] == "build"
    assert (ROOT / arguments[-1] / "Dockerfile").exists()


def deploys(arguments: list[str], tmp_path: Path) -> None:
    """`aws` and `sam`: the template must have every parameter that is given, and want no other."""
    named = [word for word in arguments if word.endswith(".yaml")][:1] or ["template.yaml"]
    template, problems = decode(str(ROOT / named[0]))
    assert template is not None, problems
    known = template["Parameters"]
    overrides = arguments[arguments.index("--parameter-overrides") + 1 :]
    given = {word.partition("=")[0] for word in overrides if re.match(r"[A-Za-z]+=", word)}
    assert given <= set(known)
    assert {name for name in known if "Default" not in known[name]} <= given


def parses(arguments: list[str], tmp_path: Path) -> None:
    """`spotkeeper-agent`: it gets as far as its settings, or its notice; others run it whole."""
    command = [sys.executable, "-m", "spotkeeper_worker", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPOTKEEPER_")}
    environment["SPOTKEEPER_RUN_DIR"] = str(tmp_path)
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "SEARCH_LOG_QUEUE_URL: is missing" in ended.stderr or "no notice in" in ended.stderr


RUN: dict[str, Callable[[list[str], Path], None]] = {
    "pip": build_wheel,
    "python": run_in_python,
    "docker": has_context,
    "aws": deploys,
    "sam": deploys,
    "spotkeeper-agent": parses,
}


@pytest.mark.parametrize("command", [each for each in COMMANDS if not SET.match(each)])
def test_a_command_runs(command: str, tmp_path: Path) -> None:
    first, *arguments = shlex.split(command)
    RUN[first](arguments, tmp_path)


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize("command", [each for each in COMMANDS if SET.match(each)])
def test_an_agent_with_these_settings_runs(command: str, tmp_path: Path) -> None:
    """Against a pretended AWS; what it would look at need not be there."""
    *given, program, _ = shlex.split(command)
    assert program == "spotkeeper-agent"
    settings = dict(each.removeprefix("SPOTKEEPER_").lower().split("=", 1) for each in given)
    stack = settings.pop("stack")
    machine, said = FakeMachine(), tmp_path / "said"
    with FakeServer(machine) as server, said.open("wb") as stderr:
        machine.parameters[f"/spotkeeper/{stack}/search-log-queue-url"] = server.queue_url
        agent = start_agent(tmp_path, server, stderr, stack=stack, **settings)
        try:
            until(lambda: b"-> serving" in said.read_bytes(), "it runs")
            if "request_queue" in settings:
                until(lambda: b"the request queue's length is not known" in said.read_bytes(), "…")
        finally:
            agent.terminate()
            agent.wait(30)


def test_all_kinds_of_commands_are_met() -> None:
    assert {SET.sub("", command).split()[0] for command in COMMANDS} == set(FIRST_WORDS)


def test_files_that_are_named_are_there() -> None:
    for name in re.findall(r"`((?:worker/)?examples/[\w./-]+)`", DOC):
        path = name if name.startswith("worker/") else f"worker/{name}"
        assert (ROOT / path).exists(), name


def rows(section: str) -> list[list[str]]:
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_setting_has_its_row_and_its_default() -> None:
    told: dict[str, str] = {}
    for names, _, *default in rows("Settings")[1:]:
        listed = re.findall(r"`([A-Z_]+)`", names)
        values = (default[0] if default else "").strip(" |").split(", ")
        each = values if len(values) == len(listed) else [""] * len(listed)
        told.update(zip(listed, each, strict=True))
    known = {field.name.upper(): field.default for field in fields(Settings)}
    assert set(told) == set(known)
    for name, text in told.items():
        fallback: object = known[name]
        shown = f"{fallback:g}" if isinstance(fallback, float) else str(fallback)
        assert text in (shown, "", str(fallback)) or name.endswith("ENDPOINT"), name


def test_the_table_of_states_has_every_state_and_every_target() -> None:
    text = SECTIONS["The states"]
    for state in State:
        assert f"| `{state.value}` |" in text
    for target, meant in TARGETS.items():
        [row] = [row for row in rows("The states") if f"`{target}`" in row[0]]
        assert meant.reason in row[2]
        both = {Hook.READY: "spotkeeper-ready", Hook.DRAIN: "spotkeeper-drain"}
        if len(meant.hooks) == 1:
            assert both[meant.hooks[0]] in row[-1]
