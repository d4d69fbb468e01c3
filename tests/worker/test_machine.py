"""The machine that a cloud-config installs, and what a user without rights can do to its agent."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spotkeeper_worker.testing import FakeMachine, FakeServer, until
from tests.worker.installed import Installed, debian, inside
from tests.worker.nobody import AGENT, INBOX, SECRET, SHARED, TRIES
from tests.worker.page import ROOT

pytestmark = [pytest.mark.make_e2e, pytest.mark.allow_hosts(["127.0.0.1"])]
UNITS = "/etc/systemd/system"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
HERE = Path(__file__).parent


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
    python = "/opt/spotkeeper/bin/python"
    ran = installed.run(python, "-c", "import spotkeeper_worker.job.main")
    assert ran.returncode == 0, booted.stderr
    assert "spotkeeper-job" in installed.run("ls", f"{UNITS}/multi-user.target.wants").stdout


def test_a_wheel_of_another_hash_is_not_installed(dist: Path, tmp_path: Path) -> None:
    forged = Path(shutil.copytree(dist, tmp_path / "forged"))
    (wheel,) = forged.glob("spotkeeper_worker-*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with closing(Installed(debian(), forged, tmp_path)) as machine:
        booted = machine.boot(dist / "ecs-gpu.cloud-config.yaml")
        assert "DO NOT MATCH THE HASHES" in booted.stderr
        assert machine.run("ls", AGENT).returncode != 0


def end(process: subprocess.Popen[str]) -> None:
    os.kill(inside(process), signal.SIGTERM)


def test_no_user_stops_blinds_or_fools_the_agent(
    installed: Installed, dist: Path, tmp_path: Path
) -> None:
    """First a user of the machine, then one of the workers' group, as a container has it."""
    installed.boot(dist / "ecs-gpu.cloud-config.yaml")
    installed.write(SECRET, '["hunter2", "ready=1 busy=00007 begun=0000000001"]')
    installed.run("chmod", "600", SECRET)
    installed.write("/nobody.py", (HERE / "nobody.py").read_text())
    (start,) = (
        line.split("=", 1)[1]
        for line in installed.read(f"{UNITS}/spotkeeper-agent.service").splitlines()
        if line.startswith("ExecStart=")
    )
    log = tmp_path / "log"
    machine = FakeMachine()
    with FakeServer(machine) as server:
        machine.parameters["/spotkeeper/spotkeeper/search-log-queue-url"] = server.queue_url
        written = dict(it.split("=") for it in installed.read("/etc/spotkeeper/agent.env").split())
        environment = server.environment() | written
        # The stand-in for nvidia-smi lists two GPUs; one worker will do.
        environment |= {"SPOTKEEPER_WORKERS": "1", "SPOTKEEPER_POLL_S": "0.1"}
        environment |= {"SPOTKEEPER_TICK_S": "0.1", "SPOTKEEPER_STOP_WITHIN_S": "1"}
        del environment["SPOTKEEPER_SEARCH_LOG_QUEUE_URL"]

        def state() -> str:
            told = installed.run(AGENT, "notice").stdout
            return str(json.loads(told)["state"]) if told else ""

        def tries(group: str) -> dict[str, str]:
            ran = installed.run("python3", "/nobody.py", user="nobody", group=group, **environment)
            return dict(json.loads(line) for line in ran.stdout.splitlines())

        machine.launch()
        agent = installed.start(*start.split(), log=log, **environment)
        until(lambda: state() == "booting", "the agent runs")
        alone = tries("")
        assert set(alone) == set(TRIES)
        assert {name: it for name, it in alone.items() if "Permission" not in it} == {}
        assert (state(), machine.completed, machine.logs()) == ("booting", [], [])

        python = ("/opt/spotkeeper/bin/python", "-c", WORKER)
        worker = installed.start(*python, log=log, user="1000", group="spotkeeper")
        until(lambda: state() == "serving", "it serves")
        shared = tries("spotkeeper")
        assert {name for name, it in shared.items() if it == "done"} == set(SHARED), shared
        installed.run("rm", "/run/spotkeeper/notice.json")
        until(lambda: state() == "serving", "the notice is written again")
        until(lambda: not installed.run("ls", str(INBOX)).stdout, "the spool is emptied")
        second = installed.run(*start.split(), **environment)
        assert second.returncode == 2 and "one is enough" in second.stderr
        end(agent)
        assert agent.wait(60) == 0
        agent = installed.start(*start.split(), log=log, **environment)
        machine.scale_in()
        until(lambda: "draining" in log.read_text() or state() == "idle", "it drains")
        until(lambda: len(machine.completed) == 2, "the machine may go")
        peak = Path(f"/proc/{inside(agent)}/status").read_text()
        assert int(peak.split("VmHWM:")[1].split()[0]) < 100 * 1024
        end(worker)
        end(agent)
        assert agent.wait(60) == 0
        worker.wait(60)
    said = log.read_text()
    assert "hunter2" not in said
    assert not any(line.startswith("CRITICAL") for line in said.splitlines())


WORKER = """
import signal
from spotkeeper_worker import Worker
with Worker("gpu-0") as worker:
    worker.ready()
    signal.pause()
"""
