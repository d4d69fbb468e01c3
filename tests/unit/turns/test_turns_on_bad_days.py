"""Bad days of the search logs, from the queue's messages to what the turn asks for.

Each holds or degrades as docs/operations.md says: never in on missing data, never beyond the bound.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random

import pytest

from spotkeeper.border.queue_messages import Message
from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper.turns.collect_search_logs import collect
from spotkeeper_lab.fakes import FakeLoadHistories, instant
from tests.builders import fleet
from tests.unit.turns.stage import START_S, Stage

SPOT_MAX = 30
SHIPPED_S = 30


@dataclass(slots=True)
class Day:
    """A stage whose workers serve requests of 2 s and ship their logs every 30 s as messages.

    `ahead_s` is how far all clocks are ahead of the queue's.
    """

    stage: Stage
    ahead_s: float = 0.0
    wait_s: float = 0.5
    random: Random = field(default_factory=lambda: Random(0))
    messages: list[Message] = field(default_factory=list)
    desired: list[int] = field(default_factory=list)

    def minutes(
        self,
        first: int,
        last: int,
        busy: float,
        workers: Sequence[tuple[str, str]] | None = None,
        waits: float = 0.0,
    ) -> DecisionRecord:
        """Let workers be busy for a share, a turn a minute; answers the last turn's record.

        Waits grow by `waits` seconds a second.
        """
        records: list[DecisionRecord] = []
        for minute in range(first, last):
            who = self.cloud() if workers is None else workers
            self.wait_s += 60 * waits
            for end_s in (60 * minute - SHIPPED_S, 60 * minute):
                for worker in who:
                    self.send(self.served(worker, START_S + end_s, busy), START_S + end_s)
            records.append(self.turn(minute))
        return records[-1]

    def turn(self, minute: int) -> DecisionRecord:
        (record,) = self.stage.turn(minute).records
        self.desired.append(self.stage.cloud.group("spot").desired)
        return record

    def cloud(self) -> list[tuple[str, str]]:
        """The instances in service, with a worker each."""
        return [(f"gpu-{i}", i) for i in self.stage.spot]

    def served(self, worker: tuple[str, str], end_s: float, busy: float) -> list[dict[str, object]]:
        every_s = 2.0 / busy
        ends = [end_s - n * every_s for n in range(math.floor(SHIPPED_S / every_s))]
        return [self.log(worker, end, 2.0) for end in ends]

    def log(self, worker: tuple[str, str], end_s: float, service_s: float) -> dict[str, object]:
        name, instance_id = worker
        ended = instant(end_s) + timedelta(seconds=self.ahead_s)
        began = ended - timedelta(seconds=service_s)
        where = {"cluster": "aws", "instance_id": instance_id}
        return {
            "version": 1,
            "request_id": f"{name}-{instance_id}-{end_s:.3f}",
            "worker_id": name,
            "enqueued_at": (began - timedelta(seconds=self.wait_s)).isoformat(),
            "started_at": began.isoformat(),
            "finished_at": ended.isoformat(),
            "status": "ok",
            **(where if instance_id else {"cluster": "onprem"}),
        }

    def send(self, logs: Iterable[dict[str, object]], sent_s: float) -> None:
        """Have the queue deliver one message."""
        message = Message(
            message_id=f"m-{len(self.messages)}", body=json.dumps([*logs]), sent_at=instant(sent_s)
        )
        self.messages.append(message)
        self.deliver([message])

    def deliver(self, messages: Sequence[Message]) -> None:
        collect(messages, self.stage.table, {"ocr"}, "ocr")


@pytest.fixture
def day() -> Day:
    """A day of a fleet with an objective."""
    return _day("objective")


def _day(rule: str) -> Day:
    """A day of a fleet of four instances, sized by either rule; its bound is 30."""
    stage = Stage(4)
    objective = Objective(wait_s=10, share=0.95) if rule == "objective" else None
    stage.fleet = replace(fleet(spot_max=SPOT_MAX), objective=objective)
    stage.ports = replace(stage.ports, histories=FakeLoadHistories())
    return Day(stage)


def onprem(count: int) -> list[tuple[str, str]]:
    return [(f"rack-{n}", "") for n in range(count)]


@pytest.mark.parametrize(("rule", "ahead_s"), [("load rate", 240.0), ("objective", 36_000.0)])
def test_clocks_that_are_ahead_are_put_right(rule: str, ahead_s: float) -> None:
    right, ahead = _day(rule), _day(rule)
    ahead.ahead_s = ahead_s
    for each in (right, ahead):
        each.minutes(0, 20, 0.9)
    assert ahead.desired == right.desired


def test_clocks_hours_behind_hold_the_fleet_and_ring(day: Day) -> None:
    """Local time that is written as UTC: every log seems long over, though workers are full."""
    day.ahead_s = -5 * 3600.0
    record = day.minutes(0, 20, 0.99)
    assert (record.rule, set(day.desired)) == ("stale search logs", {4})
    assert "stale-search-logs" in record.alarms
    assert "arrived over 15 min late: are the workers' clocks right?" in record.reason


def test_replayed_messages_change_nothing(day: Day) -> None:
    day.minutes(0, 20, 0.9)
    before = day.turn(20)
    flood = day.messages * 3
    day.random.shuffle(flood)
    later = [replace(m, sent_at=instant(START_S + 60 * 20)) for m in day.messages[-40:]]
    for messages in (flood, later):
        day.deliver(messages)
    after = day.turn(20)
    assert after.seen == before.seen
    assert day.desired[-1] == day.desired[-2]


def test_a_flood_of_forged_logs_ends_at_the_bound_and_lowers_nothing(day: Day) -> None:
    """Where it is known how many workers are on premises."""
    day.stage.fleet = replace(day.stage.fleet, onprem_workers=1)
    day.minutes(0, 15, 0.9)
    now_s = START_S + 60 * 15
    for n in range(50):
        forged = [day.log((f"forged-{n}-{k}", ""), now_s - k, 60.0) for k in range(60)]
        day.send(forged, now_s)
    for minute in (15, 16, 17):
        day.turn(minute)
        assert day.desired[-1] <= max(2 * day.desired[-2], day.desired[-2] + 10)
    assert day.desired[-1] == SPOT_MAX
    assert day.desired == sorted(day.desired)


def test_one_log_of_a_day_is_not_a_day_of_load() -> None:
    """It drove a fleet of nine to forty: its worker can have served no more than the window."""
    day = _day("load rate")
    day.minutes(0, 30, 0.7)
    before = day.desired[-1]
    day.send([day.log(day.cloud()[0], START_S + 1800, 86_390.0)], START_S + 1800)
    for minute in range(30, 40):
        day.minutes(minute, minute + 1, 0.7 * before / len(day.stage.spot))
    assert max(day.desired[30:]) <= before + 2


def test_a_cluster_that_dies_at_once_is_alarmed_about_and_made_up_for(day: Day) -> None:
    before = with_machines_of_its_own(day)
    # Eight erlangs for what is left: half of them wait.
    record = day.minutes(36, 46, 1.0, waits=0.5)
    assert record.seen["OnPremWorkersSuspect"] == 6
    assert "onprem-workers" in record.alarms
    assert min(day.desired[36:]) >= before
    assert before < day.desired[-1] <= SPOT_MAX


def test_a_cloud_that_dies_at_once_is_replaced_within_the_budget_and_made_no_smaller(
    day: Day,
) -> None:
    before = with_machines_of_its_own(day)
    replaced = [
        day.minutes(minute, minute + 1, 1.0, onprem(6), waits=0.25).seen["WorkersReplaced"]
        for minute in range(36, 56)
    ]
    assert sum(replaced) == day.stage.fleet.worker_health.replacements_per_hour
    assert min(day.desired[36:]) >= before
    assert max(day.desired) <= SPOT_MAX


def with_machines_of_its_own(day: Day) -> int:
    """Let six on-premises workers and the cloud's serve 36 minutes; answers the size."""
    day.stage.fleet = replace(day.stage.fleet, onprem_workers=6)
    for minute in range(36):
        who = [*day.cloud(), *onprem(6)]
        day.minutes(minute, minute + 1, 8.0 / len(who), who)
    return day.desired[-1]


def steadily(
    day: Day, workers: Sequence[str], erlangs: float, service_s: float
) -> Callable[[int, int, str], None]:
    """Have workers on premises and the cloud's serve one request after the other, out of step."""
    due: dict[tuple[str, str], float] = {}

    def minutes(first: int, last: int, release: str) -> None:
        for minute in range(first, last):
            who = [*day.cloud(), *[(f"{release}-{name}", "") for name in workers]]
            every_s = service_s * max(1.0, len(who) / erlangs)
            logs: list[dict[str, object]] = []
            for number, worker in enumerate(who):
                begun = 60 * (minute - 1) + service_s + number * 0.618 % 1 * every_s
                due.setdefault(worker, begun)
                while due[worker] <= 60 * minute:
                    logs.append(day.log(worker, START_S + due[worker], service_s))
                    due[worker] += every_s
            day.send(logs, START_S + 60 * minute)
            day.turn(minute)

    return minutes


@pytest.mark.parametrize("service_s", [10.0, 42.0])
def test_workers_on_premises_that_start_again_under_new_ids_end_nobody(
    day: Day, service_s: float
) -> None:
    """Old ids stay in the window for minutes; all of the cloud's workers were ended for them."""
    minutes = steadily(day, [f"{n}" for n in range(20)], 24.0, service_s)
    minutes(0, 40, "one")
    before = day.desired[-1]
    minutes(40, 60, "two")
    assert before > 3
    # By then its shadows may know a cheaper rule: the load of 24 is served with some to spare.
    assert min(day.desired[40:]) >= min(before - 2, 24 + 2 - 20)
    assert max(day.desired[40:]) <= before + 3


def test_more_workers_on_premises_are_used_before_the_cloud_once_they_have_stayed(
    day: Day,
) -> None:
    def minutes(first: int, last: int, rack: int) -> None:
        for minute in range(first, last):
            busy = min(1.0, 6.0 / (rack + len(day.cloud())))
            day.minutes(minute, minute + 1, busy, workers=[*day.cloud(), *onprem(rack)])

    minutes(0, 30, 4)
    before = day.desired[-1]
    minutes(30, 36, 12)
    assert day.desired[-1] == before > 0
    minutes(36, 60, 12)
    assert day.desired[-1] == 0


def test_one_request_that_waited_long_by_itself_is_no_queue(day: Day) -> None:
    """A lost worker's request returns after its visibility timeout: 5 workers became 20."""
    day.minutes(0, 60, 0.8)
    before = day.desired[-1]
    for minute in range(60, 63):
        worker = day.cloud()[0]
        again = day.log(worker, START_S + 60 * minute - 0.1, 0.1)
        again["enqueued_at"] = instant(START_S + 60 * minute - 900).isoformat()
        day.send([again], START_S + 60 * minute)
        day.minutes(minute, minute + 1, 0.8)
    assert set(day.desired[60:]) == {before}


def test_requests_that_fail_at_once_are_no_reason_to_shrink(day: Day) -> None:
    """A dependency is down: twenty milliseconds each, and clients go on asking."""
    day.minutes(0, 40, 0.9)
    before, told = day.desired[-1], list[str]()
    for minute in range(40, 70):
        for end_s in range(0, 60, 5):
            at_s = START_S + 60 * (minute - 1) + end_s
            failed = [day.log(who, at_s, 0.02) | {"status": "error"} for who in day.cloud()]
            day.send(failed, at_s)
        told.append(day.turn(minute).reason)
    assert day.desired[-1] == before
    assert "requests failed, so the real load is not known" in told[-1]
