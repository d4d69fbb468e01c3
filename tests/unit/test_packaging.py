"""What is installed where: the functions' needs are the package's, and a plain install is small."""

import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
COMMANDS = ("status", "explain", "doctor", "cost")


def test_what_is_deployed_is_among_what_is_installed() -> None:
    assert set(PROJECT["dependency-groups"]["functions"]) < set(PROJECT["project"]["dependencies"])


def test_the_commands_on_a_stack_need_no_lab() -> None:
    """They run up to their first call of AWS, which finds no region here, without its packages."""
    code = (
        "import sys\n"
        # typer brings a click of its own.
        "for name in ('numpy', 'scipy', 'moto', 'click'): sys.modules[name] = None\n"
        "from typer.testing import CliRunner\n"
        "from spotkeeper_cli.main import app\n"
        f"for command in {COMMANDS}:\n"
        "    told = CliRunner(env={'AWS_REGION': ''}).invoke(app, [command])\n"
        "    assert told.stderr == 'error: no region: give --region or set AWS_REGION\\n', told\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "", "AWS_CONFIG_FILE": "/dev/null"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
