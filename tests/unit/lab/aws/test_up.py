import fcntl
import os
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import pytest

from spotkeeper_lab.aws import ministack
from spotkeeper_lab.run.up import FOLDER, PYTHON, LabError, LabSettings, running
from tests.ports import free_ports
from tests.template.stack import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose endpoint ends at once and says why."""
    python = tmp_path / PYTHON
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho ministack is of another version\nexit 1\n")
    python.chmod(0o755)
    return tmp_path


def refusal(checkout: Path, port: int = 4566) -> str:
    with pytest.raises(LabError) as caught, running(LabSettings(port=port), checkout):
        pytest.fail("a lab came up")
    return str(caught.value)


def test_another_release_is_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ministack, "version", lambda _: "9.9.9")
    with pytest.raises(ministack.SeamError, match=f"9.9.9 is installed and {ministack.MINISTACK}"):
        ministack.check_release()


def test_without_its_environment_the_lab_says_how_to_make_it(tmp_path: Path) -> None:
    assert "make local-aws" in refusal(tmp_path)


def test_physics_that_the_cloud_does_not_know_are_named() -> None:
    with pytest.raises(ValueError, match="nope"):
        LabSettings.model_validate_json('{"physics": {"nope": 2}}')


@pytest.mark.make_e2e
@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.enable_socket
def test_an_occupied_port_is_named(checkout: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"port {port} is in use" in refusal(checkout, port)


def test_a_second_lab_is_refused(checkout: Path) -> None:
    folder = checkout / FOLDER
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        assert "is up already" in refusal(checkout)


@pytest.mark.make_e2e
@pytest.mark.enable_socket
def test_an_endpoint_that_ends_at_once_says_why(checkout: Path) -> None:
    assert "ministack is of another version" in refusal(checkout, *free_ports(1))


@pytest.mark.make_e2e
@pytest.mark.enable_socket
@pytest.mark.allow_hosts(["127.0.0.1"])
def test_make_local_aws_comes_up_and_ends_with_ctrl_c() -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 4566)) == 0:
            pytest.skip("a local AWS runs on this machine already")
    # `make e2e` has built it, and other tests use that build. A suite in the background ignores
    # SIGINT, and so would its children.
    with subprocess.Popen(
        ["make", "--assume-old=local-build", "local-aws"],
        cwd=ROOT,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as lab:
        assert lab.stdout is not None
        shown = next((line for line in lab.stdout if "The local AWS is up" in line), "")
        os.killpg(lab.pid, signal.SIGINT)
        try:
            lab.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(lab.pid, signal.SIGKILL)
            raise
    assert shown
