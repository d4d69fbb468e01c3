"""docs/truth.md and what stand-ins do: tests that exist, and for each row its evidence."""

import re
from pathlib import Path

from tests.builders import evidence
from tests.template.stack import ROOT

PAGES = [ROOT / "docs" / page for page in ("truth.md", "live-account.md")]
TRUTH = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
STAND_INS = "\n".join(row["test"] for row in evidence("stand_ins"))


def cells_of_truth() -> list[list[str]]:
    lines = (ROOT / "docs/truth.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split(" | ") for line in lines if re.match(r"\| (?!number)", line)]
    return [[cell.strip() for cell in row] for row in rows]


def names_of_tests() -> set[str]:
    folders = (ROOT / "tests", ROOT / "worker")
    sources = (path for folder in folders for path in folder.rglob("test_*.py"))
    texts = (Path(path).read_text(encoding="utf-8") for path in sources)
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


def test_every_test_that_is_named_is_there() -> None:
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)(?!/)", TRUTH + STAND_INS))
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert named - names_of_tests() - files == set()


def test_every_row_names_its_evidence_or_the_experiment_of_a_belief() -> None:
    """A belief that costs nothing says so; each experiment is one that a row names."""
    experiments = set(re.findall(r"\*\*(E\d+)\.", (ROOT / "docs/live-account.md").read_text()))
    rows = cells_of_truth()
    assert all(len(row) == 4 and all(row) for row in rows)
    named = {number for row in rows for number in re.findall(r"\bE\d+\b", row[2])}
    assert named == experiments
    beliefs = [row[2].partition("belief")[2] for row in rows if "belief" in row[2]]
    assert all(re.match(r" E\d+|, harmless: ", rest) for rest in beliefs)
    tables = {name for row in rows for name in re.findall(r"`(tests/evidence/.+?)`", row[2])}
    assert len(tables) > 5
    assert all((ROOT / name).exists() for name in tables)
