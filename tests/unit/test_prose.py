"""The check of prose finds retired words in pages, in texts of code and in the template."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", ROOT / "docs" / "prose.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
def test_a_text_of_the_code_has_no_retired_words(
    prose: ModuleType, tmp_path: Path, source: str, found: bool
) -> None:
    module = tmp_path / "module.py"
    module.write_text(source + "\n")
    assert bool(list(prose.retired(prose.texts(module)))) is found


def test_the_help_of_a_command_is_a_docstring(prose: ModuleType, tmp_path: Path) -> None:
    module = tmp_path / "lab_commands.py"
    module.write_text('def run():\n    """Say what was told."""\n')
    assert [line.partition(":")[0] for line in prose.retired(prose.texts(module))] == ["line 2"]


def test_descriptions_of_the_template_are_read(prose: ModuleType, tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text('A:\n  AlarmDescription: !Sub "it is told"\n  Other: told\n')
    assert len(list(prose.retired(prose.descriptions(template)))) == 1
