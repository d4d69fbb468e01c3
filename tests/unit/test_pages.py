"""What pages tell one to type: commands of AWS, of make and of sam that there are."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import botocore.session
import pytest
import typer
from botocore import xform_name
from typer.testing import CliRunner

from spotkeeper_cli.main import app
from spotkeeper_cli.reference import reference
from tests.template.stack import ROOT, template

TOP = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = re.compile(r"^ {4,}((?:.*\\\n)*.+)$", re.MULTILINE)
IN_TEXT = re.compile(r"`([^`\n]+)`")
# Options of the aws command itself; those of paginators.
AWS_OPTIONS = {"region", "profile", "query", "output", "max-items", "cli-input-json"}
# Of the aws command alone, no operation of the API.
CUSTOMISED = {
    ("configure", "set"): set[str](),
    ("cloudformation", "deploy"): {
        "stack-name", "template-file", "capabilities", "parameter-overrides"
    },
    ("s3", "cp"): {"recursive", "exclude", "include"},
}  # fmt: skip
SAM_OPTIONS = {
    "resolve-s3", "parameter-overrides", "stack-name", "region", "config-env", "role-arn", "tags",
    "no-confirm-changeset", "no-fail-on-empty-changeset",
}  # fmt: skip
PROGRAMS = {
    "aws", "curl", "docker", "for", "git", "make", "pip", "python", "python3.13", "sam",
    "spotkeeper", "spotkeeper-agent", "vllm",
}  # fmt: skip
# Shown lines that are no commands: documents, a tree of folders, a query.
DATA = re.compile(r"\W*[\"\[{]|\w+ = |\S+(, _cli)? {2,}|groups, |filter message")
RULES = {"make before break"}
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))


def commands(program: str, *, in_text: bool = True) -> list[Any]:
    """Every shown line, and every command within a text, that calls a program."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in (*SHOWN.findall(text), *(IN_TEXT.findall(text) if in_text else ())):
            whole = line.replace("\\\n", " ") if line.count("'") % 2 == 0 else ""
            words = shlex.split(whole, comments=True)
            if words[1:] and words[0].rpartition("/")[2] == program and line not in RULES:
                found.append(pytest.param(words[1:], id=f"{page.name}: {' '.join(words)[:50]}"))
    return found


@pytest.mark.parametrize("words", commands("aws"))
def test_a_call_of_aws_is_one_with_such_options(words: list[str]) -> None:
    service, operation, *rest = words
    options = [word[2:].partition("=")[0] for word in rest if word.startswith("--")]
    given = {option.removeprefix("no-") for option in options}
    if (service, operation) in CUSTOMISED:
        assert given <= CUSTOMISED[service, operation] | AWS_OPTIONS
        return
    model = botocore.session.get_session().get_service_model(service)
    names = {xform_name(name, "-"): name for name in model.operation_names}
    assert operation in names, f"aws {service} has no {operation}"
    shape = model.operation_model(names[operation]).input_shape
    members = {xform_name(name, "-") for name in (shape.members if shape else ())}
    assert given <= members | AWS_OPTIONS


@pytest.mark.parametrize("words", commands("make"))
def test_documented_make_targets_exist(words: list[str]) -> None:
    targets = {word for word in words if "=" not in word and not word.startswith("-")}
    assert targets <= TARGETS


def made(targets: str) -> set[str]:
    """Targets of make, and all that they need."""
    named = set(targets.split()) & TARGETS
    for target in list(named):
        rule, _, recipe = MAKEFILE.partition(f"\n{target}: ")[2].partition("\n")
        steps = re.match(r"(?:\t.*\n)*", recipe)
        needs = rule.partition("##")[0] + (steps[0] if steps and "$(MAKE)" in steps[0] else "")
        named |= made(needs.replace(target, "")) if needs else set()
    return named


def test_each_make_target_that_a_page_names_is_run_by_ci_or_by_a_test() -> None:
    runs = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("\\\n", " ")
    by_ci = made(" ".join(re.findall(r"^make (.*)$", runs, re.MULTILINE)))
    # The environment of every other target; the commands of docs/workers.md; the local AWS.
    by_tests = {"bootstrap", "release", "sam-build", "local-aws"}
    pages = [*PAGES, *(ROOT / "docs" / "decisions").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = {word for found in re.findall(r"\bmake ((?:[a-z0-9-]+ ?)+)", text)
             for word in found.split()[:1]} & TARGETS  # fmt: skip
    assert named - by_ci - by_tests == set()
    assert len(named) > 15


@pytest.mark.parametrize("words", [it for it in commands("sam") if "deploy" in it.values[0]])
def test_a_parameter_of_a_deployment_is_the_templates(words: list[str]) -> None:
    given = [word.partition("=")[0] for word in words if re.match(r"[A-Z]\w+=", word)]
    assert set(given) <= template()["Parameters"].keys()
    assert {word[2:] for word in words if word.startswith("--")} <= SAM_OPTIONS


# The command reference shows what may be typed, not what is.
OURS = [
    it
    for it in commands("spotkeeper", in_text=False)
    if "commands.md" not in str(it.id) and "--help" not in it.values[0]
]


@pytest.mark.parametrize("words", OURS)
def test_a_command_of_ours_is_understood(words: list[str]) -> None:
    words, name = list(words), "spotkeeper"
    command = typer.main.get_command(app)
    context = command.make_context(name, list(words), resilient_parsing=False)
    while known := getattr(command, "commands", None):
        name = words.pop(0)
        command = known[name]
    command.make_context(name, words, parent=context)


@pytest.mark.parametrize("words", [it for it in commands("spotkeeper") if it not in OURS])
def test_a_command_in_a_sentence_has_a_name_and_options_of_ours(words: list[str]) -> None:
    words, command = list(words), typer.main.get_command(app)
    while words and words[0][0].islower() and (known := getattr(command, "commands", None)):
        command = known[words.pop(0)]
    options = {name for it in command.params for name in (*it.opts, *it.secondary_opts, "--help")}
    assert {word for word in words if word[0] == "-"} <= options


@pytest.mark.parametrize("page", PAGES, ids=lambda it: str(it.name))
def test_a_shown_line_begins_with_a_program_or_is_no_command(page: Path) -> None:
    """A misspelt program would be a command that no test looks at."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for line in SHOWN.findall(text):
        first = re.sub(r"^([A-Z_]+=\S+ )+", "", line.strip()).split()[0]
        assert first.rpartition("/")[2] in PROGRAMS or DATA.match(line.strip()), line


def test_the_command_reference_is_that_of_the_commands() -> None:
    written = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert written == reference(), "docs/commands.md is out of date: run make reference"


def test_the_headline_of_the_readme_runs_on_a_clone_alone(tmp_path: Path) -> None:
    """The shown command, with fewer windows and only the policies that the sentence names."""
    [shown] = [it.values[0] for it in commands("spotkeeper") if "backtest" in it.values[0]][:1]
    words = " ".join(shown).replace("--windows 24", "--windows 2").split()
    words[words.index("--report") + 1] = str(tmp_path / "policies.html")
    only = ["--policy", "spotkeeper", "--policy", "optimum", "--json", str(tmp_path / "rows.json")]
    done = CliRunner().invoke(app, [*words, *only])
    assert done.exit_code == 0, done.output
    ours, optimum = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert ours["served_share"] == 1.0
    assert optimum["cost"] <= ours["cost"] < 1.1 * optimum["cost"]
    assert "most eventful window" in (tmp_path / "policies.html").read_text()


SITE = run_path(str(ROOT / "docs/site.py"))


def test_the_site_has_every_page_and_no_link_out_of_itself(tmp_path: Path) -> None:
    SITE["assemble"](tmp_path / "pages")
    pages = {
        str(path.relative_to(tmp_path / "pages")): path.read_text(encoding="utf-8")
        for path in (tmp_path / "pages").rglob("*.md")
    }
    for name, text in pages.items():
        assert "](../README" not in text
        assert "](../SECURITY" not in text
        assert "](docs/" not in text, name
    nav = tomllib.loads((ROOT / "site.toml").read_text(encoding="utf-8"))["project"]["nav"]
    listed = {name for name in pages if "/" not in name} | {"decisions/index.md"}
    assert set(_files(nav)) == listed


def _files(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _files(each)


def test_what_is_fetched_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    page = tmp_path / "inner" / "page.html"
    page.write_text('<script src="https://unpkg.com/iframe-worker/shim"></script>')
    SITE["localise"](tmp_path)
    assert page.read_text() == '<script src="../iframe-worker/index.js"></script>'
    page.write_text('<script src="https://example.org/x.js"></script>')
    with pytest.raises(ValueError, match=r"page\.html"):
        SITE["localise"](tmp_path)
