"""The distribution: nothing but Python 3.9, on an image that has nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[2] / "worker"


def python_3_9() -> str | None:
    """A Python 3.9 of this machine that runs; a version manager's stand-in may not."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which("python3.9"), *map(str, versions.glob("3.9*/bin/python3.9"))]
    for found in filter(None, candidates):
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    return None


@pytest.mark.make_e2e
def test_an_empty_environment_serves_ten_requests(tmp_path: Path) -> None:
    python = python_3_9()
    if python is None:
        pytest.skip("there is no Python 3.9 here; ruff checks the syntax alone")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=WORKER, check=True, capture_output=True)
    empty = [python, "-m", "venv", "--without-pip", str(tmp_path / "empty")]
    subprocess.run(empty, check=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    inside = str(tmp_path / "empty" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--python", inside]
    # Without an index, pip cannot install a dependency.
    subprocess.run([*pip, "install", "--quiet", "--no-index", str(wheel)], check=True, timeout=60)
    ended = subprocess.run(
        [inside, "-W", "error", "-m", "spotkeeper_worker.example"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "search logs that arrived: 10 of 10, lost: 0" in ended.stdout
    assert (tmp_path / "empty" / "bin" / "spotkeeper-agent").exists()


def test_the_agent_loads_no_module_that_most_machines_do_without() -> None:
    """Each costs memory on every machine of a fleet: three megabytes together."""
    code = "import sys, spotkeeper_worker.agent.cli; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "argparse", "configparser", "dataclasses", "inspect", "lzma", "shutil", "subprocess",
        "tempfile", "urllib.request", "uuid",
    }  # fmt: skip
    assert not heavy.intersection(ran.stdout.split())
