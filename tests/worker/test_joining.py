"""Ways to join that need no library, with real processes."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from spotkeeper_worker.testing import FakeMachine, until
from tests.ports import free_ports
from tests.worker.conftest import StartAgent
from tests.worker.page import ROOT

pytestmark = [pytest.mark.make_e2e, pytest.mark.allow_hosts(["127.0.0.1"])]


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
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
    (port,) = free_ports(1)
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
    port, access, drained = free_ports(1)[0], tmp_path / "access.json", tmp_path / "drained"
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
        assert node.wait(60) == 0
    assert {log["worker_id"] for log in machine.logs()} == {"web-0"}
