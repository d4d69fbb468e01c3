"""Answers of the command that are kept: `GOLDEN=write pytest tests/operator` writes them anew."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "kept"


def matches(name: str, answer: str) -> None:
    path = FOLDER / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(answer, encoding="utf-8")
    assert answer == path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        assert max(map(len, answer.splitlines())) <= 80
