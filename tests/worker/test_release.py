"""`make release`: wheels, their SBOM, and how they are installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.conftest import release
from tests.worker.page import ROOT

pytestmark = pytest.mark.make_e2e


def test_the_same_source_gives_the_same_wheels(dist: Path, tmp_path: Path) -> None:
    release(tmp_path)
    sums = (dist / "SHA256SUMS").read_text()
    assert sums == (tmp_path / "SHA256SUMS").read_text()
    assert len(sums.splitlines()) == 2
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=dist, check=True)


def test_the_sbom_names_the_wheels_and_what_the_functions_layer_has(dist: Path) -> None:
    bom = json.loads((dist / "sbom.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
    by_purl = {it["bom-ref"]: it for it in bom["components"]}
    assert len(by_purl) == len(bom["components"])
    sums = dict(line.split()[::-1] for line in (dist / "SHA256SUMS").read_text().splitlines())
    version = bom["metadata"]["component"]["version"]
    for project in ("spotkeeper", "spotkeeper-worker"):
        wheel = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        (hashed,) = by_purl[f"pkg:pypi/{project}@{version}"]["hashes"]
        assert hashed == {"alg": "SHA-256", "content": sums[wheel]}
    pins = (ROOT / "layers/dependencies/requirements.txt").read_text()
    names = {line.split("==")[0] for line in pins.splitlines() if "==" in line}
    assert {it["name"] for it in bom["components"]} == names | {"spotkeeper", "spotkeeper-worker"}


@pytest.mark.parametrize("source", [".", "wheel"])
def test_the_command_is_installed_as_the_readme_says(
    source: str, dist: Path, tmp_path: Path
) -> None:
    readme = (ROOT / "README.md").read_text()
    begins = readme.index("    python3.13 -m venv ~/.spotkeeper")
    script = "\n".join(line.strip() for line in readme[begins:].splitlines()[:3])
    (wheel,) = dist.glob("spotkeeper-*.whl")
    script = script.replace("install .", f"install {wheel}" if source == "wheel" else "install .")
    script = script.replace("python3.13", sys.executable)
    ran = subprocess.run(
        ["bash", "-ec", script], env={**os.environ, "HOME": str(tmp_path)}, cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "explain" in ran.stdout
