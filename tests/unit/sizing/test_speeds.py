"""The speeds of instance types: how they are learned, and what sizing makes of them."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from spotkeeper.domain.decision import Answer
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.domain.health.decide import (
    EndInstance,
    HealthSnapshot,
    ResizeSpot,
    apply,
    assess,
    plan,
    read_from,
)
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.digest import SearchLog, digest
from spotkeeper.domain.load.load import Cluster, LoadDigest
from spotkeeper.domain.load.speeds import TRUSTED, Speeds, at_speed_1, learn
from spotkeeper.domain.settings.sizing import Objective
from tests.builders import at, fleet, group
from tests.search_logs import log

if TYPE_CHECKING:
    from spotkeeper.domain.load.history import LoadHistory

SPEEDS = {"g5.xlarge": 1.0, "g6.xlarge": 2.0, "g4dn.xlarge": 0.5}
MEAN_S = 6.0
ERLANGS = 8.0
OURS = replace(fleet(spot_max=60), objective=Objective(wait_s=10, share=0.95))
MINUTES = 110


def served(instance_id: str, began: float, took: float, arrived: float) -> SearchLog:
    """The log of a request; times are seconds after noon."""
    who: Any = {"request_id": f"{instance_id} {began}", "instance_id": instance_id}
    return log(-began, -began - took, waited=began - arrived, cluster=Cluster.AWS, **who)


def spot(kinds: Mapping[str, str], launching: frozenset[str] = frozenset()) -> Group:
    members = (
        Instance(
            instance_id=name,
            pool=f"us-east-1a/{kind}",
            phase=Phase.LAUNCHING if name in launching else Phase.IN_SERVICE,
        )
        for name, kind in sorted(kinds.items())
    )
    return group("spot", len(kinds), tuple(members))


def minutes_of(seed: int, logs: int, speeds: Mapping[str, float]) -> list[LoadDigest]:
    """One digest a minute and type, whose instance has the type's name."""
    draw, found = Random(seed), []
    for minute in range(10):
        for kind, speed in speeds.items():
            began = [60 * minute + each / logs for each in range(logs // 10)]
            each = [served(kind, at_s, draw.expovariate(speed / MEAN_S), at_s) for at_s in began]
            found += digest(each, at(60 * minute + 59), OURS.name)
    return found


def learned(digests: list[LoadDigest], before: Speeds, kinds: Mapping[str, str]) -> Speeds:
    """What ten minutes of turns learn, each of them reading all digests of until then."""
    for minute in range(1, 13):
        now = at(60 * minute)
        before = learn(before, (spot(kinds),), [d for d in digests if d.sent_at < now], now)
    return before


@pytest.mark.parametrize("seed", range(3))
def test_speeds_are_within_a_tenth_of_the_truth(seed: int) -> None:
    kinds = {kind: kind for kind in SPEEDS}
    found = learned(minutes_of(seed, 3_000, SPEEDS), Speeds(), kinds)
    speed = {kind: each.speed for kind, each in found.types.items()}
    for kind, truth in SPEEDS.items():
        assert speed[kind] / speed["g5.xlarge"] == pytest.approx(truth, rel=0.1)


def test_few_logs_change_speeds_little() -> None:
    kinds = {kind: kind for kind in SPEEDS}
    many = learned(minutes_of(0, 2 * TRUSTED, SPEEDS), Speeds(), kinds).differing
    few = learned(minutes_of(0, TRUSTED // 3, SPEEDS), Speeds(), kinds).differing
    assert 1.0 <= few.get("g6.xlarge", 1.0) < many["g6.xlarge"]
    assert many["g4dn.xlarge"] < few.get("g4dn.xlarge", 1.0) <= 1.0


@pytest.mark.parametrize("speeds", [{"g5.xlarge": 2.0}, {"g5.xlarge": 1.0, "g5a.xlarge": 1.08}])
def test_one_speed_changes_nothing(speeds: dict[str, float]) -> None:
    digests = minutes_of(1, 3_000, speeds)
    found = learned(digests, Speeds(), {kind: kind for kind in speeds})
    assert at_speed_1(found, digests) is digests
    assert found.mean_of((spot({kind: kind for kind in speeds}),)) == 1.0
    assert bool(found.kinds) == (len(speeds) > 1)


def test_an_instance_that_left_keeps_its_type_while_its_logs_count() -> None:
    digests = minutes_of(2, 3_000, SPEEDS)
    found = learned(digests, Speeds(), {kind: kind for kind in SPEEDS})
    left = learn(found, (spot({"g5.xlarge": "g5.xlarge"}),), digests, at(780))
    assert set(left.kinds) == set(SPEEDS)
    assert set(learn(left, (spot({"g5.xlarge": "g5.xlarge"}),), [], at(840)).kinds) <= {"g5.xlarge"}


class Market:
    """A fleet on a market that gives one type after another; `seen` names them to sizing.

    Reclaimed instances leave once their successors serve, so that the market changes their speed
    and not their number.
    """

    def __init__(self, seed: int, seen: Callable[[str], str]) -> None:
        self.draw, self.seen = Random(seed), seen
        self.memory, self.desired = HealthMemory(), 10
        self.history: LoadHistory | None = None
        self.reason = ""
        self.kinds: dict[str, str] = {}
        self.ready: dict[str, float] = {}
        self.going: dict[str, float] = {}
        self.free: list[tuple[float, str]] = []
        self.logs: list[tuple[float, str, SearchLog]] = []
        self.digests: list[LoadDigest] = []
        self.late = self.started = 0
        self.hours = self.arrived = 0.0

    @staticmethod
    def offered(minute: int) -> str | None:
        """The type that the market has; all of them at first."""
        return None if minute < 30 else list(SPEEDS)[(1, 0, 2, 0)[(minute - 30) // 20 % 4]]

    def launch(self, minute: int) -> None:
        name = f"i-{len(self.kinds):017x}"
        self.kinds[name] = self.offered(minute) or list(SPEEDS)[len(self.kinds) % 3]
        self.ready[name] = minute * 60 + (90.0 if minute else 0.0)
        heapq.heappush(self.free, (self.ready[name], name))

    def minute(self, minute: int) -> None:
        now = minute * 60.0
        for name in [each for each, gone_at in self.going.items() if gone_at <= now]:
            self.ready.pop(name, None)
            del self.going[name]
        offered = self.offered(minute)
        others = (i for i in self.ready if self.kinds[i] != offered and i not in self.going)
        reclaimed = next(others, None)
        if offered and reclaimed and minute % 3 == 0:
            self.going[reclaimed] = now + 120
            self.launch(minute)
        while len(self.ready) - len(self.going) < self.desired:
            self.launch(minute)
        self.hours += len(self.ready) / 60
        self.serve(now, counted=offered is not None)
        self.turn(now + 60)

    def serve(self, now: float, *, counted: bool) -> None:
        """Give each request of a minute to the worker that is free first."""
        while self.free:
            begin, name = self.free[0]
            if name not in self.ready:
                heapq.heappop(self.free)
                continue
            start = max(begin, self.arrived)
            if start >= now + 60:
                return
            took = self.draw.expovariate(SPEEDS[self.kinds[name]] / MEAN_S)
            heapq.heapreplace(self.free, (start + took, name))
            self.started += counted
            self.late += counted and start - self.arrived > 10
            log = served(name, start, took, self.arrived)
            heapq.heappush(self.logs, (start + took, log.request_id, log))
            self.arrived += self.draw.expovariate(ERLANGS / MEAN_S)

    def turn(self, now: float) -> None:
        by_instance = defaultdict(list)
        while self.logs and self.logs[0][0] <= now - 5:
            log = heapq.heappop(self.logs)[2]
            by_instance[log.instance_id].append(log)
        for logs in by_instance.values():
            self.digests += digest(logs, at(now - 3), OURS.name)
        since = read_from(OURS, at(now))
        self.digests = [one for one in self.digests if one.sent_at >= since]
        names = {name: self.seen(self.kinds[name]) for name in self.ready}
        launching = frozenset(name for name in names if self.ready[name] > now)
        snapshot = HealthSnapshot(
            fleet=OURS,
            spot=replace(spot(names, launching), desired=self.desired),
            on_demand=group("on-demand", 0),
            digests=tuple(self.digests),
            queue=None,
            history=self.history,
            now=at(now),
        )
        assessed = assess(snapshot, self.memory)
        wanted = plan(assessed)
        self.history, self.reason = assessed.history, wanted.sizing.reason
        answers = [Answer.DONE] * len(wanted.actions)
        self.memory = apply(wanted.memory, wanted.actions, answers, at(now))
        for action in wanted.actions:
            if isinstance(action, ResizeSpot):
                self.desired = action.desired
            elif isinstance(action, EndInstance):
                self.ready.pop(action.instance_id, None)
                self.going.pop(action.instance_id, None)
                self.desired -= 1


def test_known_speeds_keep_the_promise_with_fewer_worker_hours() -> None:
    knowing, blind = Market(5, str), Market(5, lambda _: "any.type")
    for market in (knowing, blind):
        for minute in range(MINUTES):
            market.minute(minute)
    assert knowing.late <= 0.05 * knowing.started
    assert blind.late > 0.05 * blind.started
    assert knowing.hours < blind.hours
    assert "The mean speed of these types" in knowing.reason
    assert "The mean speed of these types" not in blind.reason
