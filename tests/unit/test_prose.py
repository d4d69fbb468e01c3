"""The check of prose finds retired words in pages, in texts of code and in the template."""

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest

PROSE: Any = SimpleNamespace(**run_path(str(Path(__file__).parents[2] / "docs" / "prose.py")))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('raise ValueError("no agent has told of it")', True),
        ('reason = f"held for so long: {name}"', True),
        ('help = "the instance that comes first"', True),
        ('reason = "waits this long"', False),
        ('"""A docstring that was told."""', False),
        ('name = "told"', False),
    ],
)
def test_a_text_of_the_code_has_no_retired_words(tmp_path: Path, source: str, found: bool) -> None:
    module = tmp_path / "module.py"
    module.write_text(source + "\n")
    assert bool(list(PROSE.retired(PROSE.texts(module)))) is found


def test_descriptions_of_the_template_and_the_help_of_commands_are_read(tmp_path: Path) -> None:
    template, module = tmp_path / "template.yaml", tmp_path / "lab_commands.py"
    template.write_text('A:\n  AlarmDescription: !Sub "it is told"\n  Other: told\n')
    module.write_text('def run():\n    """Say what was told."""\n')
    for read, path in ((PROSE.descriptions, template), (PROSE.texts, module)):
        assert [line.partition(":")[0] for line in PROSE.retired(read(path))] == ["line 2"]
