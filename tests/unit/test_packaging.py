"""What is installed where: the functions' needs are the package's, and a plain install is small."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import spotkeeper_worker as worker
from spotkeeper_cli.main import OF_THE_LAB

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
COMMANDS = ("status", "explain", "doctor", "cost")


def test_what_is_deployed_is_among_what_is_installed() -> None:
    assert set(PROJECT["dependency-groups"]["functions"]) < set(PROJECT["project"]["dependencies"])


def test_what_names_the_version_names_the_version_of_the_packages() -> None:
    root = Path(__file__).parents[2]
    wheel, version = "spotkeeper_worker-([0-9][0-9.]*[0-9])-py3", worker.__version__
    named = re.findall("SemanticVersion: (.*)", (root / "template.yaml").read_text())
    for path in root.glob("worker/examples/**/*.yaml"):
        named += re.findall(wheel, path.read_text())
    assert len(named) > 5
    assert {*named} == {version}


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


def test_a_command_of_the_lab_says_what_it_needs_whatever_is_missing() -> None:
    lab = PROJECT["project"]["optional-dependencies"]["lab"]
    names = {re.split(r"\W", need)[0].lower() for need in lab}
    modules = packages_distributions().items()
    brought = {name for name, by in modules if names & {dist.lower() for dist in by}}
    assert {name for name in brought if not name.startswith("_")} == OF_THE_LAB


def test_what_the_lab_needs_is_installed_so_that_the_checkout_is_found() -> None:
    """A plain install puts the package away from the functions, which demo and replay run."""
    code = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "sys.argv = ['spotkeeper', 'replay', '--requests', 'r.csv']\n"
        "from spotkeeper_cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    told = "error: this needs numpy: pip install -e '.[lab]' (or make bootstrap) in the checkout\n"
    assert done.stderr == told
