"""Real agents and a real training over S3 by moto, killed and warned at random moments."""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from bench import jobs
from spotkeeper_worker.testing import until

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]

# Appends a line; the third machine finds two.
COUNTS = """
import os, pathlib, time
log = pathlib.Path(os.environ["SPOTKEEPER_CHECKPOINTS"]).parent / "log"
with log.open("a") as file:
    file.write(os.environ["SPOTKEEPER_ATTEMPT"] + " ")
if len(log.read_text().split()) < 3:
    time.sleep(600)
"""


def test_machines_are_killed_and_the_weights_are_those_of_an_uninterrupted_run() -> None:
    ended, wrong = jobs.disturbed(kills=12)
    assert wrong == []
    assert sum(ended.values()) >= 12


def test_a_volume_follows_the_job_over_a_killed_agent_and_a_warning(tmp_path: Path) -> None:
    volume = "vol-0abc"
    with jobs.s3() as endpoint:
        jobs.client(endpoint).create_bucket(Bucket=jobs.BUCKET)
        run = jobs.Run(endpoint, tmp_path, "on-a-volume", "publish", random.Random(1), 0)
        document = {
            "version": 1, "name": run.job, "command": ["python3", "-c", COUNTS], "code": None,
            "git": None, "user": None, "environment": {}, "end": {},
            "state": {"volume": {"mount": str(tmp_path / "data"), "size_gib": 1}},
        }  # fmt: skip
        run.put("document.json", json.dumps(document).encode())
        disk = tmp_path / "disks" / volume
        disk.mkdir(parents=True)

        def lines() -> list[str]:
            log = disk / "content" / "log"
            return log.read_text().split() if log.exists() else []

        def end_commands() -> None:
            for pid in jobs.processes(tmp_path / "data"):
                os.kill(pid, signal.SIGKILL)

        def launch(generation: int) -> jobs.Host:
            host = run.launch()
            assert host.machine.tags is not None
            host.machine.tags["spotkeeper:volume"] = volume
            until(lambda: "proved" in [each["event"] for each in host.reports()], "proved", 60)
            host.machine.tags["spotkeeper:grant"] = f"{generation} {volume}"
            return host

        try:
            first = launch(1)
            until(lambda: lines() == ["1"], "the command writes", 60)
            # systemd ends the command with its agent; this stands for it.
            assert first.agent is not None
            first.agent.kill()
            first.agent.wait()
            end_commands()
            first.start()
            until(lambda: lines() == ["1", "1"], "it is started again", 60)
            first.machine.interrupt(60)
            until(lambda: first.is_off, "it leaves", 60)
            assert not (tmp_path / "data").exists(), "unmounted"
            assert first.reports()[-1]["event"] == "left"
            second = launch(2)
            until(lambda: second.is_off, "the job is done", 60)
            assert lines() == ["1", "1", "2"]
            assert (run.head()["done"], second.reports()[-1]["event"]) == (True, "exited")
        finally:
            run.close()
            end_commands()
