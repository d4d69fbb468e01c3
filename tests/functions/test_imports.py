"""A cold start imports what is deployed, and nothing of the tools or the tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FUNCTIONS = sorted((ROOT / "functions").glob("*/app.py"))
FOREIGN = ("moto", "spotkeeper_lab", "spotkeeper_cli", "scipy", "numpy", "rich", "typer", "tests")
LOOK = """
import importlib.util, sys
for path in {paths!r}:
    spec = importlib.util.spec_from_file_location("app", path)
    app = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(app)
    assert callable(app.handler)
print(*sorted(set({foreign!r}) & set(sys.modules)))
"""


def test_the_functions_import_only_what_is_deployed() -> None:
    assert FUNCTIONS
    look = LOOK.format(paths=[*map(str, FUNCTIONS)], foreign=FOREIGN)
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
