"""A job with a deadline: on spot while one more restart fits, and never late."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.jobs.deadline import is_urgent, work_left
from spotkeeper.domain.jobs.decide import decide
from spotkeeper.domain.jobs.job import (
    ON_DEMAND,
    SPOT,
    AttemptReport,
    Job,
    JobResources,
    JobSpec,
    Machine,
    OwnMachine,
    Report,
    merged,
    step_number,
)
from spotkeeper.domain.jobs.steps import Write
from spotkeeper_lab.jobs import NAME, JobWorld

BEGAN = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
SPEC = JobSpec(name=NAME, zones=("a",), deadline=30 * HOUR, work=20 * HOUR)
JOB = Job(name=NAME, created_at=BEGAN)


@pytest.mark.parametrize(
    ("spec", "worked_h", "step", "at_h", "urgent"),
    [
        pytest.param({}, 0.0, None, 8.9, False, id="20.6 h and one restart fit"),
        pytest.param({}, 0.0, None, 9.1, True, id="they do not"),
        pytest.param({}, 10.0, None, 19.2, False, id="half is done"),
        pytest.param({}, 10.0, None, 19.4, True, id="half is done, later"),
        pytest.param({"deadline": BEGAN + 22 * HOUR}, 0.0, None, 0.9, False, id="an instant"),
        pytest.param({"deadline": BEGAN + 22 * HOUR}, 0.0, None, 1.1, True, id="the instant nears"),
        pytest.param({"steps": 100}, 10.0, "step-50", 19.2, False, id="the expected pace"),
        pytest.param({"steps": 100}, 10.0, "w.50-0.23.h5", 19.2, False, id="a loss is no step"),
        pytest.param({"steps": 100}, 10.0, "step-25", 2.0, True, id="slower than expected"),
        pytest.param({"steps": 100}, 10.0, "step-90", 27.5, False, id="faster than expected"),
        pytest.param({"deadline": None}, 0.0, None, 1e4, False, id="no deadline"),
    ],
)
def test_a_job_is_urgent_once_no_more_restart_fits(
    spec: dict[str, Any], worked_h: float, step: str | None, at_h: float, urgent: bool
) -> None:
    reports = {1: AttemptReport(step=step), 2: AttemptReport()}
    job = replace(JOB, worked_h=worked_h, paced=(step_number(step), worked_h), reports=reports)
    assert is_urgent(replace(SPEC, **spec), job, BEGAN + at_h * HOUR) is urgent


def test_work_is_what_was_committed_and_its_pace_is_that_of_steps() -> None:
    """Reports repeat and overtake one another; what a machine lost was never work."""
    job = replace(JOB, machines={"i-1": OwnMachine(attempt=1, at=BEGAN)}, machine="i-1", attempt=1)

    def report(seq: int, minutes: float, event: str, step: str | None, since_s: float) -> Report:
        at = BEGAN + timedelta(minutes=minutes)
        return Report(
            job=NAME, attempt=1, instance_id="i-1", generation=1, seq=seq, event=event, at=at,
            step=step, uncommitted_s=since_s,
        )  # fmt: skip

    first = report(1, 6, "running", None, 60)
    reports = [
        first,
        report(2, 65, "committed", "000100", 0),
        report(3, 125, "committed", "200", 0),
    ]
    for each in (*reports, first, reports[1], report(4, 170, "running", "200", 2700)):
        job = merged(job, each)
    assert (job.worked_h, job.commit_h, job.paced) == (2.0, 1.0, (200, 2.0))
    assert work_left(replace(SPEC, steps=500), job) == 3 * HOUR
    assert work_left(SPEC, job) == 18 * HOUR


def test_many_refused_launches_hide_no_progress() -> None:
    reports = {1: AttemptReport(step="80"), 20: AttemptReport()}
    machines = {"i-20": OwnMachine(attempt=20, at=BEGAN)}
    job = replace(JOB, attempt=20, machine="i-20", machines=machines, reports=reports)
    gone = {"i-20": Machine(attempt=20, zone="a", market=SPOT, state="gone")}
    step = decide(SPEC, job, JobResources(now=BEGAN + HOUR, machines=gone))
    assert isinstance(step, Write)
    assert step.job.step == "80"


@pytest.mark.parametrize(
    ("expected", "deadline", "on_demand", "launches"),
    [
        pytest.param(200, 300, (0, 0), 1, id="there is time for spot"),
        pytest.param(260, 280, (60, 90), 2, id="faster than expected: to spot, after an hour"),
        pytest.param(260, 250, (200, 210), 1, id="faster, and no time for two restarts"),
        pytest.param(60, 225, (170, 210), 2, id="slower than expected: off spot"),
    ],
)
def test_the_pace_of_steps_moves_a_job_between_markets(
    expected: int, deadline: int, on_demand: tuple[int, int], launches: int
) -> None:
    """200 minutes of work, and `expected` ones; spot and on-demand are there."""
    due, work = timedelta(minutes=deadline), timedelta(minutes=expected)
    spec = replace(SPEC, deadline=due, work=work, steps=200)
    world = JobWorld(spec=spec, work=200, interval=10)
    world.capacity |= {("a", SPOT): True, ("a", ON_DEMAND): True}
    assert world.live().mails
    assert world.mailed_at <= deadline
    least, most = on_demand
    assert least <= world.paid_on_demand <= most
    assert world.item.job.attempt == launches


def test_where_on_demand_is_refused_an_urgent_job_takes_spot() -> None:
    spec = replace(SPEC, deadline=timedelta(minutes=60), work=timedelta(minutes=60))
    world = JobWorld(spec=spec, work=60, interval=10)
    world.capacity |= {("a", SPOT): True, ("a", ON_DEMAND): False}
    assert world.live().mails
    assert world.mailed_at < 90


@given(st.lists(st.tuples(st.integers(0, 400), st.sampled_from(("dry", "back", "loss")))))
def test_no_job_is_late_whatever_spot_does(changes: list[tuple[int, str]]) -> None:
    spec = replace(SPEC, deadline=timedelta(minutes=300), work=timedelta(minutes=200))
    world = JobWorld(spec=spec, work=200, interval=10, notice=1)
    world.capacity |= {("a", SPOT): True, ("a", ON_DEMAND): True}
    world.live([(at, what, "a") for at, what in sorted(changes)])
    assert world.mails
    assert world.mailed_at <= 300
    assert not world.broken
