"""Ways to join that need no library, and another user of the machine: with real processes."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotkeeper_worker.notice import read_notice
from spotkeeper_worker.roster import Place
from spotkeeper_worker.testing import FakeMachine, FakeServer, start_agent, until
from tests.worker.conftest import StartAgent
from tests.worker.page import ROOT

pytestmark = [pytest.mark.make_e2e, pytest.mark.allow_hosts(["127.0.0.1"])]
NOBODY = 65_534


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


APP = """
from fastapi import FastAPI
from spotkeeper_worker.asgi import SpotkeeperMiddleware
app = FastAPI()
app.add_middleware(SpotkeeperMiddleware)
@app.get("/ocr")
def ocr():
    return "text"
"""


def test_a_fastapi_service_joins_serves_and_leaves(
    machine: FakeMachine, agent: StartAgent, tmp_path: Path
) -> None:
    machine.launch()
    agent()
    (tmp_path / "service.py").write_text(APP)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "service:app", "--port", str(port)]
    environment = {**os.environ, "SPOTKEEPER_RUN_DIR": str(tmp_path / "run")}
    until((tmp_path / "run" / "agent.sock").exists, "the agent runs")
    with subprocess.Popen(command, cwd=tmp_path, env=environment) as service:
        url = f"http://127.0.0.1:{port}"
        until(lambda: bool(machine.completed), "the launch hook is complete")
        until(lambda: status(f"{url}/spotkeeper/ready") == 200, "it serves")
        assert [status(f"{url}/ocr") for _ in range(20)] == [200] * 20
        machine.scale_in()
        until(lambda: status(f"{url}/spotkeeper/ready") == 503, "it drains")
        assert status(f"{url}/ocr") == 503
        until(lambda: len(machine.completed) == 2, "the terminate hook is complete")
        until(lambda: len(machine.logs()) == 20, "all are logged")
        service.terminate()


def test_a_service_that_knows_nothing_joins_by_settings(
    machine: FakeMachine, agent: StartAgent, tmp_path: Path
) -> None:
    machine.launch()
    port, access, drained = free_port(), tmp_path / "access.json", tmp_path / "drained"
    access.touch()
    stop = ["sh", "-c", f"sleep 0.5; touch {drained}"]
    (tmp_path / "agent.toml").write_text(
        f'ready = {{http = "http://127.0.0.1:{port}/", every_s = 0.1}}\n'
        f"on_drain = {json.dumps(stop)}\n"
        f'logs = {{follow = "{access}"}}\n'
    )
    agent(config=tmp_path / "agent.toml", unix_group="none")
    until((tmp_path / "run" / "notice.json").exists, "the agent runs")
    time.sleep(0.5)
    assert machine.completed == []
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as service:
        until(lambda: bool(machine.completed), "the launch hook is complete")
        entry = {"time": time.time(), "request_time": 0.2, "status": 200, "uri": "/ocr"}
        with access.open("a") as file:
            for number in range(10):
                file.write(json.dumps({**entry, "request_id": f"r-{number}"}) + "\n")
        until(lambda: len(machine.logs()) == 10, "its access log is followed")
        machine.scale_in()
        until(lambda: len(machine.completed) == 2, "the terminate hook is complete")
        assert drained.exists(), "the hook was completed before the command had ended"
        service.terminate()


def test_a_worker_in_node_takes_part(
    machine: FakeMachine, agent: StartAgent, tmp_path: Path
) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node here (apt-get install nodejs)")
    machine.launch()
    agent()
    run = tmp_path / "run"
    until((run / "agent.sock").exists, "the agent runs")
    until((run / "notice.json").exists, "the agent tells")
    script = f"exec 9> {run}/workers/web-0; flock 9; exec node worker/examples/worker.mjs"
    environment = {**os.environ, "SPOTKEEPER_RUN_DIR": str(run)}
    with subprocess.Popen(["sh", "-c", script], cwd=ROOT, env=environment) as node:
        until(lambda: len(machine.logs()) >= 10, "it serves")
        machine.scale_in()
        until(lambda: len(machine.completed) == 2, "the machine may go")
        node.terminate()
        assert node.wait(20) == 0
    assert {log["worker_id"] for log in machine.logs()} == {"web-0"}


# --- another user ---------------------------------------------------------------------------------

TRIES = """
import json, os, pathlib, socket, sys
run, spool = map(pathlib.Path, sys.argv[1:])
def tries(name, does):
    try:
        does()
    except OSError as error:
        print(name, type(error).__name__)
    else:
        print(name, "done")
def tell():
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(str(run / "agent.sock"))
        log = {"request_id": "forged\\nCRITICAL forged", "worker_id": "gpu-0"}
        agent.sendall(json.dumps({"logs": [log], "session": "a", "batch": 1}).encode() + b"\\n")
        agent.recv(1000)
def large():
    with (spool / "in" / "large.json").open("wb") as file:
        file.truncate(1 << 40)
tries("fifo in the spool", lambda: os.mkfifo(spool / "in" / "x.json"))
tries("fifo in the roster", lambda: os.mkfifo(run / "workers" / "gpu-9"))
tries("endless", lambda: (spool / "in" / "z.json").symlink_to("/dev/zero"))
tries("secret", lambda: (spool / "in" / "s.json").symlink_to(spool / "secret"))
tries("large", large)
tries("name", lambda: (spool / "in" / "x\\nCRITICAL forged.json").write_text("{"))
tries("socket", tell)
tries("notice", (run / "notice.json").unlink)
tries("lock", lambda: (run / "agent.lock").unlink())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user reaches; those of pytest are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes are started by root")
@pytest.mark.parametrize("group", ["daemon", "no-such-group"])
def test_another_user_neither_stops_the_agent_nor_forges_a_line(
    machine: FakeMachine, server: FakeServer, folder: Path, group: str
) -> None:
    machine.launch()
    (folder / "said").touch(0o600)
    said = (folder / "said").open("ab")
    agent = start_agent(folder, server, said, unix_group=group, hook_settles_s=3)
    try:
        until((folder / "run" / "agent.sock").exists, "the agent runs")
        secret = folder / "spool" / "secret"
        secret.write_text('["hunter2"]')
        secret.chmod(0o600)
        place = Place(folder / "run", "gpu-0")
        place.ready()
        until(lambda: bool(machine.completed), "it serves")
        tried = subprocess.run(
            ["/usr/bin/python3", "-c", TRIES, str(folder / "run"), str(folder / "spool")],
            user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, text=True, check=True,
            timeout=60,
        ).stdout  # fmt: skip
        # Whatever it may put there without a group, the agent goes on, and says so on one line.
        denied = tried.count("PermissionError")
        assert denied == (9 if group == "daemon" else 2), tried
        machine.scale_in()
        until(lambda: len(machine.completed) == 2, "the drain is complete")
        notice = read_notice(folder / "run")
        assert notice is not None and notice.draining
        status = Path(f"/proc/{agent.pid}/status").read_text()
        (memory,) = (line.split()[1] for line in status.splitlines() if "VmHWM" in line)
        assert int(memory) < 100_000
        place.close()
    finally:
        agent.kill()
        agent.wait()
        said.close()
    lines = (folder / "said").read_text().splitlines()
    assert not [line for line in lines if line.startswith("CRITICAL")]
    assert not [line for line in lines if "hunter2" in line]
