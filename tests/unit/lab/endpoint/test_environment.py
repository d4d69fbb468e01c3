"""The endpoint runs in an environment of its own, which has less than the one of the tests."""

import subprocess
import sys

MISSING = ("numpy", "scipy", "rich", "typer", "hypothesis")


def test_the_endpoint_imports_nothing_that_its_environment_lacks() -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({MISSING!r})); "
    script += "import spotkeeper_lab.endpoint.serve"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
