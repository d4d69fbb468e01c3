"""The documents name what the code has: settings with their defaults, metrics, alarms, rules."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from spotkeeper.border.fleet_document import FleetDocument
from spotkeeper.observability import COUNTS, LEVELS
from tests.template.stack import ADOPT, ROOT, Stack

PACKAGE = ROOT / "layers/spotkeeper/spotkeeper"
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
OPERATIONS = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Split every table row of a document into its cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named_first(text: str) -> dict[str, list[str]]:
    """Give the rows of all tables by each name in code marks in their first cell."""
    return {name: row for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name every field of a document that is no section, with its default."""
    for name, field in model.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        sections = [it for it in types if isinstance(it, type) and issubclass(it, BaseModel)]
        for section in sections:
            yield from settings(section, f"{prefix}{name}.")
        if not sections:
            yield prefix + name, field.default


@pytest.mark.parametrize(("name", "default"), list(settings(FleetDocument)))
def test_every_setting_is_described_with_its_default(name: str, default: Any) -> None:
    described = named_first(OPERATIONS)
    assert name in described, f"docs/operations.md lacks a row for the setting {name}"
    written = described[name][3]
    if default is PydanticUndefined:
        assert written.startswith("required"), f"{name} has no default"
    else:
        assert written == json.dumps(default), f"docs/operations.md has another default for {name}"


def test_no_setting_is_described_that_is_not_there() -> None:
    sections = tuple(f"{name}." for name in FleetDocument.model_fields)
    described = {name for name in named_first(OPERATIONS) if name.startswith(sections)}
    assert described <= dict(settings(FleetDocument)).keys()


def test_every_metric_is_described() -> None:
    sent = {name: row[2] for name, row in named_first(OPERATIONS).items() if len(row) == 4}
    assert {name for name, when in sent.items() if when == "each turn"} == LEVELS.keys()
    assert {name for name, when in sent.items() if when == "when not 0"} == COUNTS


def test_every_alarm_has_its_runbook_and_its_text_leads_there() -> None:
    alarms = Stack.with_parameters(ADOPT).resources("AWS::CloudWatch::Alarm").values()
    runbook = ROOT / "docs/troubleshooting.md"
    for alarm in alarms:
        name = str(alarm["AlarmName"]).removeprefix("ocr-")
        assert str(alarm["AlarmDescription"]).endswith(f". docs/troubleshooting.md#{name}")
        assert name in anchors(runbook), f"docs/troubleshooting.md lacks a heading for {name}"


def test_no_runbook_is_of_an_alarm_that_is_not_there() -> None:
    _, by_alarm = (
        (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").split("## By alarm")
    )
    alarms = Stack.with_parameters(ADOPT).resources("AWS::CloudWatch::Alarm").values()
    names = {str(alarm["AlarmName"]).removeprefix("ocr-") for alarm in alarms}
    assert set(re.findall(r"^### (.+)$", by_alarm, re.MULTILINE)) == names


def test_every_rule_has_its_code() -> None:
    rules = [row for row in rows(README) if row[0].isdigit()]
    assert [int(row[0]) for row in rules] == list(range(1, 14))
    for _, rule, file, functions in rules:
        source = (PACKAGE / file.strip("`")).read_text(encoding="utf-8")
        for function in re.findall(r"`(\w+)`", functions):
            assert f"def {function}(" in source, f"{rule}: no {function} in {file}"


def test_the_readme_stays_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda it: str(it.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    for path, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        target = document.parent / path if path else document
        assert target.exists(), f"{document.name}: no {path}"
        if anchor:
            assert anchor in anchors(target), f"{document.name}: no #{anchor} in {target.name}"


def anchors(document: Path) -> set[str]:
    """Give a document's headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", it.lower()).replace(" ", "-") for it in headings}
