"""The machine that a cloud-config installs."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.worker.installed import Installed, debian
from tests.worker.page import ROOT

pytestmark = [pytest.mark.make_e2e, pytest.mark.allow_hosts(["127.0.0.1"])]
UNITS = "/etc/systemd/system"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
AGENT = "/opt/spotkeeper/bin/spotkeeper-agent"


@pytest.fixture
def installed(dist: Path, tmp_path: Path) -> Iterator[Installed]:
    with closing(Installed(debian(), dist, tmp_path)) as machine:
        yield machine


@pytest.mark.parametrize("name", ["ecs-gpu", "deep-learning"])
def test_a_cloud_config_installs_an_agent_and_a_worker_for_each_gpu(
    installed: Installed, dist: Path, name: str
) -> None:
    # As ECS's image has it.
    installed.write(f"{UNITS}/ecs.service", "[Install]\nWantedBy=multi-user.target\n")
    installed.run("systemctl", "enable", "ecs")
    booted = installed.boot(dist / f"{name}.cloud-config.yaml")
    assert "notice" in installed.run(AGENT, "--help").stdout
    gid = installed.run("getent", "group", "spotkeeper").stdout.split(":")[2]
    assert installed.read("/etc/spotkeeper/group.env") == f"SPOTKEEPER_GID={gid}\n"
    enabled = set(installed.run("ls", f"{UNITS}/multi-user.target.wants").stdout.split())
    units = {f"spotkeeper-{unit}.service" for unit in ("agent", "worker@0", "worker@1")}
    assert enabled & {*units, "spotkeeper-worker@2.service", "ecs.service"} == units | (
        set() if name == "ecs-gpu" else {"ecs.service"}
    )
    calls = installed.read("/calls").splitlines()
    (wheel,) = (path.name for path in dist.glob("spotkeeper_worker-*.whl"))
    assert f"aws s3 cp s3://their-bucket/{wheel} /opt/spotkeeper/" in calls
    registry = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"
    assert f"docker login --username AWS --password-stdin {registry}" in calls
    assert "rror" not in booted.stderr


def test_a_job_s_cloud_config_installs_the_agent_of_a_job(installed: Installed) -> None:
    """Its packages are those of the index that this machine reaches."""
    installed.write("/etc/resolv.conf", Path("/etc/resolv.conf").read_text())
    trusted = {}
    if CERTIFICATES.exists():
        installed.write("/etc/host.crt", CERTIFICATES.read_text())
        trusted["PIP_CERT"] = "/etc/host.crt"
    config = ROOT / "worker/examples/jobs/job.cloud-config.yaml"
    booted = installed.boot(config, **trusted)
    ran = installed.run("/opt/spotkeeper/bin/python", "-c", "import spotkeeper_worker.job.main")
    assert ran.returncode == 0, booted.stderr
    assert "spotkeeper-job" in installed.run("ls", f"{UNITS}/multi-user.target.wants").stdout
    assert "KillMode=mixed" in installed.run("cat", f"{UNITS}/spotkeeper-job.service").stdout


def test_a_wheel_of_another_hash_is_not_installed(dist: Path, tmp_path: Path) -> None:
    forged = Path(shutil.copytree(dist, tmp_path / "forged"))
    (wheel,) = forged.glob("spotkeeper_worker-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with closing(Installed(debian(), forged, tmp_path)) as machine:
        booted = machine.boot(dist / "ecs-gpu.cloud-config.yaml")
        assert "DO NOT MATCH THE HASHES" in booted.stderr
        assert machine.run("ls", AGENT).returncode != 0
