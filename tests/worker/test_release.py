"""`make release`, and the machine that a cloud-config makes of its wheel."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worker.page import ROOT

pytestmark = pytest.mark.make_e2e
CONFIGS = ("ecs-gpu.cloud-config.yaml", "deep-learning.cloud-config.yaml")
# What a machine has: each writes down how it was called.
PROGRAMS = {
    "aws": 'case "$1" in s3) cp "$WHEELS/${3##*/}" "$4";; ecr) echo password;; esac',
    "docker": "cat",
    "getent": "echo spotkeeper:x:947:",
    "groupadd": "",
    "nvidia-smi": "echo 'GPU 0: NVIDIA A10G (UUID: a)'; echo 'GPU 1: NVIDIA A10G (UUID: b)'",
    "systemctl": "",
}


def release(folder: Path) -> str:
    command = [sys.executable, "worker/release.py", str(folder), "their-bucket"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    release(folder)
    return folder


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


@pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform here")
def test_the_terraform_module_is_valid(tmp_path: Path) -> None:
    """Its form always; validating it takes the AWS provider, where its registry can be reached."""
    module = shutil.copytree(ROOT / "terraform" / "spotkeeper", tmp_path / "module")

    def terraform(*command: str) -> "subprocess.CompletedProcess[str]":
        line = ["terraform", f"-chdir={module}", *command, "-no-color"]
        return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)

    ran = terraform("fmt", "-check", "-diff")
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    if terraform("init", "-backend=false", "-input=false").returncode == 0:
        ran = terraform("validate")
        assert ran.returncode == 0, ran.stdout


def test_the_command_is_installed_without_a_clone(tmp_path: Path) -> None:
    """By the README's three lines, from this repository in the place of a host's."""
    readme = (ROOT / "README.md").read_text()
    begins = readme.index("    python3.13 -m venv ~/.spotkeeper")
    script = "\n".join(line.strip() for line in readme[begins:].splitlines()[:3])
    assert "git+https://github.com/OWNER/spotkeeper\n" in script
    script = script.replace("git+https://github.com/OWNER/spotkeeper", f"git+file://{ROOT}")
    script = script.replace("python3.13", sys.executable)
    ran = subprocess.run(
        ["bash", "-ec", script], env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "explain" in ran.stdout


def boot(config: Path, wheels: Path, root: Path) -> "subprocess.CompletedProcess[str]":
    """Do what cloud-init does: write the files, then run the commands by sh, whatever fails."""
    read: Any = yaml.safe_load(config.read_text())

    def here(text: str) -> str:
        for folder in ("/etc/", "/opt/"):
            text = text.replace(folder, f"{root}{folder}")
        return text

    (root / "bin").mkdir(parents=True)
    for name, does in PROGRAMS.items():
        path = root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {root}/calls\n{does}\n')
        path.chmod(0o755)
    for each in read["write_files"]:
        path = Path(here(each["path"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(here(each["content"]))
    environment = {**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}", "WHEELS": str(wheels)}
    return subprocess.run(
        ["sh", "-c", "\n".join(map(here, read["runcmd"]))],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_cloud_config_installs_the_wheel_and_starts_a_worker_for_each_gpu(
    dist: Path, tmp_path: Path, name: str
) -> None:
    booted = boot(dist / name, dist, tmp_path)
    agent = tmp_path / "opt/spotkeeper/bin/spotkeeper-agent"
    assert agent.exists(), booted.stderr
    helped = subprocess.run([agent, "--help"], capture_output=True, text=True, check=True)
    assert "notice" in helped.stdout
    assert (tmp_path / "etc/spotkeeper/group.env").read_text() == "SPOTKEEPER_GID=947\n"
    calls = (tmp_path / "calls").read_text()
    assert "aws s3 cp s3://their-bucket/spotkeeper_worker-" in calls
    for unit in ("spotkeeper-agent.service", "spotkeeper-worker@0.service", "worker@1.service"):
        assert unit in calls
    assert "worker@2" not in calls


def test_a_wheel_of_another_hash_is_not_installed(dist: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged"
    forged.mkdir()
    (wheel,) = dist.glob("spotkeeper_worker-*.whl")
    (forged / wheel.name).write_bytes(wheel.read_bytes() + b"\0")
    booted = boot(dist / CONFIGS[0], forged, tmp_path)
    assert "DO NOT MATCH THE HASHES" in booted.stderr
    assert not (tmp_path / "opt/spotkeeper/bin/spotkeeper-agent").exists()
