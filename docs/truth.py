"""The rows of docs/truth.md, from tests/evidence/truth.tsv; `make docs` writes them.

.venv/bin/python docs/truth.py
"""

import csv
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "truth.md"
MARK = "<!-- rows: made by `make docs` from tests/evidence/truth.tsv -->\n"
COLUMNS = ("number", "statement", "evidence", "test")


def written(page: str) -> str:
    """The page with a table for each part."""
    lines = (ROOT / "tests/evidence/truth.tsv").read_text(encoding="utf-8").splitlines()
    table = csv.DictReader(lines, dialect="excel-tab", quoting=csv.QUOTE_NONE)
    text = page.partition(MARK)[0] + MARK
    for part, rows in groupby(table, key=lambda row: row["part"]):
        cells = [COLUMNS, ["---"] * len(COLUMNS), *([row[it] for it in COLUMNS] for row in rows)]
        text += f"\n## {part}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in cells)
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
