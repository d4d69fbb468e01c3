"""What an operator may expect of a fleet, judged by the truth of the simulated world alone.

The truth is which workers work, what the load is, what AWS's groups show, and which faults the
scenario has. No rule, no constant and no record of the product is used to say what is right. A
promise has a number and a time. Where a fault makes it impossible, `EXCUSES` names the fault and
for how long after its end; each minute that needs such an excuse is counted.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    LAUNCH,
    LAUNCHING,
    STANDBY,
    TERMINATING,
    CloudEvent,
    EventKind,
    InstanceView,
    Purchase,
)
from spotkeeper_lab.fakes import EPOCH
from spotkeeper_lab.faults import KEY_PAIR, OF_AWS, Kind
from spotkeeper_lab.scenario import MAIN, NEIGHBOURS_LOAD, WARM_UP_S, Scenario, StartState
from spotkeeper_lab.troubles import Troubled
from spotkeeper_lab.workers import Served
from spotkeeper_lab.world import AVAILABILITY, HEALTH, Invocation, Observer

SAMPLE_S = 15.0
# The tag that workers read.
MARK = "spotkeeper:draining"

# --- the numbers ----------------------------------------------------------------------------------

# From a warning that arrived to a request for its replacement.
WARNED_S = 75.0
# Between a warning and its end (EC2 User Guide, "Spot Instance interruption notices").
NOTICE_S = 120.0
# From a warning that arrived to the mark that its workers read.
MARKED_S = 30.0
# From a warning that nothing follows to the end of the mark.
UNMARKED_S = 1200.0
# From the first request that waits for a fleet without instances to the first that launches.
WOKEN_S = 300.0
# From a loss to that request: the minute of a turn, its jitter, its run, and what AWS shows late.
LOST_S = 165.0
# The desired capacity counts once it has stood for this long: growth has time to launch.
STOOD_S = 330.0
# In a calm half an hour a fleet is at most this much larger than Erlang C needs.
CALM_SHARE, CALM_MORE = 1.25, 1.5
# And by this much more until this share of its requests were in time, of 95 % that are promised.
CALM_LATE, IN_HAND = 1.5, 0.96
# A load that rises by more than this makes more requests late than the next hours allow.
SURPRISE = 5.0
# What has not served by now, will not.
NEVER_WORKED_S = 900.0
# What more instances do not cure gets this much on-demand.
CAP = 2
# On-demand that nothing needs ends within this, beside a dozen requests for each instance.
RELEASED_S = 660.0
PROVEN_REQUESTS = 12.0
# A spot group that is larger than the load needs shrinks within this.
SHRUNK_S = 3300.0
# From the first requests that a hung worker misses to its replacement.
CURED_S = 900.0
CURED_REQUESTS = 40.0
REPLACED_AN_HOUR = 2
# Several workers of which only the logs are missing run on for this long.
MUTED_S = 1500.0
# A fleet with a promise reaches the least load of this time.
GROWN_S = 345.0
# An alarm says within this that nobody serves.
ALARM_S = 600.0
# Two turns of a controller of one fleet, or its failure, are this close.
TURN_S = 180.0
# What an instance logged is known after this: two turns of a controller are up to 119 s apart.
KNOWN_S = 120.0
# An instance that left its group ends within this.
ORPHAN_S = 1500.0
# Of the requests of an hour without a fault, this many more may be late than promised.
LATE_MORE = 0.10
FEWEST_REQUESTS = 100
# One of these alarms tells the operator that nobody serves, or why.
SERVES_NOTHING = ("nobody-serves", "search-logs-missing", "bootstrap", "configuration")


class Promise(StrEnum):
    REPLACED = "what is lost is replaced"
    RELEASED = "on-demand no longer than it is needed"
    SIZED = "spot no larger than the load needs"
    GROWN = "spot no smaller than the load"
    DRAINED = "a warned worker is drained before its end"
    EARLY = "a warned instance is replaced before its end"
    SPARED = "nothing else is drained, and what AWS does not take serves again"
    COVERED = "on-demand serves for what hangs"
    WOKEN = "requests wake a fleet"
    CALM = "a calm fleet is no larger than the load needs"
    MENDED = "an alarm when only a person can mend the launches"
    SERVED = "requests are in time where capacity exists"
    CURED = "an instance that does not work is replaced"
    FOUND = "workers that hang together are found"
    FAILING = "a worker that fails each request is replaced, and an alarm rings if most do"
    SLOWED = "a worker that serves much slower than others is replaced"
    ALARMED = "an alarm when nobody serves"
    TURNS = "a turn or a failure every three minutes"
    BOUNDS = "bounds"
    OPERATOR = "an operator's desired stays"
    CAPPED = "a broken release costs no more on-demand than its cap"
    SCALE_IN = "no scale-in below the load"
    MAKE_BEFORE_BREAK = "make before break"
    REASONED = "no working instance is replaced"
    BUDGET = "replacements within the budget"
    LAUNCHES = "launches an hour"
    NO_FLAPPING = "no flapping"
    ORPHANS = "no orphan"
    RECORDED = "a record or a failure for every turn"
    ISOLATED = "fleets do not disturb each other"
    SETTLED = "no failures without end"
    NO_BUG = "no unexpected error"
    ANNOUNCED = "one event for each change of state"
    RINGS = "each alarm rings when it should"
    QUIET = "no alarm rings for nothing, or flaps"


# --- the excuses ----------------------------------------------------------------------------------

_for: Callable[[Iterable[Kind], float], dict[Kind, float]] = dict.fromkeys
# AWS refuses or loses what a turn needs, or no turn runs.
_READING = {Kind.DOCUMENTS_DOWN, Kind.QUEUE_DOWN}
_AWS = _for({*OF_AWS, Kind.HANGING, Kind.GROUP_DELETED, Kind.CLOCK_JUMPS} - _READING, 240.0)
# Nothing shows which instances serve.
_UNSEEN: dict[Kind, float] = _for(
    (Kind.LOGS_STOP, Kind.LOGS_LATE, Kind.HALF_LOGS, Kind.COLLECTOR_DOWN, Kind.CLOCKS_FAR), 900.0
)
# Whatever a turn remembered is gone: the fleet is adopted anew.
_FORGOTTEN = _for((Kind.STATE_LOST, Kind.STATE_UNREADABLE), 1800.0)
# Instances that launch never serve, or none launch.
_NEVER_SERVES = _for(
    (
        Kind.BAD_SPOT_IMAGE, Kind.BAD_ON_DEMAND_IMAGE, Kind.BOOT_LOOP, Kind.LAUNCH_REFUSED,
        Kind.ON_DEMAND_DRY, Kind.ON_DEMAND_DELETED, Kind.OPERATOR_SUSPENDS, Kind.OPERATOR_MAXIMUM,
    ),
    1800.0,
)  # fmt: skip

EXCUSES: Mapping[Promise, Mapping[Kind, float]] = {
    Promise.REPLACED: _AWS | _for((Kind.ON_DEMAND_DRY, Kind.ON_DEMAND_DELETED), 960.0),
    Promise.RELEASED: _AWS | _UNSEEN | _FORGOTTEN | _NEVER_SERVES | {Kind.HANG: 1800.0},
    Promise.SIZED: _AWS | _UNSEEN | _FORGOTTEN | _NEVER_SERVES | {Kind.HANG: 3600.0},
    Promise.GROWN: _AWS | _UNSEEN | _FORGOTTEN,
    # A warning waits in the state while another turn holds the lease.
    Promise.DRAINED: _AWS | _for(_FORGOTTEN, 60.0),
    Promise.EARLY: _AWS
    | _for((*_FORGOTTEN, Kind.ON_DEMAND_DRY, Kind.ON_DEMAND_DELETED, Kind.WRONG_DOCUMENT), 240.0),
    Promise.SPARED: _AWS | _for(_FORGOTTEN, 1800.0),
    Promise.COVERED: _AWS | _UNSEEN | _FORGOTTEN | _NEVER_SERVES,
    Promise.WOKEN: _AWS | _UNSEEN | _FORGOTTEN | _NEVER_SERVES | {Kind.QUEUE_DOWN: 300.0},
    Promise.CALM: {},
    Promise.MENDED: _AWS,
    Promise.SERVED: {},
    Promise.CURED: _AWS | _UNSEEN | _FORGOTTEN,
    Promise.FOUND: _AWS | _UNSEEN | _FORGOTTEN | _NEVER_SERVES,
    Promise.FAILING: _AWS | _UNSEEN | _FORGOTTEN,
    Promise.SLOWED: _AWS | _UNSEEN | _FORGOTTEN,
    Promise.ALARMED: _AWS | _FORGOTTEN,
    Promise.TURNS: _AWS,
    Promise.REASONED: _for((Kind.LOGS_LATE, Kind.CLOCKS_FAR), 900.0),
    Promise.BUDGET: {},
    Promise.ORPHANS: _for(_AWS, 1500.0),
    Promise.ISOLATED: _AWS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    promise: Promise
    at_s: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run; `story` has a line for each thing that happened.

    `excused` counts the minutes of the main fleet in which a promise needed a fault as its excuse.
    """

    scenario: Scenario
    violations: tuple[Violation, ...]
    invocations: int
    losses: int
    minutes: int
    excused: Counter[tuple[Promise, Kind]]
    excused_minutes: int
    story: tuple[str, ...]
    rung: Counter[str] = field(default_factory=Counter)


class Watch:
    """A world of faults and the promises that are checked in it; keeps the first break of each."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = Troubled(scenario)
        self.truth = Truth(self.world)
        self.found: dict[Promise, Violation] = {}
        self.excused: dict[tuple[Promise, Kind], set[int]] = defaultdict(set)
        self.world.observers += [self.truth, *(promise(self) for promise in PROMISES)]
        self.world.enter(SAMPLE_S, self._again)

    def run(self) -> Result:
        """Play the scenario to its end."""
        world = self.world
        with world.deployed():
            world.go()
            for one in world.observers:
                one.ended()
        minutes = set[int]().union(*self.excused.values())
        return Result(
            scenario=self.scenario,
            violations=tuple(self.found.values()),
            invocations=world.invocations,
            losses=sum(view.lost for view in world.cloud.history()),
            minutes=int(self.scenario.end_s // 60),
            excused=Counter({key: len(found) for key, found in self.excused.items()}),
            excused_minutes=len(minutes),
            story=tuple(world.story),
        )

    def _again(self) -> None:
        self.sample()
        self.world.enter(self.world.now_s + SAMPLE_S, self._again)

    def sample(self) -> None:
        """Look at the world as it is now."""
        for one in self.world.observers:
            one.sampled()

    def broken(self, promise: Promise, how: str, since_s: float | None = None) -> None:
        """Report a break that began at `since_s`; a fault of that time may excuse it."""
        now_s = self.world.now_s
        begun_s = now_s if since_s is None else since_s
        for fault in self.scenario.faults:
            after_s = EXCUSES.get(promise, {}).get(fault.kind)
            if after_s is not None and fault.at_s <= now_s and fault.end_s + after_s >= begun_s:
                self.excused[promise, fault.kind].add(int(now_s // 60))
                return
        self.found.setdefault(promise, Violation(promise=promise, at_s=now_s, how=how))


# --- the truth ------------------------------------------------------------------------------------


class Lately(deque[tuple[float, float]]):
    """Values of the last `window_s`, each with its instant, oldest first."""

    def __init__(self, window_s: float) -> None:
        super().__init__()
        self.window_s = window_s

    def add(self, now_s: float, value: float) -> None:
        """Add a value, and forget those that are too old."""
        self.append((now_s, value))
        while self[0][0] < now_s - self.window_s:
            self.popleft()

    def least(self, without: float) -> float:
        """Return the least value; `without` any, that."""
        return min((value for _, value in self), default=without)

    def most(self) -> float:
        """Return the largest value; at least one must be there."""
        return max(value for _, value in self)


class Truth(Observer):
    """What is so in the world, and what was so in the last minutes."""

    def __init__(self, world: Troubled) -> None:
        self.world, self.scenario = world, world.scenario
        self.warned_s: dict[str, float] = {}
        """When the warning of an instance was delivered."""
        self.empty_s: dict[str, float] = {}
        """When a warning without a loss was delivered."""
        self.left_s: dict[str, float] = {}
        """When an instance was first seen outside of its group, or on its way out."""
        self.served: Counter[str] = Counter()
        """How many requests each instance has finished."""
        self.failed: Counter[str] = Counter()
        """How many of them it has failed."""
        self.idle_s: dict[str, float] = {}
        """Since when an instance in service takes no requests."""
        self.missed: dict[str, float] = {}
        """How many requests it should have had since."""
        self.idle_until_s = -math.inf
        """When one was idle last."""
        self.works_since: dict[str, float] = {}
        self.rang_s: defaultdict[str, float] = defaultdict(lambda: -math.inf)
        self.desired, self.backlog = Lately(STOOD_S), Lately(SHRUNK_S)
        self.mine: list[InstanceView] = []

    def happened(self, event: CloudEvent) -> None:
        if event.kind is EventKind.WARNING and event.at_s >= self.scenario.deployed_at_s:
            self.warned_s.setdefault(event.instance_id, event.deliver_s)

    def finished(self, served: Served) -> None:
        self.served[served.instance_id] += 1
        self.failed[served.instance_id] += served.instance_id in self.world.logs.failing

    def recorded(self, fleet: str, record: Mapping[str, Any]) -> None:
        if fleet == MAIN:
            self.rang_s |= dict.fromkeys(record["alarms"], self.world.now_s)

    def sampled(self) -> None:
        world, now_s = self.world, self.world.now_s
        self.mine = [view for view in world.cloud.instances() if not world.is_other(view)]
        for view in self.mine:
            if view.state in (TERMINATING, STANDBY) or not view.group:
                self.left_s.setdefault(view.instance_id, now_s)
            else:
                self.left_s.pop(view.instance_id, None)
        empty = world.active.get(Kind.EMPTY_WARNING)
        if empty and now_s - empty.at_s <= SAMPLE_S:
            self.empty_s |= dict.fromkeys(world.hit[Kind.EMPTY_WARNING], now_s)
        works = {i for i in world.force.instances if world.works(i)}
        if {Kind.LOGS_STOP, Kind.COLLECTOR_DOWN} & world.active.keys():
            world.muted |= works - world.logged_instances
        self.works_since = {i: self.works_since.get(i, now_s) for i in works}
        self._note_idle(now_s)
        self.desired.add(now_s, world.group(world.spot).desired)
        waiting_s = world.force.queued * self.scenario.service_s
        self.backlog.add(now_s, world.load() + waiting_s / 300.0)

    def _note_idle(self, now_s: float) -> None:
        there = self.in_service()
        idle = [v.instance_id for v in there if not self.world.works(v.instance_id)]
        requests = SAMPLE_S * self.world.load() / self.scenario.service_s
        share = requests / max(1, len(there) + self.scenario.onprem_workers)
        self.idle_s = {i: self.idle_s.get(i, now_s) for i in idle}
        self.idle_until_s = now_s if idle else self.idle_until_s
        self.missed = {i: self.missed.get(i, 0.0) + share for i in idle}

    def in_service(self) -> list[InstanceView]:
        """The instances of both groups that are in service."""
        return [v for v in self.mine if v.group and v.state == IN_SERVICE]

    def rings(self, *alarms: str) -> bool:
        """Whether one of some alarms rang in the last minutes."""
        return any(self.world.now_s - self.rang_s[alarm] <= 300.0 for alarm in alarms)

    @property
    def settled(self) -> bool:
        """Whether the fleet had the time to begin."""
        return self.world.now_s > WARM_UP_S

    def stood(self) -> int:
        """The least desired capacity of the spot group in the last minutes, within its bounds."""
        return int(min(self.scenario.spot_max, self.desired.least(math.inf)))

    def spot(self) -> Iterator[InstanceView]:
        """The spot instances in their group that are not on their way out."""
        for view in self.mine:
            inside = view.group == self.world.spot and view.healthy
            if inside and view.state in {IN_SERVICE, *LAUNCHING}:
                yield view

    def proven(self, view: InstanceView) -> bool:
        """Whether an instance works, and a request has shown it."""
        served = self.served[view.instance_id]
        fails = view.instance_id in self.world.logs.failing
        works = self.world.works(view.instance_id) and not fails
        return bool(served) and works and not self.warned(view)

    def warned(self, view: InstanceView) -> bool:
        """Whether an instance has a warning, also one that turns out to be wrong."""
        wrong = view.instance_id in self.world.hit.get(Kind.EMPTY_WARNING, ())
        wrong = wrong and self.active((Kind.EMPTY_WARNING,), 0.0)
        lapsed = self.world.now_s - self.empty_s.get(view.instance_id, math.inf) > UNMARKED_S
        return view.warned_s is not None or (wrong and not lapsed)

    def active(self, kinds: Iterable[Kind], after_s: float) -> bool:
        """Whether a fault of some kinds lasts, or ended less than `after_s` ago."""
        now_s, wanted = self.world.now_s, set(kinds)
        faults = (f for f in self.scenario.faults if f.kind in wanted)
        return any(f.at_s <= now_s <= f.end_s + after_s for f in faults)

    def gap_s(self, requests: float) -> float:
        """How long it takes until each instance should have got this many requests."""
        rate = self.world.load() / self.scenario.service_s
        return requests * max(1, self.world.working()) / rate if rate else math.inf


def workers_for(load: float, scenario: Scenario) -> int:
    """Return the fewest workers that keep the scenario's promise: Erlang C (1917), or 70 % busy."""
    if not scenario.objective:
        return math.ceil(load / 0.7 / scenario.slots)
    blocked, count = 1.0, 0
    while True:
        count += 1
        blocked = load * blocked / (count + load * blocked)
        if count > load:
            delayed = blocked / (1.0 - load / count * (1.0 - blocked))
            if delayed * math.exp(-(count - load) * 10.0 / scenario.service_s) <= 0.05:
                return count


# --- the promises ---------------------------------------------------------------------------------


class Check(Observer):
    """A promise, or some about one thing, in a world."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.truth = watch, watch.truth
        self.world, self.scenario = watch.world, watch.scenario
        self._begun_s: dict[str, float] = {}

    @property
    def now_s(self) -> float:
        return self.world.now_s

    def since(self, what: str, holds: object) -> float:
        """Return since when something holds at each look; `math.inf` where it does not."""
        if holds:
            return self._begun_s.setdefault(what, self.now_s)
        self._begun_s.pop(what, None)
        return math.inf


class Replaced(Check):
    """What was warned or lost is replaced: by its group, or by on-demand.

    An instance counts until its time is over: WARNED_S after a warning that arrived, LOST_S after
    another loss. Warm on-demand has to serve only once the instance is gone.
    """

    CAPPING = (
        Kind.LAUNCH_REFUSED, Kind.OPERATOR_SUSPENDS, Kind.BAD_SPOT_IMAGE, Kind.BOOT_LOOP,
        Kind.BAD_ON_DEMAND_IMAGE,
    )  # fmt: skip

    def sampled(self) -> None:
        truth, world = self.truth, self.world
        if not truth.settled:
            return
        wanted = truth.stood()
        inside = list(truth.spot())
        there = stay = sum(self._counts(view) for view in inside)
        for view in truth.mine:
            left_s = truth.left_s.get(view.instance_id)
            if left_s is not None and view.purchase is Purchase.SPOT:
                there += self.now_s < left_s + self._lost_s(view)
        gone = [v for v in world.cloud.history() if self._just_ended(v)]
        if truth.active(self.CAPPING, 900.0):
            wanted = min(wanted, stay + CAP)
        dead = 0 if truth.active(_UNSEEN, 1200.0) else sum(map(self._never_worked, inside))
        wanted -= max(0, dead - CAP)
        there -= dead
        on_demand = world.group(world.on_demand).desired
        if (have := there + len(gone) + on_demand) < wanted:
            how = f"{have} of {wanted}: {len(inside)} in the spot group, on-demand {on_demand}"
            self.watch.broken(Promise.REPLACED, how, self.now_s - LOST_S)

    def _lost_s(self, view: InstanceView) -> float:
        late_s = self.scenario.status_delay_s
        return LOST_S + late_s + (0.0 if view.lost else self.scenario.ghost_s)

    def _counts(self, view: InstanceView) -> bool:
        if view.warned_s is None:
            return True
        until_s = view.warned_s + self._lost_s(view)
        if (arrived_s := self.truth.warned_s.get(view.instance_id)) is not None:
            until_s = min(until_s, arrived_s + WARNED_S)
        if self.scenario.warm_pool:
            until_s = max(until_s, view.warned_s + 120.0)
        return self.now_s < until_s

    def _never_worked(self, view: InstanceView) -> bool:
        """Whether an instance has been there for long, got many requests' time, and serves none."""
        name, since_s = view.instance_id, self.truth.idle_s.get(view.instance_id, self.now_s)
        long = self.now_s - max(view.launched_s, since_s) > NEVER_WORKED_S
        missed = self.truth.missed.get(name, 0.0) >= CURED_REQUESTS
        return long and missed and not self.truth.served[name] and self._counts(view)

    def _just_ended(self, view: InstanceView) -> bool:
        if view.ended_s is None or view.purchase is not Purchase.SPOT or self.world.is_other(view):
            return False
        if (arrived_s := self.truth.warned_s.get(view.instance_id)) is not None:
            return self.now_s < arrived_s + WARNED_S
        left_s = self.truth.left_s.get(view.instance_id, view.ended_s)
        return self.now_s < left_s + self._lost_s(view)


class Released(Check):
    """On-demand is at most what spot lacked lately, and none where nothing is wrong."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._holes = Lately(RELEASED_S)
        self._proven: deque[set[str]] = deque(maxlen=round(KNOWN_S / SAMPLE_S) + 1)

    def sampled(self) -> None:
        truth, world, scenario = self.truth, self.world, self.scenario
        spot, on_demand = world.group(world.spot), world.group(world.on_demand).desired
        # What has just served its first request is known after the next health turn.
        self._proven.append({view.instance_id for view in truth.spot() if truth.proven(view)})
        proven = len(self._proven[0] & self._proven[-1])
        # Where on-demand is warm, some of a pool's warnings may have been lost.
        warned = Counter([view.pool for view in truth.mine if truth.warned(view)])
        lost = sum([math.ceil(0.15 * count) for count in warned.values()])
        extra = lost if scenario.warm_pool else 0
        self._holes.window_s = RELEASED_S + min(truth.gap_s(PROVEN_REQUESTS), 3 * 3600.0)
        self._holes.add(self.now_s, max(0, spot.desired - proven) + extra)
        window_s, needed = self._holes.window_s, int(self._holes.most())
        if world.adopted and self.now_s < WARM_UP_S + 1800.0:
            needed = max(needed, world.adopted)
        # An alarm asks whether less spot or less on-demand is meant.
        asks = truth.rings("adopting") and world.operator_acted
        surplus = on_demand > needed and truth.settled and not asks
        if self.now_s - self.since("surplus", surplus) >= 180.0:
            how = f"on-demand desired {on_demand}; spot lacked {needed} in {window_s / 60:.0f} min"
            self.watch.broken(Promise.RELEASED, how, self.now_s - window_s)
        if not scenario.faults and scenario.start is StartState.SERVING and on_demand:
            how = f"on-demand desired {on_demand}, and nothing is wrong"
            self.watch.broken(Promise.RELEASED, how)


class Sized(Check):
    """A fleet that the load sizes is no larger than its largest load of the last while needs.

    With a promise, it is no smaller than the least load of the last minutes.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._loads = Lately(GROWN_S - KNOWN_S)

    def sampled(self) -> None:
        if not (self.scenario.sized and self.truth.settled):
            return
        self._grown()
        load = self.truth.backlog.most()
        # A margin of two square roots is the dearest that chance asks for.
        most = workers_for(load + 2 * math.sqrt(load), self.scenario) + 3
        most = max(most - self.scenario.onprem_workers, self.scenario.spot_min)
        desired = self.world.group(self.world.spot).desired
        # Without a queue, silence may be missing logs.
        silent = not self.world.load() and not self.scenario.queue_known
        large = desired > max(most, self.world.operator_desired) and not silent
        if self.now_s - self.since("large", large) >= 180.0:
            how = f"spot desired {desired}, {most} are enough for {load:.2f} erlangs"
            self.watch.broken(Promise.SIZED, how, self.now_s - SHRUNK_S)

    def _grown(self) -> None:
        scenario, group = self.scenario, self.world.group(self.world.spot)
        self._loads.add(self.now_s, self.world.load())
        least = math.floor(self._loads.least(0.0) / scenario.slots)
        least = min(least - scenario.onprem_workers, scenario.spot_max, group.maximum)
        known = scenario.objective and self.now_s - self._loads[0][0] > GROWN_S - KNOWN_S - SAMPLE_S
        # An operator may make it smaller at any time.
        small_s = self.now_s - self.since("small", group.desired < least)
        if known and small_s >= KNOWN_S:
            how = f"spot desired {group.desired}, the load is at least {least} erlangs"
            self.watch.broken(Promise.GROWN, how, self.now_s - GROWN_S)


class Calm(Check):
    """Over the last half an hour, in which nothing is wrong, a fleet is as large as its load.

    A fleet whose load rose many times, or whose load rose or most of which hung while launches
    failed, is larger until, of what its promise lets be late, a fifth is left.
    """

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._sizes: list[int] = []
        self._idle = 0
        self._in_time: list[bool] = []

    def finished(self, served: Served) -> None:
        self._in_time.append(served.started_s - served.enqueued_s <= 10.0)

    def sampled(self) -> None:
        if self.now_s > self.scenario.quiet_from_s + 2400.0:
            groups = (self.world.group(name) for name in (self.world.spot, self.world.on_demand))
            self._sizes.append(sum(group.desired for group in groups))
            self._idle = max(self._idle, len(self.truth.idle_s))

    def ended(self) -> None:
        scenario, load = self.scenario, self.world.load()
        if not (self._sizes and load and scenario.sized) or self.world.adopted:
            return
        failing = [f for f in scenario.faults if f.kind in _NEVER_SERVES]
        rises = [
            (at_s, new / old if old else SURPRISE + new)
            for (_, old), (at_s, new) in pairwise(scenario.loads)
        ]
        # The load of what hangs falls on the others.
        rises += [(f.at_s, 2.0) for f in scenario.faults if f.kind is Kind.HANG and f.value > 1]
        rose = any(
            rise > SURPRISE or (rise > 1 and any(f.at_s <= at_s <= f.end_s for f in failing))
            for at_s, rise in rises
        )
        late = scenario.objective and sum(self._in_time) < IN_HAND * len(self._in_time)
        if rose and late:
            return
        needed = max(workers_for(load, scenario) - scenario.onprem_workers, scenario.spot_min)
        size = sum(self._sizes) / len(self._sizes)
        most = CALM_SHARE * needed + CALM_MORE + CALM_LATE * late + 2 * self._idle
        if size > max(most, self.world.operator_desired):
            how = f"{size:.1f} instances on average, {needed} are needed for {load} erlangs"
            self.watch.broken(Promise.CALM, how)


class Drained(Check):
    """A warned instance carries the mark that its workers read, soon and before its end."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._marked: set[str] = set()

    def sampled(self) -> None:
        truth = self.truth
        views = {view.instance_id: view for view in truth.mine}
        for name, view in views.items():
            if view.draining or view.state == TERMINATING:
                self._marked.add(name)
        for name, arrived_s in truth.warned_s.items():
            warned = views.get(name)
            due = self.now_s >= arrived_s + MARKED_S
            if not due or warned is None or warned.warned_s is None or name in self._marked:
                continue
            if warned.purchase is Purchase.SPOT and warned.in_service_s is not None:
                how = f"{name} was warned at {arrived_s:.0f} s and has no mark"
                self.watch.broken(Promise.DRAINED, how, arrived_s)
        for name, warned_s in truth.empty_s.items():
            kept = views.get(name)
            if kept is None or kept.warned_s is not None or kept.state != IN_SERVICE:
                continue
            if kept.draining and self.now_s > warned_s + UNMARKED_S:
                how = f"{name} has its mark for {(self.now_s - warned_s) / 60:.0f} min"
                self.watch.broken(Promise.SPARED, how, warned_s)
        if self.scenario.early_replacement:
            self._early(views)

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        """Only what was warned is marked, with the instant of its end."""
        if operation != "create_tags":
            return
        marks = {tag["Key"]: tag["Value"] for tag in params["Tags"]}
        if MARK not in marks:
            return
        ends_s = (datetime.fromisoformat(marks[MARK]) - EPOCH).total_seconds()
        empty = {*self.truth.empty_s, *self.world.hit.get(Kind.EMPTY_WARNING, ())}
        for name in {*params["Resources"]} - empty:
            if (warned_s := self.world.cloud.instance(name).warned_s) is None:
                self.watch.broken(Promise.SPARED, f"{name} is marked and was never warned")
            elif not NOTICE_S / 2 <= ends_s - warned_s <= 3 * NOTICE_S:
                how = f"{name} is marked as gone {ends_s - warned_s:.0f} s after its warning"
                self.watch.broken(Promise.DRAINED, how, warned_s)

    def _early(self, views: Mapping[str, InstanceView]) -> None:
        """Its group replaces it while it still serves."""
        for name, arrived_s in self.truth.warned_s.items():
            view = views.get(name)
            if view is None or view.warned_s is None or view.in_service_s is None:
                continue
            inside = view.group == self.world.spot and view.state == IN_SERVICE
            if inside and self.now_s >= arrived_s + WARNED_S:
                how = f"{name} was warned at {arrived_s:.0f} s and is in its group"
                self.watch.broken(Promise.EARLY, how, arrived_s)


class ServedInTime(Check):
    """The share of requests in time, over each hour without a fault that takes capacity."""

    HARMLESS = frozenset(
        {
            Kind.FOREIGN_EVENTS, Kind.REBALANCE, Kind.EMPTY_WARNING, Kind.COLD, Kind.CLOCKS,
            Kind.DOCUMENTS_DOWN,
        }
    )  # fmt: skip

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._hours: defaultdict[int, list[bool]] = defaultdict(list)
        faults = [f for f in self.scenario.faults if f.kind not in self.HARMLESS]
        # What waits after an outage of both groups takes as long again.
        after = {Kind.ON_DEMAND_DRY: 4200.0}
        spans = ((f.at_s, f.end_s + after.get(f.kind, 2400.0)) for f in faults)
        self._spans = [(0.0, WARM_UP_S), *spans]
        # A larger load has to be seen and to launch.
        loads = pairwise(self.scenario.loads)
        self._spans += [(at_s, at_s + 1200.0) for (_, old), (at_s, new) in loads if new > old]

        self._full_until_s = -math.inf

    def sampled(self) -> None:
        # What waits for as many as the fleet may have, waits for want of capacity.
        if self.world.force.queued and self.world.working() >= self.scenario.spot_max:
            self._full_until_s = self.now_s

    def finished(self, served: Served) -> None:
        at_s = served.enqueued_s
        # What does not work is replaced by two an hour.
        whole = at_s > max(self.truth.idle_until_s + 1200.0, self._full_until_s)
        if whole and not any(begin_s <= at_s <= end_s for begin_s, end_s in self._spans):
            self._hours[int(at_s // 3600)].append(served.started_s - at_s <= 10.0)

    def ended(self) -> None:
        if not (self.scenario.sized and self.scenario.objective):
            return
        for hour, in_time in self._hours.items():
            share = sum(in_time) / len(in_time)
            # Of less than half an hour, chance decides.
            enough = max(FEWEST_REQUESTS, 1800.0 * self.world.load() / self.scenario.service_s)
            # Two standard errors: late requests follow one another.
            late = len(in_time) - sum(in_time)
            many = late - 2 * math.sqrt(late) > (0.05 + LATE_MORE) * len(in_time)
            if len(in_time) >= enough and many:
                how = f"{share:.1%} of {len(in_time)} requests of hour {hour} were in time"
                self.watch.broken(Promise.SERVED, how)
        # Nothing goes wrong at the end, and nobody waits for long.
        quiet_s = self.now_s - self.scenario.quiet_from_s
        waiting, load = self.world.force.queued, self.world.load()
        alarmed = self.truth.rings(*SERVES_NOTHING)
        many = waiting > 60.0 * load / self.scenario.service_s + 20
        if quiet_s > 1800.0 and many and not alarmed:
            how = f"{waiting} requests wait for {load} erlangs at the end"
            self.watch.broken(Promise.SERVED, how)


class Cured(Check):
    """An instance in service that does not work is replaced, and an alarm says if none does."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._unserved, self._due_s = 0.0, math.inf
        self._order: dict[str, int] = {}
        self._none_until_s = -math.inf
        self._many_until_s = -math.inf
        self._slow: dict[str, tuple[float, int]] = {}

    def sampled(self) -> None:
        truth = self.truth
        self._woken()
        there, onprem = truth.in_service(), self.scenario.onprem_workers
        self._nobody(there)
        self._failing(there)
        self._slowed(there)
        if not truth.settled:
            return
        oldest = sorted(truth.idle_s, key=truth.idle_s.__getitem__)
        for order, name in enumerate(oldest):
            self._order[name] = max(order, self._order.get(name, 0))
        if 3 * len(oldest) > len(there) + onprem:
            self._many(there)
            self._many_until_s = self.now_s
            self._none_until_s = self._none_until_s if self.world.working() else self.now_s
            return
        self._covered(there)
        for name in oldest:
            # Two an hour; those of the hour before count, and those that were older at first.
            late_s = CURED_S + 3600.0 * (self._order[name] // REPLACED_AN_HOUR)
            late_s += 3600.0 * (len(self.world.replaced) >= REPLACED_AN_HOUR)
            # While none works, an alarm is all that is promised.
            since_s = max(truth.idle_s[name], self._none_until_s)
            known = truth.missed[name] >= CURED_REQUESTS
            if known and self.now_s - since_s > late_s + truth.gap_s(CURED_REQUESTS):
                minutes = (self.now_s - since_s) / 60
                how = f"{name} is in service for {minutes:.0f} min and does not work"
                self.watch.broken(Promise.CURED, how, since_s)

    def _woken(self) -> None:
        world, scenario = self.world, self.scenario
        groups = (world.group(name) for name in (world.spot, world.on_demand))
        asleep = not any(group.desired for group in groups) and not scenario.onprem_workers
        waits = asleep and world.force.queued and scenario.sized and scenario.queue_known
        since_s = self.since("asleep", waits)
        if self.now_s - since_s > WOKEN_S:
            how = f"{world.force.queued} requests wait, and nothing launches"
            self.watch.broken(Promise.WOKEN, how, since_s)

    def _covered(self, there: list[InstanceView]) -> None:
        """What hangs counts as missing from its due time on, replaced or not.

        Many that hang look like missing logs, of which nothing follows.
        """
        truth, world = self.truth, self.world
        if self.now_s - self._many_until_s <= ALARM_S:
            return
        hang = [
            since_s
            for name, since_s in truth.idle_s.items()
            if truth.missed[name] >= CURED_REQUESTS
            and self.now_s - since_s > CURED_S + truth.gap_s(CURED_REQUESTS)
            and world.cloud.instance(name).group == world.spot
        ]
        serve = len(list(truth.spot())) - len(hang)
        on_demand = world.group(world.on_demand).desired
        if hang and serve + on_demand < truth.stood():
            how = f"{len(hang)} hang, {serve} of {truth.stood()} serve, on-demand {on_demand}"
            self.watch.broken(Promise.COVERED, how, min(hang))

    def _many(self, there: list[InstanceView]) -> None:
        """Many that hang look like missing logs: on-demand, a replacement or an alarm follows."""
        truth, world = self.truth, self.world
        alone = {fault.kind for fault in self.scenario.faults} == {Kind.HANG}
        steady = len(self.scenario.loads) == 1
        seen = min(truth.missed.values(), default=0.0) >= PROVEN_REQUESTS
        some = 1 < len(truth.idle_s) < len(there) + self.scenario.onprem_workers
        together_s = self.since("together", alone and steady and seen and some)
        rang_s = max(truth.rang_s[alarm] for alarm in SERVES_NOTHING)
        acted = world.replaced or world.group(world.on_demand).desired or rang_s >= together_s
        # While none works, no request that others finish shows what hangs.
        apart_s = PROVEN_REQUESTS * len(there) * self.scenario.service_s / (world.load() or 1.0)
        since_s = max(together_s, self._none_until_s + apart_s)
        if not acted and self.now_s - since_s > 300.0:
            how = f"{len(truth.idle_s)} hang for 5 min longer than requests show it"
            self.watch.broken(Promise.FOUND, how, together_s)

    def _failing(self, there: list[InstanceView]) -> None:
        world, ours = self.world, {view.instance_id for view in there}
        bad = [i for i in ours & world.logs.failing if self.truth.failed[i] >= 10]
        since_s = self.since("failing", bad)
        if self.now_s - since_s < 1200.0:
            return
        if world.logs.failing.isdisjoint(world.replaced) and len(bad) < len(ours):
            how = f"{len(bad)} of {len(ours)} fail each request, and none is replaced"
            self.watch.broken(Promise.FAILING, how, since_s)
        if 2 * len(bad) > len(ours) and not self.truth.rings("nobody-serves"):
            how = f"{len(bad)} of {len(ours)} fail each request, and no alarm rings"
            self.watch.broken(Promise.FAILING, how, since_s)

    def _slowed(self, there: list[InstanceView]) -> None:
        world, served = self.world, self.truth.served
        slow = {v.instance_id for v in there} & world.force.slower.keys()
        self._slow = {i: self._slow.get(i, (self.now_s, served[i])) for i in slow}
        lately = sum(self.now_s - at_s < 3600.0 for at_s in world.replaced.values())
        for name, (since_s, before) in self._slow.items():
            known = served[name] - before >= CURED_REQUESTS
            if known and self.now_s - since_s > CURED_S and lately < REPLACED_AN_HOUR:
                how = f"{name} is slow for {(self.now_s - since_s) / 60:.0f} min"
                self.watch.broken(Promise.SLOWED, how, since_s)

    def _nobody(self, there: list[InstanceView]) -> None:
        nobody = not self.world.working() and not self.scenario.onprem_workers
        if not (nobody and there and self.truth.served):
            self._unserved, self._due_s = 0.0, math.inf
            return
        self._unserved += SAMPLE_S * self.world.load() / self.scenario.service_s
        if self._unserved >= PROVEN_REQUESTS:
            self._due_s = min(self._due_s, self.now_s + ALARM_S)
        if self.now_s > self._due_s and not self.truth.rings(*SERVES_NOTHING):
            how = f"{self._unserved:.0f} requests since the last was served, and no alarm"
            self.watch.broken(Promise.ALARMED, how, self._due_s - ALARM_S)


class Turns(Check):
    """Each controller of each fleet has a turn, or fails, so that an alarm rings."""

    FAILING = (*_AWS, Kind.DOCUMENTS_DOWN, Kind.QUEUE_DOWN, Kind.WRONG_DOCUMENT)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        fleets = (MAIN, *self.scenario.others)
        begin_s = self.scenario.deployed_at_s
        self._last_s = {(f, c): begin_s for f in fleets for c in ("availability", "health")}
        self._failures = Lately(900.0)
        # One invocation takes some fleets; a queue carries the others.
        self._longest_s = TURN_S if len(fleets) <= 5 else 2 * TURN_S

    def recorded(self, fleet: str, record: Mapping[str, Any]) -> None:
        self._last_s[fleet, record["controller"]] = self.now_s

    def done(self, invocation: Invocation) -> None:
        function, fleets = invocation.function, (MAIN, *self.scenario.others)
        controllers = {AVAILABILITY: "availability", HEALTH: "health"}
        if invocation.bug:
            self.watch.broken(Promise.NO_BUG, f"{function}: {invocation.bug}")
        if not invocation.failed:
            self._every_fleet(invocation)
            return
        if function in controllers:
            for fleet in fleets:
                self._last_s[fleet, controllers[function]] = self.now_s
        # While AWS fails a function may, too.
        if self.truth.active(self.FAILING, 300.0):
            return
        self._failures.add(self.now_s, 1)
        if len(self._failures) > 6:
            how = f"{len(self._failures)} failures in 15 min, the last: {invocation.failed[:160]}"
            self.watch.broken(Promise.SETTLED, f"{function}: {how}", self.now_s - 900.0)

    def _every_fleet(self, invocation: Invocation) -> None:
        """A tick leaves a record of every fleet, unless another turn works on it."""
        function, fleets = invocation.function, (MAIN, *self.scenario.others)
        ticks = function in (AVAILABILITY, HEALTH) and "Records" not in invocation.event
        if not ticks or invocation.overlapped or len(fleets) > 5:
            return
        for fleet in fleets:
            held = any(key.endswith("_until") for key in self.world.state_item(fleet))
            if fleet not in invocation.recorded and not held:
                how = f"{function} left no record of {fleet} and did not fail"
                self.watch.broken(Promise.RECORDED, how)

    def sampled(self) -> None:
        for (fleet, controller), last_s in self._last_s.items():
            if self.now_s - last_s > self._longest_s and self.now_s > 600.0:
                how = f"{controller} had no turn of {fleet} for {self.now_s - last_s:.0f} s"
                self.watch.broken(Promise.TURNS, how, last_s)


class Bounded(Check):
    """Requests stay within bounds, budgets and limits, and an operator's capacity stays."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._outside_s: dict[str, float] = {}
        self._suspended_s = 0.0

    def sampled(self) -> None:
        scenario, world = self.scenario, self.world
        spot, on_demand = (world.group(name).desired for name in (world.spot, world.on_demand))
        if spot > max(scenario.spot_max, world.operator_desired):
            self.watch.broken(Promise.BOUNDS, f"spot desired {spot} of {scenario.spot_max}")
        if on_demand > max(scenario.spot_max, world.adopted):
            self.watch.broken(Promise.BOUNDS, f"on-demand desired {on_demand}")
        owned = world.spot in world.cloud.groups() and not scenario.sized
        if owned and spot < world.operator_wants:
            how = f"spot desired {spot}, an operator set {world.operator_wants}"
            self.watch.broken(Promise.OPERATOR, how)
        self._broken_release(on_demand)
        self._orphans()
        self._launches()

    def _broken_release(self, on_demand: int) -> None:
        """What only a person can mend gets little on-demand beside what was lost, and an alarm."""
        scenario, world = self.scenario, self.world
        kinds = {fault.kind for fault in scenario.faults}
        (mine,) = scenario.faults if len(scenario.faults) == 1 else (None,)
        if mine is None or not mine.at_s + 900.0 < self.now_s < mine.end_s:
            return
        lost = sum(v.lost and (v.ended_s or 0.0) >= mine.at_s for v in world.cloud.history())
        if kinds == {Kind.BAD_SPOT_IMAGE} and on_demand > lost + CAP:
            how = f"on-demand desired {on_demand}; {lost} were lost, and no launch serves"
            self.watch.broken(Promise.CAPPED, how)
        group = world.group(world.spot)
        short = len(group.instances) < group.desired
        gone = mine.kind is Kind.LAUNCH_REFUSED and mine.value == KEY_PAIR
        if gone and short and self.truth.rang_s["configuration"] < mine.at_s:
            how = f"{len(group.instances)} of {group.desired}: a key pair is gone, and no alarm"
            self.watch.broken(Promise.MENDED, how, mine.at_s)

    def _orphans(self) -> None:
        outside = [v.instance_id for v in self.world.cloud.instances() if not v.group]
        self._outside_s = {i: self._outside_s.get(i, self.now_s) for i in outside}
        for name, since_s in self._outside_s.items():
            if self.now_s - since_s > ORPHAN_S:
                minutes = (self.now_s - since_s) / 60
                how = f"{name} runs in no group for {minutes:.0f} min"
                self.watch.broken(Promise.ORPHANS, how, since_s)

    def _launches(self) -> None:
        scenario, world = self.scenario, self.world
        mine = [v for v in world.cloud.history() if not world.is_other(v)]
        since_s = self.now_s - 3600.0
        hour = sum(v.launched_s > since_s for v in mine)
        # Each lost instance makes two launches: its successor, and backfill until that serves.
        ends = [v.ended_s if v.lost else v.warned_s for v in mine]
        lost = sum(at_s is not None and at_s > since_s for at_s in ends)
        never = {Kind.LAUNCH_REFUSED, Kind.BAD_SPOT_IMAGE, Kind.BOOT_LOOP, Kind.OPERATOR_SUSPENDS}
        never |= {Kind.BAD_ON_DEMAND_IMAGE}
        looping = any(fault.kind in never for fault in scenario.faults)
        if hour > 40 * scenario.scale + 2 * lost and not looping:
            self.watch.broken(Promise.LAUNCHES, f"{hour} launches in an hour")
        if LAUNCH in world.group(world.spot).suspensions:
            # AWS launches all missing instances when its suspension ends: that is no loop.
            self._suspended_s = self.now_s
        begin_s = max(scenario.quiet_from_s, self._suspended_s) + 1500.0
        late = sum(v.launched_s > begin_s for v in mine)
        if self.now_s > scenario.quiet_from_s and late > 12 * scenario.scale:
            minutes = (self.now_s - begin_s) / 60
            self.watch.broken(Promise.LAUNCHES, f"{late} launches in {minutes:.0f} quiet minutes")


class Beside(Check):
    """A fleet that has its own load, workers and health, and no fault, is harmed by none."""

    SPARED = (*_AWS, Kind.COLLECTOR_DOWN, Kind.DOCUMENTS_DOWN, Kind.QUEUE_DOWN, Kind.COLD)

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._in_time: list[bool] = []

    def finished_beside(self, served: Served) -> None:
        if self.truth.settled and not self.truth.active(self.SPARED, 1200.0):
            self._in_time.append(served.started_s - served.enqueued_s <= 10.0)

    def sampled(self) -> None:
        name, group = self.scenario.neighbour, self.world.group
        if not name or not self.truth.settled or self.truth.active(self.SPARED, 1200.0):
            return
        spot, on_demand = group(f"{name}-spot").desired, group(f"{name}-on-demand").desired
        most = workers_for(NEIGHBOURS_LOAD + 2 * math.sqrt(NEIGHBOURS_LOAD), Scenario()) + 2
        if on_demand or not NEIGHBOURS_LOAD <= spot <= most:
            how = f"{name}: spot desired {spot}, on-demand desired {on_demand}"
            self.watch.broken(Promise.ISOLATED, how)

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        name = params.get("InstanceId", "")
        ours = self.world.group_of(name) in self.world.other_groups
        if replaces(operation, params) and ours:
            self.watch.broken(Promise.ISOLATED, f"{name} of another fleet was replaced")

    def ended(self) -> None:
        count = len(self._in_time)
        if count >= FEWEST_REQUESTS and sum(self._in_time) < (0.95 - LATE_MORE) * count:
            share = sum(self._in_time) / count
            how = f"{share:.1%} of {count} requests of {self.scenario.neighbour} were in time"
            self.watch.broken(Promise.ISOLATED, how)


def replaces(operation: str, params: Mapping[str, Any]) -> bool:
    """Whether a call ends an instance and leaves its group the capacity for another one."""
    ends = operation == "terminate_instance_in_auto_scaling_group"
    return ends and not params["ShouldDecrementDesiredCapacity"]


class Acting(Check):
    """Every call that ends, lowers or replaces something is right at its instant."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._lowered_last = False
        self._refills, self._loads = Lately(3600.0), Lately(600.0)
        self._spent_s: list[float] = []

    def sampled(self) -> None:
        self._loads.add(self.now_s, self.world.load())

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        world = self.world
        name = params.get("InstanceId", "")
        group = params.get("AutoScalingGroupName", "") or world.group_of(name)
        if operation == "suspend_processes":
            return
        if group in world.other_groups:
            return
        match operation:
            case "set_desired_capacity":
                by = world.group(group).desired - int(params["DesiredCapacity"])
                self._moved(group, -by)
                if by > 0:
                    self._lowered(group, by, "", function)
            # A call that is repeated because its answer was lost has no further effect.
            case _ if replaces(operation, params):
                if name not in world.replaced:
                    self._replaces(name)
            case "terminate_instance_in_auto_scaling_group":
                self._moved(group, -1)
                if world.cloud.instance(name).state != TERMINATING:
                    self._lowered(group, 1, name, function)

    def _moved(self, group: str, by: int) -> None:
        """Count how often on-demand is backfilled again after a release."""
        if group != self.world.on_demand or not by:
            return
        if by > 0 and self._lowered_last:
            self._refills.add(self.now_s, by)
        self._lowered_last = by < 0
        if len(self._refills) > 5:
            how = f"backfilled again after a release {len(self._refills)} times in an hour"
            self.watch.broken(Promise.NO_FLAPPING, how)

    def _lowered(self, group: str, by: int, name: str, function: str) -> None:
        """A lower spot group keeps the load; less on-demand keeps what serves."""
        world, scenario = self.world, self.scenario
        view, load = world.group(group), self._loads.least(0.0) / scenario.slots
        large = scenario.scale > 1
        if group == world.spot:
            left = view.desired - by + scenario.onprem_workers
            small = 0.9 if not large else 0.0
            needed = load * (0.99 if large and self.truth.settled else small)
            asleep = not left and not scenario.spot_min and scenario.queue_known
            idle = not world.force.queued and not world.force.in_flight
            if left < needed and function == HEALTH and not (asleep and idle):
                how = f"spot {view.desired} -> {view.desired - by} under {load} erlangs"
                self.watch.broken(Promise.SCALE_IN, how)
            return
        # The calls of a turn are within one second, so what leaves counts as gone.
        working = self._working(world.cloud.instances())
        ended = (
            world.works(name)
            if name
            else max(0, self._working(view.instances) - (view.desired - by))
        )
        spot = world.group(world.spot)
        needed = min(load, spot.maximum if world.adopted else spot.desired)
        # That some hang is seen once they have missed enough requests. What somebody ended is
        # in service for its group until the next health check.
        unseen = sum(missed < 1.5 * CURED_REQUESTS for missed in self.truth.missed.values())
        unseen += sum(map(self._just_ended, (*spot.instances, *view.instances)))
        left = working + unseen - ended + scenario.onprem_workers
        if ended and left < needed:
            how = f"on-demand {view.desired} -> {view.desired - by}: {left} of {needed} serve"
            self.watch.broken(Promise.MAKE_BEFORE_BREAK, how)

    def _just_ended(self, view: InstanceView) -> bool:
        shown = view.ended_s is not None and view.state == IN_SERVICE and not view.lost
        return shown and self.now_s - (view.ended_s or 0.0) < self.scenario.ghost_s

    def _working(self, members: Iterable[InstanceView]) -> int:
        stay = (v.instance_id for v in members if v.state != TERMINATING)
        return sum(map(self.world.works, stay))

    def _replaces(self, name: str) -> None:
        world = self.world
        world.replaced[name] = self.now_s
        forgotten = (Kind.STATE_LOST, Kind.STATE_UNREADABLE)
        lost = [f for f in self.scenario.faults if f.kind in forgotten]
        memories = 1 + sum(self.now_s - 3600.0 < f.at_s <= self.now_s for f in lost)
        since_s = self.truth.works_since.get(name, self.now_s)
        if self.now_s - since_s > 600.0 and name not in {
            *world.hung,
            *(world.muted - self._only_mute()),
            *world.logs.failing,
            *world.force.slower,
        }:
            self.watch.broken(Promise.REASONED, f"{name}, which served, was replaced")
        if self._starts_again(world.cloud.instance(name)):
            return
        self._spent_s.append(self.now_s)
        hour = sum(self.now_s - at_s < 3600.0 for at_s in self._spent_s)
        if hour > REPLACED_AN_HOUR * memories:
            self.watch.broken(Promise.BUDGET, f"{hour} replacements in an hour")

    def _only_mute(self) -> set[str]:
        """The instances of which certainly only the logs are missing, as yet.

        One alone in service looks dead. Where the load has changed, the others may serve as if
        these were dead.
        """
        fault, now_s = self.world.active.get(Kind.HALF_LOGS), self.now_s
        members = self.world.group(self.world.spot).instances
        there = self.world.mute - {v.instance_id for v in members if v.state == STANDBY}
        if fault is None or now_s - fault.at_s > MUTED_S or len(there) == 1:
            return set()
        changed = any(fault.at_s - 3600.0 < at_s < now_s for at_s, _ in self.scenario.loads[1:])
        return set() if changed else self.world.mute

    def _starts_again(self, view: InstanceView) -> bool:
        """Whether an instance never served, and a later one of its group does."""
        others = self.world.group(view.group).instances if view.serves_s is None else ()
        later = (one.instance_id for one in others if one.launched_s > view.launched_s)
        return any(map(self.world.works, later))


class Announced(Check):
    """Each event reports a change of state, and the last ones are true."""

    DIMENSIONS = (
        {"whole", "short", "both-short"}, {"backfilled", "released"}, {"sleeping", "awake"},
        {"paused"},
    )  # fmt: skip

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._ids: set[str] = set()
        self._states: dict[tuple[str, int], str] = {}

    def announced(self, event: Mapping[str, Any]) -> None:
        fleet, state = event["fleet"], event["state"]
        if event["id"] in self._ids:
            return
        self._ids.add(event["id"])
        (kind,) = (n for n, states in enumerate(self.DIMENSIONS) if state in states)
        self.world.tell(f"  announced: {fleet} {state}")
        # After a lost memory, all states are announced again.
        forgotten = any(
            f.kind in (Kind.STATE_LOST, Kind.STATE_UNREADABLE) and f.at_s <= self.now_s
            for f in self.scenario.faults
        )
        if self._states.get((fleet, kind)) == state and not forgotten:
            self.watch.broken(Promise.ANNOUNCED, f"{fleet} {state}, and again {state}")
        self._states[fleet, kind] = state

    def ended(self) -> None:
        spot, on_demand = (self.world.group(n) for n in (self.world.spot, self.world.on_demand))
        there = len(spot.instances) + len(on_demand.instances)
        backfilled = on_demand.desired > 0
        last = [self._states.get((MAIN, kind)) for kind in range(3)]
        holds = {"whole": there >= spot.desired, "backfilled": backfilled,
                 "released": not backfilled}  # fmt: skip
        if any(state is None or not holds.get(state, True) for state in last):
            how = f"announced {last}; {there} of {spot.desired} are there"
            self.watch.broken(Promise.ANNOUNCED, how)


PROMISES = (
    Replaced, Released, Sized, Calm, Drained, ServedInTime, Cured, Turns, Bounded, Beside, Acting,
    Announced,
)  # fmt: skip
