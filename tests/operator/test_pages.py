"""The commands that pages show are commands that there are, with options that they have."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from spotkeeper_cli.main import app

ROOT = Path(__file__).parents[2]
# The command reference shows what may be typed, not what is.
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {ROOT / "docs/commands.md"})]
SHOWN = re.compile(r"^ +(?:\.venv/bin/)?spotkeeper ((?:.*\\\n)*.+)", re.MULTILINE)
LINES = [
    pytest.param(line, id=f"{page.name}: {line[:40]}")
    for page in PAGES
    for line in SHOWN.findall(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_a_page_is_understood(line: str) -> None:
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    root = typer.main.get_command(app)
    context = root.make_context("spotkeeper", list(words), resilient_parsing=False)
    command, name = root, "spotkeeper"
    while commands := getattr(command, "commands", None):
        name = words.pop(0)
        command = commands[name]
    command.make_context(name, words, parent=context)


def test_there_are_such_lines() -> None:
    assert len(LINES) > 10
