"""A worker that is its own agent, with boto3's permissions."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from spotkeeper_worker import Worker
from spotkeeper_worker.agent.credentials import CredentialChain, NoCredentials
from spotkeeper_worker.agent.loop import AnotherAgent
from spotkeeper_worker.alone import Alone, BotoChain
from spotkeeper_worker.states import Hook
from spotkeeper_worker.testing import FakeMachine, FakeServer, until
from tests.worker.conftest import program
from tests.worker.management import TOLD, Manage, manage

__all__ = ["manage"]

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
QUICK = {"poll_s": 0.1, "tick_s": 0.05, "settle_s": 0.1, "send_after_s": 0.1, "hook_settles_s": 3}


@pytest.fixture(autouse=True)
def _pretended(server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Permissions that only boto3 finds: a profile whose keys a program prints."""
    keys = {"Version": 1, "AccessKeyId": "AKIABOTO", "SecretAccessKey": "s", "SessionToken": "t"}
    (tmp_path / "keys").write_text(json.dumps(keys))
    config = tmp_path / "config"
    config.write_text(f"[profile team]\ncredential_process = cat {tmp_path / 'keys'}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    own = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    for name, value in (server.environment() | own | {"AWS_PROFILE": "team"}).items():
        monkeypatch.setenv(name, value)


def serve(worker: Worker, requests: int) -> None:
    worker.ready()
    until(lambda: worker.may_take, "it serves")
    for number in range(requests):
        with worker.request(f"r-{number}", time.time()):
            pass


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_it_does_all_that_an_agent_does_until_it_is_closed(
    machine: FakeMachine, manage: Manage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program(tmp_path / "nvidia-smi", "echo 'GPU 0: NVIDIA A10G (UUID: a)'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    looks: dict[str, Any] = {"request_queue": manage(200, json.dumps(TOLD)), "look_every_s": 0.05}
    machine.launch()
    with Alone("gpu-0", gpu="on", **QUICK, **looks) as worker:
        assert {"gpu", "queue"} <= threads()
        serve(worker, 10)
        until(lambda: len(machine.looks()) > 1, "it has looked twice")
        until(lambda: bool(machine.completed), "the launch hook is complete")
        machine.scale_in()
        until(lambda: worker.draining, "it learns to drain")
        assert not worker.may_take
        until(lambda: len(machine.completed) == len(Hook), "both hooks are complete")
    found = machine.logs()
    assert sorted(log["request_id"] for log in found) == [f"r-{n}" for n in range(10)]
    assert {(log["worker_id"], log["instance_id"]) for log in found} == {
        ("gpu-0", machine.instance_id)
    }
    assert {(each["ready"], each["unacknowledged"]) for each in machine.looks()} == {(5, 2)}
    until(lambda: not {"gpu", "queue"} & threads(), "it has ended")


def test_a_child_that_leaves_ends_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was forked within the block, and closes what it has."""
    with Alone("gpu-0", cluster="onprem", region="us-east-1", **QUICK) as worker:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            worker.close()
        assert worker.run_dir.exists()
        assert "agent" in threads()
    assert not worker.run_dir.exists()


def test_permissions_are_those_that_boto3_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoCredentials):
        CredentialChain(None, {}).get(time.time())
    found = BotoChain(None, {}).get(time.time())
    assert (found.key, found.token) == ("AKIABOTO", "t")
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(NoCredentials, match=r"boto3: .*other"):
        BotoChain(None, {}).get(time.time())


@pytest.mark.make_e2e
def test_a_refused_start_leaves_nothing_behind(tmp_path: Path) -> None:
    folders = {"run_dir": tmp_path / "run", "spool_dir": tmp_path / "spool"}
    onprem: dict[str, Any] = {"cluster": "onprem", "region": "us-east-1", **QUICK, **folders}
    with pytest.raises(ValueError, match="cannot be the name of a worker"):
        Alone("gpu 0", **onprem)
    with Alone("gpu-0", **onprem) as worker:
        serve(worker, 1)
        with pytest.raises(AnotherAgent, match="one is enough"):
            Alone("gpu-1", **onprem)


@pytest.mark.make_e2e
def test_an_error_that_is_not_caught_is_one_line() -> None:
    """Its exit code is that of any uncaught error."""
    script = """
from spotkeeper_worker.alone import Alone
try:
    Alone(cluster="onprem", stack="spotkeeper", colour="red")
except Exception:
    pass
else:
    raise SystemExit("it began")
Alone(cluster="onprem", stack="spotkeeper", region="us-east-1")
"""
    keys = {"AWS_ACCESS_KEY_ID": "AKIATESTING", "AWS_SECRET_ACCESS_KEY": "testing"}
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SPOTKEEPER_"))}
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_EC2_METADATA_DISABLED": "true"}
    program = [sys.executable, "-c", script]
    ran = subprocess.run(
        program, env=clean | keys | nowhere, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1), ran.stderr
    assert ran.stderr.startswith("AwsError: GetParameter: no answer: Connection")
