"""docs/truth.md names tests that exist, and for each row its evidence."""

import re
from pathlib import Path
from runpy import run_path

from tests.builders import evidence
from tests.template.stack import ROOT

LIVE = (ROOT / "docs/live-account.md").read_text(encoding="utf-8")
ROWS = evidence("truth")


def names_of_tests() -> set[str]:
    folders = (ROOT / "tests", ROOT / "worker")
    sources = (path for folder in folders for path in folder.rglob("test_*.py"))
    texts = (Path(path).read_text(encoding="utf-8") for path in sources)
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


def test_the_page_is_what_make_docs_writes() -> None:
    page = (ROOT / "docs/truth.md").read_text(encoding="utf-8")
    assert page == run_path(str(ROOT / "docs/truth.py"))["written"](page), "run make docs"


def test_every_test_that_is_named_is_there() -> None:
    text = LIVE + "\n".join(row["test"] for row in ROWS)
    named = set(re.findall(r"\b(test_\w+)\b(?!\.py)(?!/)", text))
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert named - names_of_tests() - files == set()


def test_every_row_names_its_evidence_or_the_experiment_of_a_belief() -> None:
    """A belief that costs nothing says so; each experiment is one that a row names."""
    assert all(all(row.values()) for row in ROWS)
    sources = [row["evidence"] for row in ROWS]
    named = {number for source in sources for number in re.findall(r"\bE\d+\b", source)}
    assert named == set(re.findall(r"\*\*(E\d+)\.", LIVE))
    beliefs = [source.partition("belief")[2] for source in sources if "belief" in source]
    assert all(re.match(r" E\d+|, harmless: ", rest) for rest in beliefs)
    tables = {name for source in sources for name in re.findall(r"`(tests/evidence/.+?)`", source)}
    assert len(tables) > 5
    assert all((ROOT / name).exists() for name in tables)
