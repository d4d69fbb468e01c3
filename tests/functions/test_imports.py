"""A cold start imports what is deployed and nothing of the tools or the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTIONS = sorted(path.parent.name for path in (ROOT / "functions").glob("*/app.py"))
FOREIGN = ("moto", "spotkeeper_lab", "spotkeeper_cli", "scipy", "numpy", "rich", "typer", "tests")
LOOK = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("app", {app!r})
app = importlib.util.module_from_spec(spec)
spec.loader.exec_module(app)
assert callable(app.handler)
print(*sorted(set({foreign!r}) & set(sys.modules)))
"""


def test_there_are_functions() -> None:
    assert len(FUNCTIONS) == 6


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_cold_start_imports_only_what_is_deployed(name: str) -> None:
    look = LOOK.format(app=str(ROOT / "functions" / name / "app.py"), foreign=FOREIGN)
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
