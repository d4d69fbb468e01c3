"""A drill on a stack that works: the simulated cloud takes the instances that FIS interrupts."""

import json
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.functions.conftest import Stage, StageOf, document
from tests.operator.command import deploy, matches, refused, run, sleeps
from tests.operator.conftest import Days
from tests.operator.fis import EXPERIMENT, ROLE, Experiments


@pytest.fixture
def whole(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Stage:
    """A fleet of four that promises waits, sized by somebody else; its stack allows drills."""
    stage = stage_of(("main",))
    deploy(DrillRole=ROLE)
    put(stage)
    day = Days(stage)
    day.minutes(3)
    sleeps(monkeypatch, day.sleep)
    capsys.readouterr()
    return stage


def put(stage: Stage, **changes: object) -> None:
    promise = {"objective": {"wait_s": 10, "share": 0.95}, "sizing": {"enabled": False}}
    stage.put("main", json.dumps(document("main", **promise, **changes)))


@pytest.fixture
def fis(whole: Stage, monkeypatch: pytest.MonkeyPatch) -> Experiments:
    return Experiments(whole, monkeypatch)


@pytest.mark.usefixtures("fis")
def test_the_phases_of_an_interruption() -> None:
    code, out, err = run("drill", "main")
    assert code == 0, out + err
    matches("drill.txt", out)
    matches("drill_progress.txt", err)


def test_the_report_names_what_did_not_happen_in_time(whole: Stage, fis: Experiments) -> None:
    first = sorted(i.instance_id for i in whole.cloud.group("main-spot").instances)[:2]
    code, out, _ = run("drill", "main", "--count", "2", "--timeout", "60s")
    assert code == 1
    assert fis.instances == first
    assert ", ".join(first) in out
    assert "gone          NOT SEEN" in out
    assert "back on spot  NOT SEEN" in out


def test_a_call_that_is_throttled_ends_no_drill(
    whole: Stage, fis: Experiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instances are interrupted by then."""
    answer: Any = {"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}
    fis.fails["GetExperiment"] = ClientError(answer, "GetExperiment")
    sleep, waited = Days(whole).sleep, Counter[str]()

    def wait(seconds: float) -> None:
        sleep(seconds)
        waited["times"] += 1
        if waited["times"] == 3:
            fis.fails.clear()

    sleeps(monkeypatch, wait)
    code, out, err = run("drill", "main")
    assert code == 0, out + err
    throttled = "error: fis:GetExperiment: ThrottlingException: Rate exceeded"
    assert err.splitlines().count(throttled) == 2


def test_a_failed_experiment_is_reported_in_the_words_of_fis(fis: Experiments) -> None:
    """No template is left when nothing starts."""
    reason = "Target resolution returned more than 5 Spot Instances"
    fis.status, fis.reason = "failed", reason
    code, out, err = run("drill", "main")
    assert (code, out) == (2, "")
    assert f"error: experiment {EXPERIMENT} failed: {reason}" in " ".join(err.split())
    fis.asked.clear()
    answer: Any = {"Error": {"Code": "ServiceQuotaExceededException", "Message": "too many"}}
    fis.fails["StartExperiment"] = ClientError(answer, "StartExperiment")
    assert "too many" in refused("drill", "main")
    made = ["CreateExperimentTemplate", "StartExperiment", "DeleteExperimentTemplate"]
    assert fis.asked == made


def test_a_fleet_that_is_small_or_only_looks_or_is_paused_is_left_alone(whole: Stage) -> None:
    told = refused("drill", "main", "--count", "5")
    assert "only 4 spot instances are in service: --count 5 is too many" in told
    put(whole, mode="observe")
    assert "spotkeeper mode main act" in refused("drill", "main")
    put(whole)
    run("pause", "main", "--for", "1h", "--why", "new image")
    assert "spotkeeper resume main" in refused("drill", "main")
