"""The promises: checked every virtual minute, and at every call that changes something."""

import json
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from spotkeeper.domain.availability.announcements import State
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper.turns.turn import FLEETS_AN_INVOCATION
from spotkeeper_lab.cloud.values import IN_SERVICE, LAUNCH, TERMINATING, InstanceView
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.scenario import MAIN, WARM_UP_S, Scenario, StartState
from spotkeeper_lab.troubles import REPLACEMENTS_AN_HOUR, Troubled
from spotkeeper_lab.workers import Served
from spotkeeper_lab.world import AVAILABILITY, HEALTH, Invocation

STEADY_S = 600.0
"""A fleet must serve the least load of the last this many seconds."""
SHORT_S = 1200.0
"""The longest that a fleet may be short."""
WHOLE_AFTER_S = 1200.0
"""How long after an unavoidable fault its effects are excused."""
SILENT_S = 300.0
"""The longest between two turns of another fleet."""

CAPPED = frozenset(
    {Kind.LAUNCH_REFUSED, Kind.BAD_SPOT_IMAGE, Kind.BOOT_LOOP, Kind.OPERATOR_SUSPENDS}
)
"""More instances do not help against these, so the backfill has a cap."""

BROKEN_RELEASE = frozenset({Kind.BAD_SPOT_IMAGE, Kind.BAD_ON_DEMAND_IMAGE})
LOSSES = frozenset({Kind.LOSS, Kind.UNWARNED_LOSS})
CONFIGURATION_CAP, FAILURES = 2, 5

FORGETFUL = frozenset({Kind.STATE_LOST, Kind.STATE_UNREADABLE})
UNREAD_LOGS = frozenset({Kind.LOGS_STOP, Kind.COLLECTOR_DOWN})
"""While these last, no search log shows that a new instance serves."""
HELPLESS = frozenset(
    {
        Kind.ON_DEMAND_DRY,
        Kind.ON_DEMAND_DELETED,
        Kind.BAD_ON_DEMAND_IMAGE,
        Kind.OPERATOR_MAXIMUM,
        Kind.HANG,
        Kind.LOGS_STOP,
        Kind.LOGS_LATE,
        Kind.HALF_LOGS,
        Kind.COLLECTOR_DOWN,
    }
)
"""While these last, Spotkeeper cannot fill a gap, or cannot see it."""

DIMENSIONS = (
    {State.WHOLE, State.SHORT, State.BOTH_SHORT},
    {State.BACKFILLED, State.RELEASED},
    {State.SLEEPING, State.AWAKE},
    {State.PAUSED},
)
"""A fleet is in one state of each set at a time."""


class Promise(StrEnum):
    BOUNDS = "bounds"
    WHOLE = "whole again"
    SERVED = "requests are served"
    GIVEN_BACK = "on-demand given back"
    CURED = "an instance that does not work is replaced"
    SCALE_IN = "no scale-in below the load"
    MAKE_BEFORE_BREAK = "make before break"
    REASONED = "only reasoned ends"
    BUDGET = "replacements within the budget"
    LAUNCHES = "launches an hour"
    NO_LOOP = "no launch loop"
    NO_FLAPPING = "no flapping"
    ORPHANS = "no orphan"
    RECORDED = "a record or a failure for every turn"
    ISOLATED = "fleets do not disturb each other"
    COST = "cost bounded"
    FAILING = "a worker that fails each request is replaced, and an alarm rings if most do"
    FOUND = "workers that hang together are found"
    SUSPECT = "a suspect stays one until it logs"
    UNMOVED = "a fleet without faults buys no on-demand"
    CAPPED = "a broken release costs no more on-demand than its cap"
    OPERATOR = "an operator's desired stays"
    SETTLED = "no failures without end"
    NO_BUG = "no unexpected error"
    ALARMED = "an alarm when nobody serves"
    ANNOUNCED = "one event for each change of state"


class Excuse(StrEnum):
    """Why a promise may not hold for a time without being broken."""

    TROUBLE = "AWS refuses or loses calls that a turn needs, or no turn runs"
    HELPLESS = "nobody can fill the gap, or no search log shows it"
    UNSEEN = "too few requests have passed an idle worker to tell"
    ALARMED = "nobody serves, or their logs are missing: an alarm says it, one is replaced late"
    BUDGET = "the replacements of the hour are spent"
    CAPPED = "more instances do not cure a failure of configuration"
    WRONG = "a document is wrong or unread, a group is deleted, or EC2 or the queue of turns hangs"
    UNPROVEN = "a deleted group took along the proof of what was detached from it"
    UNREAD_LOGS = "search logs do not arrive, and nothing else shows whether a worker serves"
    LOWERED = "a person lowered spot below on-demand while no turn ran: an alarm asks what is meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    promise: Promise
    at_s: float
    how: str


# How long the health controller remembers the load from when all workers logged.
REMEMBERED_S = 3600.0


@dataclass(slots=True)
class Evidence:
    """The requests that each idle instance should have served, by the logs and the queue.

    `missed_s` has the time from which on they are enough to see that the instance does not work.
    """

    passed: dict[str, float] = field(default_factory=dict)
    missed_s: dict[str, float] = field(default_factory=dict)

    def add(self, idle: Collection[str], requests: float, now_s: float) -> None:
        """Add requests to each idle instance; an instance that serves again starts at 0."""
        self.passed = {i: self.passed.get(i, 0.0) + requests for i in idle}
        known = self.missed_s
        self.missed_s = {i: known.get(i, now_s) for i, n in self.passed.items() if n >= CERTAIN}

    def unseen(self, now_s: float, grace_s: float) -> set[str]:
        """Return the instances that still look idle, or did until `grace_s` ago."""
        return {i for i in self.passed if now_s - self.missed_s.get(i, now_s) <= grace_s}


def evidence_of(
    scenario: Scenario, now_s: float, there: int, idle: int, logged: int, *, reported: bool
) -> tuple[float, bool]:
    """Return the requests that each idle instance missed in a minute, and if only alarms follow.

    Of the instances that are `there`, `idle` served none of the `logged` requests. If no instance
    serves and one of them `reported` before, or if the others are no busier, logs may be missing:
    then an alarm rings, and one instance is replaced late.
    """
    everyone, serving = there + scenario.onprem_workers, there - idle + scenario.onprem_workers
    loads = _loads(scenario, now_s)
    if not serving:
        requests = 60.0 * loads[-1] / scenario.service_s / max(1, everyone)
        return requests, reported and not scenario.queue_known
    # If the idle instances had died, the others would be busier than before. If the others are
    # nearly as busy as all were, the load fell, or logs are missing.
    taken_over = max(loads) / everyone * (1 + everyone / serving) / 2
    at_ease = 3 * idle > there and loads[-1] / serving < taken_over
    return logged / everyone, at_ease


def _loads(scenario: Scenario, now_s: float) -> list[float]:
    """The loads of the last hour, the present one last."""
    steps = [*scenario.loads, (math.inf, 0.0)]
    return [
        load
        for (begins_s, load), (end_s, _) in pairwise(steps)
        if begins_s <= now_s < end_s + REMEMBERED_S
    ]


def is_budget_spent(ages_s: list[float], short: int, budget: int) -> bool:
    """Whether all missing instances were just replaced, and the hour's budget is spent."""
    just = sum(age_s < WHOLE_AFTER_S for age_s in ages_s)
    lately = sum(age_s < 3600.0 + WHOLE_AFTER_S for age_s in ages_s)
    return just >= short and lately >= budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run; `story` has a line for each thing that happened."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    invocations: int
    losses: int
    excused: Counter[Excuse]
    story: tuple[str, ...]


class Watched(Troubled):
    """A world with faults whose promises are checked; it keeps the first violation of each."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.found: dict[Promise, Violation] = {}
        self.excused: Counter[Excuse] = Counter()
        self.replaced: dict[str, float] = {}
        self._works_since: dict[str, float] = {}
        self._replaced_while_serving = 0
        self._failures: deque[float] = deque()
        self._outside_since: dict[str, float] = {}
        self._short_since: float | None = None
        self._evidence = Evidence()
        self._suspects: set[str] = set()
        self._seen_hung_since: float | None = None
        self._failed_by: Counter[str] = Counter()
        self._seen_failing_since: float | None = None
        self._only_unread_logs = False
        self._killed_s = -math.inf
        self._only_alarms_s = -math.inf
        self._logged_before = 0
        self._unserved = 0.0
        self._alarm_due_s = math.inf
        self._most = 0
        self._slept = False
        self._unneeded_since: float | None = None
        self._not_working_since: dict[str, float] = {}
        self._suspended_s = 0.0
        self._lowered_last = False
        self._refills: deque[float] = deque()
        self._announced_ids: set[str] = set()
        self._states: dict[tuple[str, int], State] = {}

    def broken(self, promise: Promise, how: str, *excuses: Excuse | None) -> None:
        """Count the first excuse; without one, the promise is broken."""
        if excuse := next(filter(None, excuses), None):
            self.excused[excuse] += 1
            return
        violation = Violation(promise=promise, at_s=self.now_s, how=how)
        self.found.setdefault(promise, violation)

    # --- the state now, and in the last minutes -------------------------------------------------

    def _trouble(self, seconds: float) -> Excuse | None:
        """Excuse a violation if AWS or the schedules were disturbed within this time."""
        return Excuse.TROUBLE if self.now_s - self.last_trouble_s <= seconds else None

    def _wrong(self, seconds: float) -> Excuse | None:
        return Excuse.WRONG if self.now_s - self.last_excused_s <= seconds else None

    def _rings(self, alarm: str) -> bool:
        return self.now_s - self.rang_s[alarm] <= SILENT_S

    def _begun(self, kinds: Collection[Kind]) -> list[Fault]:
        """The faults of some kinds that have begun."""
        return [f for f in self.scenario.faults if f.kind in kinds and f.at_s <= self.now_s]

    def _just_forgot(self) -> bool:
        return any(fault.at_s > self.now_s - 60.0 for fault in self._begun(FORGETFUL))

    def _recently(self, kinds: Collection[Kind]) -> bool:
        """Whether one of some faults lasts, or ended less than `WHOLE_AFTER_S` ago."""
        return any(fault.end_s >= self.now_s - WHOLE_AFTER_S for fault in self._begun(kinds))

    def _replaced_within(self, seconds: float) -> int:
        return sum(self.now_s - at_s < seconds for at_s in self.replaced.values())

    def _not_working(self) -> list[str]:
        """The instances in service that take no requests."""
        return [i.instance_id for i in self.in_service() if not self.works(i.instance_id)]

    def in_service(self) -> list[InstanceView]:
        members = self.cloud.instances()
        return [i for i in members if i.state == IN_SERVICE and not self.is_other(i)]

    def serving(self, members: Iterable[InstanceView]) -> int:
        """How many of some instances take requests and do not leave."""
        return sum(self.works(i.instance_id) for i in members if i.state != TERMINATING)

    # --- every minute ---------------------------------------------------------------------------

    def minute(self) -> None:
        quiet_s = self.now_s - self.scenario.quiet_from_s
        self._note_workers()
        self._update_evidence()
        self._alarm_rings()
        self._hung_are_found()
        self._failing_are_found()
        self._bounds()
        self._orphans()
        self._whole()
        if quiet_s > 0:
            self._requests_served(quiet_s)
            self._backfill_ends()
            self._cured()
        self._launches(quiet_s)
        for name, recorded_s in self.others_recorded_s.items():
            since_s = self.now_s - recorded_s
            if since_s > SILENT_S and self.now_s > STEADY_S:
                how = f"{name} was not turned for {since_s:.0f} s"
                self.broken(Promise.ISOLATED, how, self._trouble(SILENT_S))

    def _note_workers(self) -> None:
        """Remember since when instances take requests, and whose logs are not read."""
        known = self._works_since
        works = {i for i in self.force.instances if self.works(i)}
        if UNREAD_LOGS & self.active.keys():
            self.muted |= works - self.logged_instances
        self._works_since = {i: known.get(i, self.now_s) for i in works}

    def _update_evidence(self) -> None:
        """Count the requests that each idle instance in service missed."""
        there, idle = self.in_service(), set(self._not_working())
        logged, self._logged_before = self.logged - self._logged_before, self.logged
        requests, only_alarms = evidence_of(
            self.scenario,
            self.now_s,
            len(there),
            len(idle),
            logged,
            reported=not self.logged_instances.isdisjoint(idle),
        )
        if only_alarms:
            self._only_alarms_s = self.now_s
        if self._just_forgot():
            self._evidence = Evidence()
        # A turn reads the logs of the last minutes, so requests do not count while no turn runs.
        counted = 0.0 if Kind.NO_TURNS in self.active else requests
        self._evidence.add(idle, counted, self.now_s)
        if not self.logged_instances.isdisjoint([i.instance_id for i in there]):
            self._only_unread_logs = self._nothing_shows()

    def _nothing_shows(self) -> bool:
        """Whether nothing shows which instances serve: no log arrives, and no queue is known."""
        return not self.scenario.queue_known and bool(UNREAD_LOGS & self.active.keys())

    @property
    def _only_alarms(self) -> bool:
        """Whether only alarms help now, or did in the last minutes."""
        return self.now_s - self._only_alarms_s <= SILENT_S

    def _alarm_rings(self) -> None:
        """If requests show that no instance serves, an alarm rings within ten minutes."""
        scenario = self.scenario
        none_serve = not (self.working() or scenario.onprem_workers) and self.in_service()
        if not none_serve or not self.logged_instances or self._just_forgot():
            self._unserved, self._alarm_due_s = 0.0, math.inf
            return
        self._unserved += 60.0 * min(_loads(scenario, self.now_s)) / scenario.service_s
        # Half more than is certain, because requests arrive at random.
        longest_s = 600.0
        if self._unserved >= 1.5 * CERTAIN:
            self._alarm_due_s = min(self._alarm_due_s, self.now_s + longest_s)
        if self.now_s > self._alarm_due_s and not self._rings("nobody-serves"):
            self.broken(
                Promise.ALARMED,
                f"{self._unserved:.0f} requests arrived since the last was served, and no alarm "
                "says that nobody serves",
                self._trouble(longest_s),
                self._wrong(longest_s),
            )

    def _hung_are_found(self) -> None:
        """Where nothing else is wrong and the load is steady, a few requests for each show it."""
        scenario, hung = self.scenario, set(self._not_working()) & self.hung.keys()
        steady = len(scenario.loads) == 1 and {f.kind for f in scenario.faults} == {Kind.HANG}
        seen = min([self._evidence.passed.get(i, 0.0) for i in hung], default=0.0) >= CERTAIN / 2
        together = steady and seen and len(hung) > 1 and self.working() + scenario.onprem_workers
        self._seen_hung_since = (self._seen_hung_since or self.now_s) if together else None
        if self._seen_hung_since is None or self.replaced or self.group(self.on_demand).desired:
            return
        if self.now_s - self._seen_hung_since > SILENT_S:
            self.broken(Promise.FOUND, f"{len(hung)} hang for {SILENT_S / 60:.0f} min longer")

    def served(self, served: Served) -> None:
        """Count the requests that a failing worker fails."""
        super().served(served)
        self._failed_by[served.instance_id] += served.instance_id in self.logs.failing

    def _failing_are_found(self) -> None:
        """Where nothing else is wrong, ten failures of each are enough; one is tried, or all."""
        ours = {view.instance_id for view in self.in_service()}
        bad = [i for i in ours & self.logs.failing if self._failed_by[i] >= 2 * FAILURES]
        since = self._seen_failing_since = (self._seen_failing_since or self.now_s) if bad else None
        if since is None or self.now_s - since < SHORT_S:
            return
        if self.logs.failing.isdisjoint(self.replaced) and len(bad) < len(ours):
            self.broken(Promise.FAILING, f"{len(bad)} of {len(ours)} fail, and none is replaced")
        if 2 * len(bad) > len(ours) and not self._rings("nobody-serves"):
            self.broken(Promise.FAILING, f"{len(bad)} of {len(ours)} fail, and no alarm rings")

    def _bounds(self) -> None:
        """Requests and running instances stay within the bounds; an operator's capacity stays."""
        scenario, running = self.scenario, self.cloud.instances()
        spot, on_demand = self.group(self.spot).desired, self.group(self.on_demand).desired
        if spot > max(scenario.spot_max, self.operator_desired):
            self.broken(Promise.BOUNDS, f"spot desired {spot}, spot_max {scenario.spot_max}")
        if on_demand > max(scenario.spot_max, self.adopted):
            how = f"on-demand desired {on_demand}, on_demand_max {scenario.spot_max}"
            self.broken(Promise.BOUNDS, how)
        if self.spot in self.cloud.groups() and not scenario.sized and spot < self.operator_wants:
            self.broken(Promise.OPERATOR, f"spot desired {spot}, requested {self.operator_wants}")
        # A burst of warnings: those that were warned, their replacements, and the backfill.
        most = 3 * max(scenario.spot_max, self.operator_desired, self.adopted) + 4
        mine = sum(not self.is_other(view) for view in running)
        if mine > most:
            self.broken(Promise.COST, f"{mine} instances run at once")

        if not scenario.faults and scenario.start is StartState.SERVING and on_demand:
            self.broken(Promise.UNMOVED, f"on-demand desired {on_demand}, and nothing is wrong")
        # Besides the cap, single losses may have been filled at once.
        only = {fault.kind for fault in scenario.faults} <= BROKEN_RELEASE | LOSSES
        if only and self.active.keys() >= BROKEN_RELEASE and on_demand > CONFIGURATION_CAP + 3:
            how = f"on-demand desired {on_demand}, and what is launched never serves"
            self.broken(Promise.CAPPED, how)

    def _orphans(self) -> None:
        known, longest_s = self._outside_since, 1500.0
        outside = [i.instance_id for i in self.cloud.instances() if not i.group]
        self._outside_since = {i: known.get(i, self.now_s) for i in outside}
        for instance_id, since_s in self._outside_since.items():
            if self.now_s - since_s > longest_s:
                self.broken(
                    Promise.ORPHANS,
                    f"{instance_id} runs in no group since {since_s:.0f} s",
                    self._trouble(longest_s),
                    self._wrong(longest_s),
                    Excuse.UNPROVEN if self._begun({Kind.GROUP_DELETED}) else None,
                )

    def _whole(self) -> None:
        """The fleet is never short for longer than `SHORT_S`, unless an excuse holds."""
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        working, wanted = self.working(), min(spot.desired, self.scenario.spot_max)
        if self._recently(CAPPED):
            capped = min(wanted, CONFIGURATION_CAP)
            self.excused[Excuse.CAPPED] += capped <= working < wanted
            wanted = capped
        missing = wanted - working
        short = missing > 0
        # While the need grows, the newest instances need time to start.
        more, self._most = wanted > self._most, max(wanted, self._most) if short else wanted
        # A shortage begins once requests have shown it.
        unseen = short and len(self._evidence.unseen(self.now_s, 0.0)) >= missing
        self.excused[Excuse.UNSEEN] += unseen
        waited_for = not short or more or unseen
        self._short_since = None if waited_for else (self._short_since or self.now_s)
        lasted_s = self.now_s - (self._short_since or self.now_s)
        if lasted_s <= SHORT_S:
            return
        # Without the table or the documents, turns backfill but replace nothing. Instances that do
        # not work are replaced afterwards, and their successors need time to launch.
        cut_off = self.now_s - self.last_cut_off_s <= SHORT_S
        late = len(self._not_working()) + self._replaced_within(STEADY_S)
        self.broken(
            Promise.WHOLE,
            f"{working} of {spot.desired} serve for {lasted_s / 60:.0f} min, "
            f"on-demand desired {on_demand.desired}",
            self._trouble(SHORT_S) if cut_off or missing <= late else None,
            self._excuse(missing),
            Excuse.HELPLESS if self._recently(HELPLESS) else None,
            self._budget_spent(missing),
        )

    def _excuse(self, short: int) -> Excuse | None:
        """Return why this many instances may be idle: nothing shows it yet, or an alarm rings."""
        if len(self._evidence.unseen(self.now_s, SHORT_S)) >= short:
            return Excuse.UNSEEN
        alarmed = self._rings("nobody-serves") or self._rings("search-logs-missing")
        # One of them may have been replaced to see whether its successor reports.
        known = len(self._evidence.passed) + self._replaced_within(WHOLE_AFTER_S)
        if self._only_alarms and alarmed and known >= short:
            return Excuse.ALARMED
        # Logs had stopped before the last reporting instance left, so requests may have stopped.
        return Excuse.UNREAD_LOGS if self._only_unread_logs and alarmed else None

    def _budget_spent(self, short: int) -> Excuse | None:
        """Excuse a shortage if all missing are broken or just replaced, and the budget is spent."""
        ages_s = [self.now_s - at_s for at_s in self.replaced.values()]
        spent = is_budget_spent(ages_s, short - len(self._not_working()), REPLACEMENTS_AN_HOUR)
        return Excuse.BUDGET if spent else None

    def _launches(self, quiet_s: float) -> None:
        """Launches stay below a limit per hour, and below another one after the last fault.

        `quiet_s` is the time since the last fault, negative before it.
        """
        scenario = self.scenario
        mine = [i for i in self.cloud.history() if not self.is_other(i)]
        launched, since_s = [i.launched_s for i in mine], self.now_s - 3600.0
        hour = sum(at_s > since_s for at_s in launched)
        # Each lost instance makes two launches: its successor, and backfill until that serves.
        lost = sum(i.lost and i.ended_s is not None and i.ended_s > since_s for i in mine)
        # AWS itself relaunches instances that die while they start, or are abandoned.
        abandoned = scenario.launch_hook_s and not scenario.hook_continues
        never_ready = {Kind.BAD_SPOT_IMAGE, Kind.BAD_ON_DEMAND_IMAGE} if abandoned else set[Kind]()
        looping = any(fault.kind in CAPPED | never_ready for fault in scenario.faults)
        most_an_hour, most_in_quiet = 40 * scenario.scale + 2 * lost, 12
        if hour > most_an_hour and not looping:
            self.broken(Promise.LAUNCHES, f"{hour} launches in an hour")
        # AWS launches all missing instances when its suspension ends: that is no loop.
        if LAUNCH in self.group(self.spot).suspensions:
            self._suspended_s = self.now_s
        begin_s = max(scenario.quiet_from_s, self._suspended_s) + 1500.0
        late = sum(at_s > begin_s for at_s in launched)
        if quiet_s > 0 and late > most_in_quiet * scenario.scale:
            how = f"{late} launches within {(self.now_s - begin_s) / 60:.0f} min of quiet"
            self.broken(Promise.NO_LOOP, how)

    # --- after the last fault, with a steady load -----------------------------------------------

    def _requests_served(self, quiet_s: float) -> None:
        longest_s = 1800.0
        spot, working, waiting = self.group(self.spot), self.working(), self.force.queued
        # Spotkeeper launches no more than bounds and operator allow, so the queue shrinks slowly.
        fewer = working < (self.scenario.spot_max if self.scenario.sized else spot.desired)
        many = waiting > 60.0 * self.load() / self.scenario.service_s + 20
        if fewer and many and quiet_s > longest_s:
            self.broken(
                Promise.SERVED,
                f"{waiting} requests wait, {working} instances serve, {self.load()} erlangs, "
                f"spot desired {spot.desired}",
                self._excuse(1),
                self._budget_spent(spot.desired - working),
            )

    def _backfill_ends(self) -> None:
        """On-demand is released once spot serves."""
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        wanted = min(spot.desired, self.scenario.spot_max)
        unneeded = on_demand.desired and self.serving(spot.instances) >= wanted
        self._unneeded_since = (self._unneeded_since or self.now_s) if unneeded else None
        unneeded_s = self.now_s - (self._unneeded_since or self.now_s)
        # Without sizing, no load shows whether the operator wants less spot or less on-demand.
        lowered = (
            not self.scenario.sized
            and self.operator_acted
            and spot.desired < on_demand.desired
            and self._rings("adopting")
        )
        longest_s = 3300.0
        if unneeded_s > longest_s:
            self.broken(
                Promise.GIVEN_BACK,
                f"on-demand desired {on_demand.desired} since {unneeded_s / 60:.0f} min of quiet, "
                f"spot {self.working()} of {spot.desired}",
                Excuse.LOWERED if lowered else None,
            )

    def _cured(self) -> None:
        """An instance in service that does not work is replaced, as the hourly budget allows."""
        longest_s, lately_s = 3000.0, 3600.0 + WHOLE_AFTER_S
        known = self._not_working_since
        self._not_working_since = {i: known.get(i, self.now_s) for i in self._not_working()}
        if self._replaced_within(lately_s) >= REPLACEMENTS_AN_HOUR:
            return
        for instance_id, since_s in self._not_working_since.items():
            missed_s = self._evidence.missed_s.get(instance_id, self.now_s)
            known_s = self.now_s - max(since_s, missed_s)
            if (
                known_s <= longest_s
                or self._excuse(len(self._not_working_since))
                or instance_id in self.replaced
            ):
                continue
            self.broken(
                Promise.CURED,
                f"{instance_id} is in service for {(self.now_s - since_s) / 60:.0f} min and does "
                "not work",
                # A killed turn may have requested a replacement, which counts in the budget.
                Excuse.BUDGET if self.now_s - self._killed_s < lately_s else None,
            )

    # --- every call that acts -------------------------------------------------------------------

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        """Check a call that changes something, before it has its effect."""
        instance_id = params.get("InstanceId", "")
        group = params.get("AutoScalingGroupName", "") or self.group_of(instance_id)
        if operation == "suspend_processes":
            return
        if group in self.other_groups:
            self.broken(Promise.ISOLATED, f"{operation} {dict(params)} of the other fleet")
            return
        match operation:
            case "set_desired_capacity":
                by = self.group(group).desired - int(params["DesiredCapacity"])
                self._moved(group, -by)
                if by > 0:
                    self._lowered(group, by, "", function)
            case "terminate_instance_in_auto_scaling_group":
                self._moved(group, -1)
                if self.cloud.instance(instance_id).state != TERMINATING:
                    self._lowered(group, 1, instance_id, function)
            # A call that is repeated because its answer was lost has no further effect.
            case "set_instance_health" if instance_id not in self.replaced:
                self._replaces(instance_id)

    def _moved(self, group: str, by: int) -> None:
        """Count how often on-demand is backfilled again after a release."""
        if group != self.on_demand or not by:
            return
        refills, most_an_hour = self._refills, 5
        if by > 0 and self._lowered_last:
            refills.append(self.now_s)
        self._lowered_last = by < 0
        while refills and refills[0] < self.now_s - 3600.0:
            refills.popleft()
        if len(refills) > most_an_hour:
            how = f"on-demand was backfilled again after a release {len(refills)} times"
            self.broken(Promise.NO_FLAPPING, f"{how} in an hour")

    def _lowered(self, group: str, by: int, instance_id: str, function: str) -> None:
        view, load = self.group(group), self.steady_load(STEADY_S) / self.scenario.slots
        onprem = self.scenario.onprem_workers
        if group == self.spot:
            self._slept |= view.desired == by
            left = view.desired - by + onprem
            # A request of a large fleet takes a minute: the load is known late, to a hundredth.
            large = self.scenario.scale > 1
            needed = load * (0.99 if large and self.now_s > WARM_UP_S else float(not large))
            if left < needed and function == HEALTH and not self._may_sleep(left):
                how = f"spot {view.desired} -> {view.desired - by} under {load} erlangs"
                self.broken(Promise.SCALE_IN, f"{how}, {self.force.queued} requests wait")
            return
        gone = max(0, self.serving(view.instances) - (view.desired - by))
        if instance_id:
            gone = int(self.works(instance_id))
        # The calls of a turn are within one second, so instances that leave count as gone.
        before = self.serving(self.cloud.instances()) + self._hang_unknown()
        # Sizing decides how many spot instances there are. For an adopted fleet the load decides,
        # within the operator's maximum, until the fleet sleeps or the operator sets a capacity.
        spot = self.group(self.spot)
        adopted = self.adopted and not self._slept and not self.operator_acted
        needed = min(load, spot.maximum if adopted else spot.desired)
        left = before - gone + onprem
        if not gone or left >= needed:
            return
        # No log has shown these instances; a queue shows only that some instances serve.
        unlogged = {i.instance_id for i in self.in_service()} - self.logged_instances
        if UNREAD_LOGS & self.active.keys() and needed <= left + len(unlogged):
            self.excused[Excuse.UNREAD_LOGS] += 1
            self._only_unread_logs = self._nothing_shows()
            return
        how = f"on-demand {view.desired} -> {view.desired - by}: {before} -> {before - gone}"
        self.broken(Promise.MAKE_BEFORE_BREAK, f"{how} instances serve {load} erlangs")

    def _hang_unknown(self) -> int:
        """Count the instances that hang, but still look idle."""
        passed = self._evidence.passed.keys()
        unknown = passed if self._only_alarms else self._evidence.unseen(self.now_s, SILENT_S)
        # For those that hang since the last minute, there is no evidence yet.
        return len(
            self.hung.keys() & self.force.instances & (unknown | (self.hung.keys() - passed))
        )

    def _may_sleep(self, left: int) -> bool:
        """Whether the fleet may go to sleep: its queue is known to be empty."""
        idle = not self.force.queued and not self.force.in_flight
        return not left and not self.scenario.spot_min and self.scenario.queue_known and idle

    def _replaces(self, instance_id: str) -> None:
        self.replaced[instance_id] = self.now_s
        # A lost memory loses the replacements of the hour before.
        since_s = self.now_s - 3600.0
        memories = 1 + sum(fault.at_s > since_s for fault in self._begun(FORGETFUL))
        works_s = self.now_s - self._works_since.get(instance_id, self.now_s)
        if works_s > STEADY_S and instance_id not in {*self.hung, *self.logs.failing}:
            unlogged = Excuse.UNREAD_LOGS if instance_id in self.muted else None
            self.broken(Promise.REASONED, f"{instance_id}, which served, was replaced", unlogged)
            self._replaced_while_serving += 1
            if self._replaced_while_serving > 2 * memories:
                how = f"{self._replaced_while_serving} that served without logs were replaced"
                self.broken(Promise.REASONED, f"{how}, the last {instance_id}")
        hour = self._replaced_within(3600.0)
        if hour > REPLACEMENTS_AN_HOUR * memories:
            self.broken(Promise.BUDGET, f"{hour} replacements in an hour")

    def recorded(self, fleet: str, text: str) -> None:
        """Check that a health turn forgets no worker that hangs and that an earlier one named."""
        super().recorded(fleet, text)
        record = json.loads(text)
        if fleet != MAIN or record["controller"] != Controller.HEALTH:
            return
        there = {i.instance_id for i in self.in_service()} & self.hung.keys()
        named = {i for i in there if f"{i} finished no request" in record["reason"]}
        if forgotten := (self._suspects & there) - named:
            late = self._recently(HELPLESS - {Kind.HANG}) or self._begun(FORGETFUL)
            how = f"{', '.join(sorted(forgotten))} hang, and count as serving again"
            self.broken(Promise.SUSPECT, how, Excuse.HELPLESS if late else self._trouble(SHORT_S))
        self._suspects = named

    # --- events and invocations -----------------------------------------------------------------

    def announced(self, event: Mapping[str, Any]) -> None:
        """Check that a new event reports a change."""
        fleet, state = event["fleet"], State(event["state"])
        if event["id"] in self._announced_ids:
            return
        self._announced_ids.add(event["id"])
        (kind,) = (number for number, states in enumerate(DIMENSIONS) if state in states)
        self.tell(f"  announced: {fleet} {state}")
        # After a lost memory, all states are announced again.
        if self._states.get((fleet, kind)) is state and not self._begun(FORGETFUL):
            self.broken(Promise.ANNOUNCED, f"{fleet} {state}, and again {state}")
        self._states[fleet, kind] = state

    def done(self, invocation: Invocation) -> None:
        function = invocation.function
        if invocation.failed:
            self.tell(f"  {function} failed: {invocation.failed[:200]}")
            self._failed(function, invocation.failed)
            if function == HEALTH and invocation.failed == "killed":
                self._killed_s = self.now_s
        if invocation.bug:
            self.broken(Promise.NO_BUG, f"{function}: {invocation.bug}")
        fleets = (MAIN, *self.scenario.others)
        ticks = function in (HEALTH, AVAILABILITY) and "Records" not in invocation.event
        if not ticks or invocation.failed or len(fleets) > FLEETS_AN_INVOCATION:
            return
        # A tick leaves a record of every fleet, unless another turn works on it.
        for fleet in fleets:
            if invocation.overlapped or fleet in invocation.recorded:
                continue
            if not any(key.endswith("_until") for key in self.state_item(fleet)):
                how = f"{function} left no record of {fleet} and did not fail"
                self.broken(Promise.RECORDED, how)

    def _failed(self, function: str, what: str) -> None:
        """Count failed invocations; they must stop unless AWS is disturbed."""
        failures, most, within_s = self._failures, 6, 900.0
        failures.append(self.now_s)
        while failures[0] < self.now_s - within_s:
            failures.popleft()
        if len(failures) > most:
            self.broken(
                Promise.SETTLED,
                f"{len(failures)} failures within {within_s / 60:.0f} min, the last of "
                f"{function}: {what[:160]}",
                self._trouble(within_s),
                self._wrong(within_s),
                Excuse.WRONG if self._recently({Kind.WRONG_DOCUMENT}) else None,
            )

    def result(self) -> Result:
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        # Launching instances count.
        there, wanted = len(spot.instances) + len(on_demand.instances), spot.desired
        backfilled = on_demand.desired > 0
        last = [self._states.get((MAIN, kind)) for kind in range(3)]
        holds = {State.WHOLE: there >= wanted, State.BACKFILLED: backfilled,
                State.RELEASED: not backfilled}  # fmt: skip
        if any(state is None or not holds.get(state, True) for state in last):
            self.broken(Promise.ANNOUNCED, f"announced {last}; {there} of {wanted} are there")
        return Result(
            scenario=self.scenario,
            violations=tuple(self.found.values()),
            invocations=self.invocations,
            losses=sum(view.lost for view in self.cloud.history()),
            excused=+self.excused,
            story=tuple(self.story),
        )
