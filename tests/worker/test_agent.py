"""Real agents beside the fake metadata: machines join, serve, drain and go."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotkeeper.border.search_log import read
from spotkeeper_worker import Worker
from spotkeeper_worker.testing import FakeMachine, until
from tests.ports import free_ports
from tests.worker.conftest import StartAgent
from tests.worker.logs import a_log
from tests.worker.page import ROOT

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]


def serve(worker: Worker, *names: str) -> None:
    for name in names:
        with worker.request(name, time.time()):
            pass


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A worker that joins the machine before it has an agent."""
    (tmp_path / "run" / "workers").mkdir(parents=True)
    with Worker("gpu-0", tmp_path / "run", margin_s=1.0, send_every_s=0.02) as made:
        yield made


def in_service(machine: FakeMachine, worker: Worker) -> None:
    """Have its machine get into service."""
    worker.ready()
    until(lambda: worker.may_take, "it serves")
    completes(machine, 1)


def completes(machine: FakeMachine, hooks: int) -> None:
    until(lambda: len(machine.completed) == hooks, f"hook {hooks} is complete")


def found(machine: FakeMachine) -> list[str]:
    return sorted(log["request_id"] for log in machine.logs())


def test_sigterm_lets_requests_finish(
    machine: FakeMachine, agent: StartAgent, worker: Worker, tmp_path: Path
) -> None:
    machine.launch()
    process = agent(send_after_s=30, stop_within_s=600)
    in_service(machine, worker)
    with worker.request("r-0", time.time()):
        process.send_signal(signal.SIGTERM)
        until(lambda: worker.draining, "it learns to drain")
        assert process.poll() is None
    assert process.wait(60) == 0
    # What the worker handed over after the last look waits for the next agent.
    agent()
    until(lambda: found(machine) == ["r-0"], "its log arrives")
    until(lambda: worker.may_take, "a new agent means serving again")


def test_an_agent_that_is_killed_loses_nothing_and_sends_nothing_twice(
    machine: FakeMachine, agent: StartAgent, worker: Worker
) -> None:
    machine.launch()
    process = agent(send_after_s=0.05)
    in_service(machine, worker)
    for n in range(10):
        serve(worker, *(f"r-{n}-{m}" for m in range(20)))
        process.kill()
        process.wait()
        serve(worker, f"r-{n}-x")
        process = agent(send_after_s=0.05)
    sent = sorted(f"r-{n}-{m}" for n in range(10) for m in (*range(20), "x"))
    until(lambda: len(found(machine)) >= len(sent), "every log arrives")
    assert found(machine) == sent


def test_a_shell_script_takes_part(machine: FakeMachine, agent: StartAgent, tmp_path: Path) -> None:
    """The whole protocol with flock, printf and mv."""
    machine.launch()
    agent()
    until((tmp_path / "spool" / "in").exists, "the agent runs")
    script = f"""
        exec 9> {tmp_path}/run/workers/script; flock 9
        printf 'ready=1 busy=00000 begun=0000000000\\n' >&9
        printf '%s' '{json.dumps(a_log())}' > {tmp_path}/spool/in/.new
        mv {tmp_path}/spool/in/.new {tmp_path}/spool/in/one.json
        read line
    """
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE) as shell:
        completes(machine, 1)
        until(lambda: found(machine) == ["r-0"], "its log arrives")
        shell.communicate(b"\n")


# --- ways to join that need no library ------------------------------------------------------------


def test_a_service_joins_by_settings(
    machine: FakeMachine, agent: StartAgent, tmp_path: Path
) -> None:
    machine.launch()
    port, access, drained = free_ports(1)[0], tmp_path / "access.json", tmp_path / "drained"
    access.touch()
    stop = ["sh", "-c", f"sleep 0.5; touch {drained}; exit 3"]
    (tmp_path / "agent.toml").write_text(
        f'ready = {{http = "http://127.0.0.1:{port}/", every_s = 0.1}}\n'
        f"on_drain = {json.dumps(stop)}\n"
        f'logs = {{follow = "{access}"}}\n'
    )
    agent(config=tmp_path / "agent.toml", unix_group="none", fleet="ocr")
    until((tmp_path / "run" / "notice.json").exists, "the agent runs")
    time.sleep(0.5)
    assert machine.completed == []
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as service:
        completes(machine, 1)
        entry = {"time": time.time(), "request_time": 0.2, "status": 200, "uri": "/ocr"}
        with access.open("a") as file:
            for number in range(10):
                file.write(json.dumps({**entry, "request_id": f"r-{number}"}) + "\n")
        until(lambda: len(machine.logs()) == 10, "its access log is followed")
        machine.scale_in()
        completes(machine, 2)
        assert drained.exists(), "the hook was completed before the command had ended"
        service.terminate()
    (told,) = [note for body in machine.bodies for note in read(body).notes if note[1].trouble]
    failed = f"{machine.instance_id}: on_drain: {' '.join(stop)} failed with status 3"
    assert (told[0], told[1].trouble) == ("ocr", failed)


def test_node_takes_part(machine: FakeMachine, agent: StartAgent, tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node here (apt-get install nodejs)")
    machine.launch()
    process = agent()
    run = tmp_path / "run"
    until((run / "agent.sock").exists, "the agent runs")
    script = f"exec 9> {run}/workers/web-0; flock 9; exec node worker/examples/worker.mjs"
    environment = {**os.environ, "SPOTKEEPER_RUN_DIR": str(run)}
    with subprocess.Popen(["sh", "-c", script], cwd=ROOT, env=environment) as node:
        for served in (10, 20, 30):
            # It outlives each agent, and sends again what that one has not confirmed.
            until(lambda served=served: len(machine.logs()) >= served, "it serves")  # type: ignore[misc]
            process.kill()
            process.wait()
            time.sleep(0.5)
            assert node.poll() is None
            process = agent()
        machine.scale_in()
        completes(machine, 2)
        node.terminate()
        assert node.wait(60) == 0
    ids = [log["request_id"] for log in machine.logs()]
    assert sorted(ids) == sorted(f"r-{number}" for number in range(1, len(ids) + 1))
    assert {log["worker_id"] for log in machine.logs()} == {"web-0"}
