"""Many jobs in one function: each has its turn, and none stops another."""

from collections import defaultdict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest

from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.jobs.job import Job, JobResources, JobSpec, OwnMachine, Report
from spotkeeper.domain.jobs.steps import Start, Step
from spotkeeper.job_ports import Kept, NotMade
from spotkeeper.ports import TimedOut, Unavailable, Unreadable
from spotkeeper.turns.keep_jobs import JobPorts, keep_jobs
from spotkeeper.turns.turn import TurnReport
from spotkeeper_lab.jobs import BEGAN, MINUTE, ADollar

FUNCTION_S = 60


@dataclass
class Many:
    """A table and a cloud of jobs whose look takes its time."""

    count: int
    look_s: float
    wrong: dict[str, Exception] = field(default_factory=dict)
    now: datetime = BEGAN
    turned: dict[str, list[datetime]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        machines = {"i-1": OwnMachine(attempt=1, at=BEGAN)}
        self.jobs = {
            f"job-{n}": Job(name=f"job-{n}", created_at=BEGAN, machines=machines, attempt=1)
            for n in range(self.count)
        }

    def turn(self, *reports: Report) -> TurnReport:
        prices = ADollar(lambda: False)
        ports = JobPorts(table=self, cloud=self, prices=prices, clock=lambda: self.now)
        return keep_jobs(reports, {}, ports, self.now)

    def names(self) -> Sequence[str]:
        return list(self.jobs)

    def naming(self, ids: Set[str], now: datetime) -> Sequence[str]:
        return [name for name, job in self.jobs.items() if ids & job.machines.keys()]

    def change(self, name: str, change: Callable[[Job], Job]) -> Job | None:
        self.jobs[name] = change(self.jobs[name])
        return self.jobs[name]

    def acquire(self, name: str, now: datetime) -> Kept | None:
        if error := self.wrong.get(f"acquire {name}"):
            raise error
        self.turned[name].append(self.now)
        spec = JobSpec(name=name, zones=("a",), on_demand_after=None)
        return Kept(spec=spec, job=self.jobs[name], version=0)

    def save(self, kept: Kept, job: Job) -> Kept:
        self.jobs[job.name] = job
        return replace(kept, job=job)

    def release(self, kept: Kept) -> None:
        if error := self.wrong.get(f"release {kept.job.name}"):
            raise error

    def record(self, record: DecisionRecord) -> None: ...

    def close(self, kept: Kept) -> None: ...

    def look(self, spec: JobSpec, job: Job, now: datetime) -> JobResources:
        self.now += timedelta(seconds=self.look_s)
        if error := self.wrong.get("look") or self.wrong.get(f"look {job.name}"):
            raise error
        return JobResources(now=now)

    def do(self, spec: JobSpec, job: Job, step: Step) -> str:
        assert isinstance(step, Start)
        raise NotMade("InsufficientInstanceCapacity")


def test_each_of_a_hundred_jobs_has_its_turn_and_those_without_are_named() -> None:
    many = Many(count=100, look_s=1)
    for minute in range(60):
        many.now = began = BEGAN + minute * MINUTE
        late = {*many.turn().late}
        turned = {name for name, times in many.turned.items() if times[-1] >= began}
        assert late == {*many.jobs} - turned
        assert many.now - began <= timedelta(seconds=FUNCTION_S)
    for times in many.turned.values():
        gaps = [b - a for a, b in zip((BEGAN, *times), (*times, many.now), strict=True)]
        assert max(gaps) <= timedelta(minutes=15)


def test_reports_of_all_jobs_are_kept_and_their_jobs_are_first() -> None:
    many = Many(count=100, look_s=20)
    reports = [
        Report(job=name, attempt=1, instance_id="i-1", generation=1, seq=1, event="left", at=BEGAN)
        for name in ("job-7", "job-70", "job-99")
    ]
    many.turn(*reports)
    assert all(many.jobs[it.job].reports[1].left for it in reports)
    assert {*many.turned} <= {it.job for it in reports}


@pytest.mark.parametrize("what", ["acquire", "release", "look"])
def test_one_job_never_stops_another(what: str) -> None:
    many = Many(count=3, look_s=0.1)
    wrong = OverflowError("a defect") if what == "look" else Unreadable("a document")
    many.wrong = {f"{what} job-0": wrong, "acquire job-1": Unavailable("table")}
    report = many.turn()
    failed = {record.fleet for record in report.records if record.error}
    assert failed == ({"job-1"} if what == "release" else {"job-0", "job-1"})
    assert report.defects == ([wrong] if what == "look" else [])
    assert all(record.outcomes for record in report.records if not record.error)
    assert "job-2" in [record.fleet for record in report.records]


def test_an_ec2_that_hangs_ends_no_invocation_half_way() -> None:
    many = Many(count=20, look_s=12, wrong={"look": TimedOut("no answer")})
    report = many.turn()
    assert many.now - BEGAN <= timedelta(seconds=FUNCTION_S)
    assert report.failed.union(report.late) == {*many.jobs}
