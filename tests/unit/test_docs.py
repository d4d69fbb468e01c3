"""The documents name what the code has: settings with their defaults, metrics, alarms, rules."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from spotkeeper.border.fleet_document import SECTIONS, FleetDocument
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.load import history
from spotkeeper.domain.sizing import shadows, size
from spotkeeper.observability import COUNTS, LEVELS
from spotkeeper_operator.doctor import findings_page
from spotkeeper_operator.settings_table import settings_table, written
from tests.template.stack import JOBS, ROOT, Stack, template

PACKAGE = ROOT / "layers/spotkeeper/spotkeeper"
TOP = sorted(ROOT.glob("*.md"))
DOCUMENTS = [*TOP, *sorted(ROOT.glob("docs/**/*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)")
SETTINGS = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
MONITORING = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
BAD_DAYS = (ROOT / "docs/bad-days.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Split every table row of a document into its cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def named_first(text: str) -> dict[str, list[str]]:
    """Give the rows of all tables by each name in code marks in their first cell."""
    return {name: row for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}


def test_a_page_says_what_a_change_of_each_parameter_does() -> None:
    page = (ROOT / "docs/parameters.md").read_text(encoding="utf-8")
    assert named_first(page).keys() == template()["Parameters"].keys()


def test_the_table_of_settings_is_what_make_docs_writes() -> None:
    """Stale when a setting was changed where it is defined and `make docs` was not run."""
    assert settings_table() in SETTINGS, "run make docs"
    assert written(SETTINGS) == SETTINGS, "run make docs"


def test_the_table_has_every_field_of_the_document() -> None:
    """The document and the table are made of the same definitions, but each on its own."""
    described = named_first(settings_table()).keys()
    sections = {f"{name}.{field}" for name, it in SECTIONS.items() for field in it.model_fields}
    assert described == sections | (FleetDocument.model_fields.keys() - SECTIONS.keys())


def test_every_setting_is_read() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if "settings" not in path.parts
    )
    fields = {field for section in SECTIONS.values() for field in section.model_fields}
    unread = {field for field in fields if not re.search(rf"\.{field}\b", code)}
    assert unread == set(), "no rule reads these settings"


def test_the_page_of_findings_is_what_make_docs_writes() -> None:
    """Stale when a check was changed and `make docs` was not run."""
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    assert page == findings_page(), "run make docs"


def test_every_failure_class_has_its_row() -> None:
    table = BAD_DAYS.split("\n## Failure classes\n")[1].split("\n## ")[0]
    described = [row[0] for row in rows(table)[2:]]
    assert described == [*FailureClass], "docs/bad-days.md: one row for each, in the order here"


def test_every_metric_is_described() -> None:
    sent = {name: row[2] for name, row in named_first(MONITORING).items() if len(row) == 4}
    assert {name for name, when in sent.items() if when == "each turn"} == LEVELS.keys()
    assert {name for name, when in sent.items() if when == "when not 0"} == COUNTS


def test_every_alarm_has_its_runbook_and_its_text_leads_there() -> None:
    alarms = Stack.with_parameters(JOBS).resources("AWS::CloudWatch::Alarm").values()
    texts = {it["AlarmName"].removeprefix("ocr-"): it["AlarmDescription"] for it in alarms}
    runbook = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.+)$", runbook.split("## By alarm")[1], re.MULTILINE)
    assert set(headings) == texts.keys()
    for name, text in texts.items():
        assert text.endswith(f". docs/troubleshooting.md#{name}")


def test_every_rule_has_its_code() -> None:
    rules = [row for row in rows(ARCHITECTURE) if row[0].isdigit()]
    assert [int(row[0]) for row in rules] == list(range(1, 14))
    for _, rule, file, functions in rules:
        source = (PACKAGE / file.strip("`")).read_text(encoding="utf-8")
        for function in re.findall(r"`(\w+)`", functions):
            assert f"def {function}(" in source, f"{rule}: no {function} in {file}"


def test_the_function_of_the_break_even_page_answers_what_the_page_says() -> None:
    """The page's example, twice; the published months of its last table."""
    page = (ROOT / "docs/breakeven.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], found)
    months = found["months_to_break_even"]
    example = {"machine": 10_000, "cloud_hour": 1.4943, "kilowatts": 1.5, "kwh": 0.1}
    assert f"**{months(**example, hosting=100):.2f} months**" in page
    assert f"it takes {months(**example, hosting=100, utilisation=0.5):.1f} months" in page
    assert months(10_000, cloud_hour=0.15, kilowatts=1.5, kwh=0.1) is None
    for cloud, kilowatts in ((676.378, 1.5), (676.378, 0.0), (600.0, 0.0)):
        after = months(10_000, cloud / 720, kilowatts, kwh=0.058, hours=720)
        assert f"| {after:.4f} |" in page


def test_each_statement_about_security_names_a_test_that_exists() -> None:
    for statement, *_, held_by in rows((ROOT / "SECURITY.md").read_text(encoding="utf-8")):
        tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", held_by)
        assert tests or statement.startswith(("statement", "---", "check", "CKV_")), statement
        for file, name in tests:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}: no {name}"


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


def test_the_numbers_of_the_sizing_rule_are_on_one_page() -> None:
    page = (ROOT / "docs/sizing-measured.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for row in rows(page.split("## The numbers of the rule")[1].split("\n## ")[0]):
        names = re.findall(r"`([^`]+)`", row[0])
        listed = row[1].split(", ") if len(names) > 1 else row[1:2]
        found |= dict(zip(names, listed, strict=True)) if names else {}
    numbers: dict[str, str] = {}
    for module in (history, shadows, size):
        names = re.findall(r"^([A-Z_, ]+) = ", inspect.getsource(module), re.MULTILINE)
        for name in (each for listed in names for each in listed.split(", ")):
            value = getattr(module, name)
            if isinstance(value, (int, float)):
                numbers[name] = f"{value:.4g}" if value < 1 else f"{value:g}"
            elif isinstance(value, tuple) and isinstance(value[0], (int, float)):
                numbers[name] = ", ".join(f"{one:g}" for one in value)
    units = {"LONGEST_KEEP", "PRUDENT", "BURST", "QUIET_AFTER_S"}
    units |= {name for name in numbers if re.match(r"(SLOT|MINUTE|STEP|DAY)_", name)}
    assert found == {name: value for name, value in numbers.items() if name not in units}
