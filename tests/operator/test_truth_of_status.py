"""What status and cost say is true, whatever goes wrong.

Each virtual minute, status is compared with what the world knows, and at the end cost with the
world's own bill. `FIRST=1 SEEDS=200 pytest -n auto tests/operator/test_truth_of_status.py` looks at
many runs, each to its end.
"""

import json
import math
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.border.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.domain.decision import FAILED, Controller
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.money.prices import PriceBook, PriceSeries, priced
from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import Client
from spotkeeper_lab.cloud.values import IN_SERVICE, LAUNCHING
from spotkeeper_lab.faults import Kind
from spotkeeper_lab.scenario import MAIN, Scenario, draw
from spotkeeper_lab.troubles import Troubled
from spotkeeper_lab.workers import Served
from spotkeeper_lab.world import LEDGER, TABLE
from spotkeeper_operator.cost import unread
from spotkeeper_operator.status.known import (
    LOAD_WINDOW_S,
    Cause,
    FleetStatus,
    LoadNow,
    fleet_status,
)
from spotkeeper_operator.status.looked import LOGS_READ_S, RECORDS_READ, Looked
from spotkeeper_operator.status.shown import why_of
from spotkeeper_operator.text import STALE_TURN_S
from tests.functions.conftest import billed

# A statement may be this old; the world is looked at this often.
OLD_S, LOOK_S = 60.0, 10.0
# Turns run once a minute: each look is at another time after them.
STATUS_S = 47.0
OLD = 420.0
"""A trouble that has lasted for longer is named."""
# Waits are kept in a histogram of steps of a tenth; a share of few requests is chance.
STEP, SHARE_OFF = 0.12, 0.15
COST_OFF = 0.01
FIRST, SEEDS = int(os.environ.get("FIRST", "1")), int(os.environ.get("SEEDS", "1"))
SPOT_SHARE = 0.3


# What the first line says some minutes after a fault has begun, where it has its effect.
NAMES: Mapping[Kind, str] = {
    Kind.SPOT_DRY: "",
    Kind.ON_DEMAND_DRY: "",
    Kind.LAUNCH_REFUSED: "",
    Kind.OPERATOR_SUSPENDS: "SUSPENDED",
    Kind.OPERATOR_MAXIMUM: "at most",
    Kind.HANG: "suspected|may not work|nobody|not known to serve|no worker|send search logs",
    Kind.BAD_SPOT_IMAGE: "suspected|may not work|nobody serves|not known to serve|launching",
    Kind.NO_TURNS: "no (availability|health) turn",
    Kind.FORBIDDEN: "FAILING|no availability turn",
    Kind.TABLE_DOWN: "FAILING|no availability turn",
    Kind.LOGS_STOP: "search log",
}
# What AWS says of a launch that failed, what the first line says of it, and its classes.
SAYS = (
    ("not supported in", "CAN.* LAUNCH since .*not supported", "configuration"),
    ("Max spot", "CAN.* LAUNCH since .*Max spot", "quota"),
    ("vCPU", "CAN.* LAUNCH since .*vCPU", "quota"),
    ("key pair", "CAN.* LAUNCH since .*key pair", "configuration"),
    ("Spot request price", "maximum price", "price"),
    ("Request limit", "throttles", "throttle"),
    ("nobody has read", "(no|has) capacity|nobody has read", "capacity|configuration"),
    ("SpotInstanceTermination", "(no|has) capacity", "capacity"),
    ("Lifecycle Action|unhealthy", "CAN.* LAUNCH since .*(Lifecycle|unhealthy)", "bootstrap"),
    ("apacity", "(no|has) capacity", "capacity"),
)
# What says of each group that its launches fail.
CANNOT = ("NEITHER|neither|SPOT C|spot has no", "NEITHER|neither|ON-DEMAND C|on-demand has no")
SHORT = "wanted|warned|launching|suspected"
NAMED = 0.8
"""At least this share of a run's minutes of trouble; of many runs it is 0.95."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The world at one instant; `working` instances are in service and take requests."""

    at_s: float
    wanted: int
    in_service: frozenset[str]
    working: int
    live: frozenset[str]
    ahead_s: float


class Told(Troubled):
    """A troubled world in which an operator runs `status` at any second of the minute."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.false: list[str] = []
        self.made = self.unknown = 0
        self.troubled: list[tuple[str, str]] = []
        """What should be named, and the first line that does not."""
        self.named = 0
        self._moments: deque[Moment] = deque()
        self._served: deque[Served] = deque()
        self._turned: dict[str, datetime] = {}
        self._late_s = self._stale_s = -math.inf
        self._warned = 0
        self._well: dict[str, float] = {}
        self._was_well: dict[str, float] = {}
        """Since when the fleet, a group, or its launches are well, and when they last were for
        longer than turns need to see it."""
        answers = Answers(self.cloud, self.time)
        dynamodb: Any = Client("dynamodb", self.tables.answers())
        ec2: Any = Client("ec2", answers.ec2())
        autoscaling: Any = Client("autoscaling", answers.auto_scaling())
        self._groups = AutoScalingReader(autoscaling, ec2)
        self._records = DecisionRecords(dynamodb, TABLE)
        self._load = LoadDigestTable(dynamodb, TABLE)
        self._controls = ControlTable(dynamodb, TABLE)
        self._ledger = LedgerTable(dynamodb, TABLE)
        self.enter(0.0, self._every)
        self.enter(60.0, self._status)
        self.enter(scenario.deployed_at_s, self._keep)

    def _keep(self) -> None:
        if Kind.NO_TURNS not in self.active:
            self.invoke(LEDGER, self.events.scheduled(self.now_s))
        self.enter(self.now_s + wiring.LEDGER_EVERY.total_seconds(), self._keep)

    def settle(self) -> None:
        """Compare the cost with the bill, both up to the ledger's last look.

        It may be off by 1 %, or by more where it is called incomplete.
        """
        now, start = self.now(), self.time.at(0.0)
        items = self._ledger.since(MAIN, start)
        until = self._ledger.opened(MAIN)[1] or now
        spot_usd = PriceSeries(at=(start,), usd=(SPOT_SHARE,))
        book = PriceBook(
            spot={item.pool: spot_usd for item in items},
            on_demand={item.pool.partition("/")[2]: 1.0 for item in items},
        )
        cost = sum(one.paid for one in priced(items, book, start, until))
        incomplete = list(unread(self._ledger, [MAIN], items, start, now))
        lives = [view for view in self.cloud.history() if not self.is_other(view)]
        bill = billed(lives, self.time.seconds(until), {0.0: SPOT_SHARE}, 1.0)
        assert cost == pytest.approx(bill, rel=COST_OFF) or incomplete

    def recorded(self, fleet: str, text: str) -> None:
        """Note the turns that worked."""
        super().recorded(fleet, text)
        record = json.loads(text)
        if fleet == MAIN and record["rule"] != FAILED:
            at = datetime.fromisoformat(record["at"])
            self._turned[record["controller"]] = max(at, self._turned.get(record["controller"], at))

    def served(self, served: Served) -> None:
        super().served(served)
        self._served.append(served)

    def _every(self) -> None:
        self._look()
        self.enter(self.now_s + LOOK_S, self._every)

    def _look(self) -> None:
        """Note the world as it is."""
        views = [self.group(name) for name in (self.spot, self.on_demand)]
        there = [i for view in views for i in view.instances if i.state == IN_SERVICE and i.healthy]
        # The workers that take requests, or finish one.
        workers = self._workers.items()
        live = frozenset(name for name, w in workers if w.accepts or w.request is not None)
        instances = {name.partition("/")[0] for name in live}
        wanted = views[0].desired
        silent = self.hung.keys() | self.mute
        serving = {i.instance_id for i in there} & self.logged_instances - silent
        # By logs, a turn knows it a minute later.
        self._note("serving", len(serving) - self._warned >= wanted, STALE_TURN_S + OLD_S)
        for view in views:
            states = [i.state for i in view.instances]
            arrived = sum(state in {IN_SERVICE, *LAUNCHING} for state in states)
            # A refresh launches more than that.
            self._note(view.name, states.count(IN_SERVICE) == arrived >= view.desired)
            self._note(f"{view.name} launches", arrived >= view.desired)
        # So are those of which the collector failed.
        if Kind.LOGS_LATE in self.active or self.queue.age_s(self.now_s) > OLD_S:
            self._late_s = self.now_s
        self._ahead_s = max(m.ahead_s for m in self._moments) if self._moments else 0.0
        self._moments.append(
            Moment(
                at_s=self.now_s,
                wanted=views[0].desired,
                in_service=frozenset(i.instance_id for i in there),
                working=len(instances.intersection(i.instance_id for i in there)),
                live=live,
                ahead_s=self.logs.ahead_s,
            )
        )
        while self._moments[0].at_s < self.now_s - LOAD_WINDOW_S - OLD_S:
            self._moments.popleft()
        # Logs may be shipped minutes late.
        while self._served and self._served[0].finished_s < self.now_s - 3 * LOAD_WINDOW_S:
            self._served.popleft()

    def _note(self, what: str, well: bool, seen_s: float = STALE_TURN_S) -> None:
        if not well:
            self._well.pop(what, None)
        elif self.now_s - self._well.setdefault(what, self.now_s) > seen_s:
            self._was_well[what] = self.now_s

    def _status(self) -> None:
        """Run `status`, and compare it with what the world knows."""
        self.enter(self.now_s + STATUS_S, self._status)
        try:
            overrides = self.documents.get(f"{MAIN}.overrides")
            fleet = parse_fleet(MAIN, self.documents[MAIN], overrides)
        except (FleetDocumentError, KeyError):
            # `status` reports that, and nothing else of the fleet.
            return
        self._look()
        at = self.now()
        looked = Looked(
            groups=self._groups.describe([fleet.spot_group, fleet.on_demand_group]),
            records=self._records.newest(MAIN, RECORDS_READ).records,
            digests=self._load.since(MAIN, at - timedelta(seconds=LOGS_READ_S)),
            queue=QueueLength(waiting=self.force.queued, in_flight=self.force.in_flight),
            control=self._controls.of(MAIN),
        )
        status = fleet_status(fleet, looked, at)
        self._warned = status.warned
        self.made += 1
        self.unknown += status.whole is None
        line = f"{status.state}: {why_of(status)}"
        for what in self._troubles(status):
            if re.search(what, line):
                self.named += 1
            else:
                self.troubled.append((what, line))
        for wrong in (*self._wrong(status), *self._wrong_causes(status, line)):
            self.false.append(f"{self.now_s:.0f} s: {wrong}")

    def _troubles(self, status: FleetStatus) -> Iterator[str]:
        """Yield what the first line must say of the troubles of now."""
        groups = [self.group(name) for name in (self.spot, self.on_demand)]
        there = [[i for i in g.instances if i.state in {IN_SERVICE, *LAUNCHING}] for g in groups]
        short = [len(ours) < g.desired for ours, g in zip(there, groups, strict=True)]
        served = [i for ours in there for i in ours if i.state == IN_SERVICE]
        hung = [i for i in served if self.now_s - self.hung.get(i.instance_id, self.now_s) > OLD]
        bad = [i for i in served if i.serves_s is None and self.now_s - i.launched_s > 2 * OLD]
        effects = {
            Kind.SPOT_DRY: short[0],
            Kind.ON_DEMAND_DRY: short[1],
            Kind.LAUNCH_REFUSED: short[0],
            Kind.OPERATOR_SUSPENDS: short[0],
            Kind.HANG: bool(hung),
            Kind.BAD_SPOT_IMAGE: bool(bad),
            Kind.FORBIDDEN: bool(status.failing),
            Kind.TABLE_DOWN: bool(status.failing),
            Kind.LOGS_STOP: status.stale,
        }
        if status.cause is Cause.NO_TURN:
            yield NAMES[Kind.NO_TURNS]
            return
        some = [
            what or self._says_of(self.on_demand if kind is Kind.ON_DEMAND_DRY else self.spot)
            for kind, what in NAMES.items()
            if kind in self.active and self.now_s - self.active[kind].at_s > OLD
            if effects.get(kind, True)
        ]
        lacks = all(m.working < m.wanted for m in self._moments if m.at_s >= self.now_s - OLD_S)
        yield from some or ([SHORT] if lacks else [])

    def _says_of(self, group: str) -> str:
        """Return what the first line must say by AWS's last answer to a group's launch."""
        newest = self.cloud.failures(group, 0.0)[:1] if group in self.cloud.groups() else []
        text = newest[0].message if newest else "capacity"
        line = next(line for says, line, _ in SAYS if re.search(says, text))
        return f"{line}|{group} are SUSPENDED by AWS|why .*{group}.* is not known"

    def _wrong(self, status: FleetStatus) -> Iterator[str]:
        """Name the statements that were false for more than a minute."""
        lately = [m for m in self._moments if m.at_s >= self.now_s - OLD_S - LOOK_S]
        now = lately[-1]
        has = f"{len(now.in_service)} in service and {now.working} working of {now.wanted}"
        if status.whole and not any(m.working >= m.wanted for m in lately):
            yield f"whole, with {has}: {why_of(status)}"
        short = status.missing_groups or any(m.working < m.wanted for m in lately)
        # Those that are warned work until they are taken.
        if status.whole is False and not short and not status.warned:
            yield f"not whole, with {has}: {why_of(status)}"
        if status.in_service not in (None, len(now.in_service)):
            yield f"{status.in_service} in service, there are {len(now.in_service)}"
        if waiting := status.waiting:
            if (waiting.requests, waiting.in_flight) != (self.force.queued, self.force.in_flight):
                yield f"{waiting} wait, {self.force.queued} do"
            arrivals = self.stage.requests.arrival_s
            queue: deque[int] = getattr(self.force, "_queue")  # noqa: B009 - the lab's own
            true = max((self.now_s - float(arrivals[n]) for n in queue), default=0.0)
            claimed = waiting.oldest_at_least_s or 0.0
            if claimed > true:
                yield f"the oldest waits for at least {claimed:.0f} s, it does for {true:.0f} s"
        if status.load:
            yield from self._wrong_load(status.load, lately)
        for controller, said in status.turn_age_s.items():
            turned = self._turned.get(controller)
            true_s = None if turned is None else (self.now() - turned).total_seconds()
            if said != true_s:
                yield f"{controller} turned {said} s ago, it did {true_s} s ago"
            stale = true_s is None or true_s > STALE_TURN_S
            if controller is Controller.AVAILABILITY and status.whole and stale:
                yield f"whole, and no availability turn has succeeded for {true_s} s"

    def _wrong_unproven(self, status: FleetStatus, line: str) -> Iterator[str]:
        """Name a count of instances that are not known to serve, where turns could know more."""
        ages_s = (*status.turn_age_s.values(), status.log_age_s)
        if status.stale or any(age_s is None or age_s > STALE_TURN_S for age_s in ages_s):
            self._stale_s = self.now_s
        if max(self._stale_s, self._late_s) > self.now_s - OLD:
            return
        served = {s.instance_id for s in self._served if s.finished_s < self.now_s - 3 * OLD_S}
        # One that has just arrived, or left standby, is not known at once.
        steady = served.intersection(*(m.in_service for m in self._moments))
        there = {i.instance_id for i in self.group(self.spot).instances if i.state == IN_SERVICE}
        # A group lists for minutes what AWS has taken without a warning.
        steady = {i for i in steady if self.cloud.instance(i).ended_s is None}
        silent = there - (steady - self.mute - self.hung.keys())
        if status.unproven > len(silent) and "not known to serve" in line:
            yield f"{status.unproven} of spot not known to serve, at most {silent} of {there} are"

    def _wrong_causes(self, status: FleetStatus, line: str) -> Iterator[str]:
        """Name the causes that were not there, or not since then, or are over."""
        yield from self._wrong_unproven(status, line)
        names, late_s = (self.spot, self.on_demand), STALE_TURN_S + OLD_S
        for name, claim in zip(names, CANNOT, strict=True):
            # What AWS gives up while it starts was launched.
            fails = re.search(claim, line) and not re.search("Lifecycle|unhealthy", line)
            if fails and self.now_s - self._well.get(f"{name} launches", self.now_s) > late_s:
                yield f"{name} launches: {line}"
        for one in status.launches:
            since_s = self.time.seconds(one.since)
            there = [name for name in names if name in self.cloud.groups()]
            texts = [a.message for n in there for a in self.cloud.failures(n, since_s - 2 * OLD)]
            if any(one.why in text for text in texts):
                if one.failure_class not in next(c for t, _, c in SAYS if re.search(t, one.why)):
                    yield f"{one.failure_class}: {one.why}"
            elif not re.search("is suspended|does not exist|spot request", one.why):
                yield f"AWS did not say since {since_s:.0f} s: {one.why}"
            # A group shows for minutes what its spot request says was taken.
            shown_s = OLD if "spot request" in one.why else OLD_S
            if since_s < min(self._was_well.get(name, 0.0) for name in names) - shown_s:
                yield f"{one.failure_class} not since {since_s:.0f} s: {line}"
        if status.cause is Cause.TOO_FEW and status.since:
            since_s = self.time.seconds(status.since)
            if since_s < self._was_well.get("serving", 0.0) - OLD_S:
                yield f"served, not since {since_s:.0f} s: {line}"
        for what in status.awaited:
            if what.until and self.time.seconds(what.until) < self.now_s - OLD_S:
                yield f"over: {what}: {line}"

    def _wrong_load(self, load: LoadNow, lately: Sequence[Moment]) -> Iterator[str]:
        begin_s = self.now_s - OLD_S
        live = {s.worker_id for s in self._served if s.finished_s >= begin_s}
        live.update(*(m.live for m in lately))
        if load.workers_live > len(live):
            yield f"{load.workers_live} workers live, at most {len(live)} were"
        # Logs have times in milliseconds.
        until_s = self.now_s - load.newest_log_age_s + 0.001
        begins = range(int(OLD_S), int(LOAD_WINDOW_S + OLD_S) + 1, int(LOOK_S))
        spans = [
            (max(0.0, self.now_s - age_s), end_s)
            for age_s in reversed(begins)
            for end_s in (until_s, self.now_s, self.now_s - age_s + LOAD_WINDOW_S)
        ]
        lived = (
            lately[-1].live,
            frozenset[str]().union(*(m.live for m in lately)),
            lately[0].live,
            # Where most workers leave at once, those that stay.
            frozenset(name for name in live if name.partition("/")[0] in lately[-1].in_service),
        )
        busy = (self._busy(names, *span) for span in spans for names in lived)
        if load.busy is not None and not any(abs(b - load.busy) <= SHARE_OFF for b in busy):
            true = [round(self._busy(lately[-1].live, *span), 2) for span in spans]
            yield f"{load.busy:.2f} busy, they were {true}"
        shipped = [s for s in self._served if s.instance_id not in self.mute]
        lasts = [s for s in shipped if s.finished_s <= until_s][-load.requests :]
        samples = (_waits(lasts), *(_waits(self._served, *span) for span in spans))
        # The clock that stamps an arrival is not the worker's: nobody knows waits better.
        # A digest of late logs and new ones begins before the window, and does not count.
        mixed = self.now_s - self._late_s < LOAD_WINDOW_S + OLD_S
        if not mixed and not any(_is_p95(load, waits, self._ahead_s) for waits in samples):
            yield f"95 % of {load.requests} within {load.wait_p95_s:.1f} s: {samples[0]}"

    def _busy(self, names: frozenset[str], since_s: float, until_s: float) -> float:
        """Return the busy share of some workers while they lived."""
        spans = [(s.started_s, s.finished_s) for s in self._served if s.worker_id in names]
        workers = (w for name, w in self._workers.items() if name in names)
        spans += [
            (worker.started_s, self.now_s) for worker in workers if worker.request is not None
        ]
        busy_s = sum(max(0.0, min(end, until_s) - max(begin, since_s)) for begin, end in spans)
        moments = [m for m in self._moments if since_s <= m.at_s <= until_s]
        lived = sum(len(m.live & names) for m in moments) / max(1, len(moments))
        return busy_s / (until_s - since_s) / lived if lived and until_s > since_s else 0.0

    @property
    def _workers(self) -> dict[str, Any]:
        return dict(getattr(self.force, "_workers"))  # noqa: B009 - the lab's own


def _waits(
    served: Iterable[Served], since_s: float = 0.0, until_s: float = math.inf
) -> list[float]:
    """List the waits of the requests that were finished in a time, shortest first."""
    found = (s for s in served if since_s <= s.finished_s <= until_s)
    return sorted(s.started_s - s.enqueued_s for s in found)


def _is_p95(load: LoadNow, waits: Sequence[float], off_s: float) -> bool:
    """Whether 95 % of these requests may have waited as short, within chance and a step."""
    longest_s = load.wait_p95_s * (1 + STEP) + 0.1 + off_s
    slack = 2 * math.sqrt(0.95 * 0.05 / load.requests)
    within = sum(wait <= longest_s for wait in waits)
    if len(waits) < load.requests or within < (0.95 - slack) * len(waits):
        return False
    return load.wait_p95_s <= waits[-1] * (1 + STEP) + 0.1


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_no_statement_is_false_for_more_than_a_minute(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    if SEEDS == 1:
        monkeypatch.setattr("spotkeeper_lab.scenario.TAIL_S", 300.0)
    with Told(draw(seed)).deployed() as world:
        world.go()
    assert world.made > 60
    assert world.false == []
    assert world.unknown < world.made
    assert world.named >= NAMED * (world.named + len(world.troubled)), world.troubled
    world.settle()
