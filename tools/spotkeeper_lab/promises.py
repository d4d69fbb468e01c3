"""What must hold whatever goes wrong, checked every virtual minute and at every call that acts."""

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any

from spotkeeper.domain.availability.announcements import State
from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper.turns.turn import FLEETS_AN_INVOCATION
from spotkeeper_lab.cloud.values import IN_SERVICE, LAUNCH, TERMINATING, GroupView, InstanceView
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.scenario import MAIN, WARM_UP_S, Scenario
from spotkeeper_lab.troubles import REPLACEMENTS_AN_HOUR, Troubled
from spotkeeper_lab.world import AVAILABILITY, HEALTH, Invocation

STEADY_S = 600.0
"""A fleet must serve the least load of the last this many seconds."""

SHORT_S = 1200.0
"""The longest that a fleet may be short."""

WHOLE_AFTER_S = 1200.0
"""How long after an unavoidable fault its effects are excused."""

SERVED_AFTER_S = 1800.0
"""The longest that requests may wait in the quiet."""

BACK_AFTER_S = 3300.0
"""The longest that on-demand may stay in the quiet while spot serves."""

CURED_AFTER_S = 3000.0
"""The longest that an instance known not to work may stay in the quiet."""

ORPHAN_S = 1500.0
"""The longest that an instance may run in no group."""

CONFIGURATION_CAP = 2

CAPPED = frozenset(
    {Kind.LAUNCH_REFUSED, Kind.BAD_SPOT_IMAGE, Kind.BOOT_LOOP, Kind.OPERATOR_SUSPENDS}
)
"""More instances do not cure these: the backfill has a cap of its own."""

NEVER_READY = frozenset({Kind.BAD_SPOT_IMAGE, Kind.BAD_ON_DEMAND_IMAGE})
"""Instances never complete their launch hook."""

FORGETFUL = frozenset({Kind.STATE_LOST, Kind.STATE_UNREADABLE})

UNHEARD = frozenset({Kind.LOGS_STOP, Kind.COLLECTOR_DOWN})
"""No search log shows the instances that start meanwhile."""

HELPLESS = frozenset(
    {
        Kind.ON_DEMAND_DRY,
        Kind.BAD_ON_DEMAND_IMAGE,
        Kind.WRONG_DOCUMENT,
        Kind.OPERATOR_MAXIMUM,
        Kind.HANG,
        Kind.LOGS_STOP,
        Kind.LOGS_LATE,
        Kind.HALF_LOGS,
        Kind.COLLECTOR_DOWN,
    }
)
"""Nobody can fill the gap, or nobody can know of it."""


UNHEARD_REPLACED_AT_MOST = 2
"""The most replaced instances that served without search logs; none that logged may be replaced."""

DIMENSIONS = (
    {State.WHOLE, State.SHORT, State.BOTH_SHORT},
    {State.BACKFILLED, State.RELEASED},
    {State.SLEEPING, State.AWAKE},
    {State.PAUSED},
)
"""Of each of these, a fleet is in one state at a time."""

LAUNCHES_AN_HOUR = 60

LAUNCHES_IN_QUIET, QUIET_LAUNCHES_AFTER_S = 12, 1500.0
"""The most launches allowed, counted after this much of the quiet."""

REFILLS_AN_HOUR = 5
"""How often in an hour on-demand may be filled again after a release."""

SILENT_S = 300.0
"""The longest between two turns of another fleet."""

ALARMED_AFTER_S = 600.0
"""The longest from requests that show that nobody serves to the alarm."""

CHANCE = 1.5
"""How many times the certain evidence must arrive before it must count."""

FAILURES_AT_MOST, FAILURES_WITHIN_S = 6, 900.0
"""The most invocations that fail within this time while nothing is wrong with AWS."""


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
    OPERATOR = "an operator's desired stays"
    SETTLED = "no failures without end"
    NO_BUG = "no unexpected error"
    ALARMED = "an alarm when nobody serves"
    ANNOUNCED = "one event for each change of state"


class Excuse(StrEnum):
    """Why a promise that does not hold is not broken: what each loosening of the watch excuses."""

    TROUBLE = "AWS refuses or loses calls that a turn needs, or no turn runs"
    HELPLESS = "nobody can fill the gap, or no search log shows it"
    UNSEEN = "too few requests have passed an idle worker to tell"
    ALARMED = "nobody serves, or their logs are missing: an alarm says it, one is replaced late"
    BUDGET = "the replacements of the hour are spent"
    CAPPED = "more instances do not cure a failure of configuration"
    WRONG = "a document is wrong or unread, a group is deleted, or EC2 or the queue of turns hangs"
    UNPROVEN = "a deleted group took along the proof of what was detached from it"
    UNHEARD = "search logs do not arrive, and nothing else shows whether a worker serves"
    LOWERED = "a person lowered spot below on-demand while no turn ran: an alarm asks what is meant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    promise: Promise
    at_s: float
    how: str


# How long functions remember how busy workers were while all of them logged.
REMEMBERED_S = 3600.0


@dataclass(slots=True)
class Evidence:
    """How many requests have passed each instance that does nothing, as logs and queue show them.

    `missed_s` is since when enough have passed an instance to miss it.
    """

    passed: dict[str, float] = field(default_factory=dict)
    missed_s: dict[str, float] = field(default_factory=dict)

    def add(self, idle: Collection[str], requests: float, now_s: float) -> None:
        """Add the requests that passed each; one that serves again begins anew."""
        self.passed = {i: self.passed.get(i, 0.0) + requests for i in idle}
        known = self.missed_s
        self.missed_s = {i: known.get(i, now_s) for i, n in self.passed.items() if n >= CERTAIN}

    def unseen(self, now_s: float, grace_s: float) -> set[str]:
        """Instances that nothing distinguishes from idle ones yet, or only since `grace_s`."""
        return {i for i in self.passed if now_s - self.missed_s.get(i, now_s) <= grace_s}


def evidence_of(
    scenario: Scenario, now_s: float, there: int, idle: int, logged: int, *, reported: bool
) -> tuple[float, bool]:
    """How many requests passed each of the idle in the last minute, and whether only alarms follow.

    Of the instances that are `there`, `idle` served nothing of the `logged` requests. Where nobody
    serves and one of them `reported` once, or where the others are at ease, logs may be
    missing as well: an alarm says so, and one is replaced late.
    """
    everybody, serving = there + scenario.onprem_workers, there - idle + scenario.onprem_workers
    loads = _loads(scenario, now_s)
    if not serving:
        requests = 60.0 * loads[-1] / scenario.service_s / max(1, everybody)
        return requests, reported and not scenario.queue_known
    at_ease = 3 * idle > there and _is_at_ease(loads, everybody, serving)
    return logged / everybody, at_ease


def _loads(scenario: Scenario, now_s: float) -> list[float]:
    """The loads of the last hour, the present one last."""
    steps = [*scenario.loads, (math.inf, 0.0)]
    return [
        load
        for (begins_s, load), (end_s, _) in pairwise(steps)
        if begins_s <= now_s < end_s + REMEMBERED_S
    ]


def _is_at_ease(loads: list[float], everybody: int, serving: int) -> bool:
    """Whether the load fell so far that missing logs explain the idle instances better.

    Who is left is nearer to how busy all were than to how busy they would have become.
    """
    taken_over = max(loads) / everybody * (1 + everybody / serving) / 2
    return loads[-1] / serving < taken_over


def is_budget_spent(ages_s: list[float], short: int, budget: int) -> bool:
    """Whether all missing instances were just replaced, and the budget of an hour was spent."""
    just = sum(age_s < WHOLE_AFTER_S for age_s in ages_s)
    lately = sum(age_s < 3600.0 + WHOLE_AFTER_S for age_s in ages_s)
    return just >= short and lately >= budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run; `story` has a line for each thing that happened."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    invocations: int
    calls: int
    losses: int
    excused: Counter[Excuse]
    story: tuple[str, ...]


class Watched(Troubled):
    """A troubled world whose promises are checked; only the first break of each is kept."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.found: dict[Promise, Violation] = {}
        self.excused: Counter[Excuse] = Counter()
        self.replaced: deque[float] = deque()
        self.replaced_ids: set[str] = set()
        self._works_since: dict[str, float] = {}
        self.unheard_replaced = 0
        self._failures: deque[float] = deque()
        self._outside_since: dict[str, float] = {}
        self._short_since: float | None = None
        self._evidence = Evidence()
        self._unheard_alone = False
        self._killed_s = -math.inf
        self._only_alarms_s = -math.inf
        self._logged_before = 0
        self._unserved = 0.0
        self._alarm_due_s = math.inf
        self._most = 0
        self._slept = False
        self._lent_since: float | None = None
        self._ill_since: dict[str, float] = {}
        self._suspended_s = 0.0
        self._lowered_last = False
        self._refills: deque[float] = deque()
        self.announced_ids: set[str] = set()
        self.states: dict[tuple[str, int], State] = {}

    def forgot(self) -> bool:
        """Whether a memory may have been lost: all states are then announced again."""
        return any(fault.kind in FORGETFUL for fault in self._begun())

    def last_announced(self) -> None:
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        # Those that launch are no shortage.
        there, wanted = len(spot.instances) + len(on_demand.instances), spot.desired - self.spares
        backfilled = on_demand.desired > 0
        last = [self.states.get((MAIN, kind)) for kind in range(3)]
        said = {State.WHOLE: there >= wanted, State.BACKFILLED: backfilled,
                State.RELEASED: not backfilled}  # fmt: skip
        wrong = [state for state in last if state is None or not said.get(state, True)]
        if wrong:
            self.broken(Promise.ANNOUNCED, f"announced {last}; {there} of {wanted} are there")

    def broken(self, promise: Promise, how: str) -> None:
        violation = Violation(promise=promise, at_s=self.now_s, how=how)
        self.found.setdefault(promise, violation)

    # --- every minute ---------------------------------------------------------------------------

    def minute(self) -> None:
        self._follow()
        self._weigh()
        self._nobody()
        self._bounds()
        self._orphans()
        self._operator()
        self._whole()
        quiet_s = self.now_s - self.scenario.quiet_from_s
        if quiet_s > 0:
            self._in_quiet(quiet_s)
        self._spent(quiet_s)
        self._others_turned()

    def _follow(self) -> None:
        """Note which instances began to take requests, and which logs nobody reads."""
        known = self._works_since
        works = {i for i in self.force.instances if self.works(i)}
        if UNHEARD & self.active.keys():
            self.muted |= works - self.heard
        self._works_since = {i: known.get(i, self.now_s) for i in works}

    def _bounds(self) -> None:
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        if spot.desired > max(self.scenario.spot_max, self.operator_desired):
            self.broken(
                Promise.BOUNDS, f"spot desired {spot.desired}, spot_max {self.scenario.spot_max}"
            )
        if on_demand.desired > max(self.scenario.spot_max, self.adopted):
            how = f"on-demand desired {on_demand.desired}, on_demand_max {self.scenario.spot_max}"
            self.broken(Promise.BOUNDS, how)

    def _orphans(self) -> None:
        outside = {i.instance_id for i in self.cloud.instances() if not i.group}
        known = self._outside_since
        self._outside_since = {i: known.get(i, self.now_s) for i in outside}
        for instance_id, since_s in self._outside_since.items():
            if self.now_s - since_s <= ORPHAN_S:
                continue
            if not self._calm(ORPHAN_S):
                self.excused[Excuse.TROUBLE] += 1
            elif self.now_s - self.last_excused_s <= ORPHAN_S:
                self.excused[Excuse.WRONG] += 1
            elif any(fault.kind is Kind.GROUP_DELETED for fault in self._begun()):
                self.excused[Excuse.UNPROVEN] += 1
            else:
                how = f"{instance_id} runs in no group since {since_s:.0f} s"
                self.broken(Promise.ORPHANS, how)

    def _whole(self) -> None:
        """The fleet is whole: always, but for what nothing can be done about in time."""
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        working, wanted = self.working(), min(spot.desired - self.spares, self.scenario.spot_max)
        if self._recently(CAPPED):
            capped = min(wanted, CONFIGURATION_CAP)
            self.excused[Excuse.CAPPED] += capped <= working < wanted
            wanted = capped
        short = working < wanted
        # While the need grows, the newest instances get the time to start.
        more, self._most = wanted > self._most, max(wanted, self._most) if short else wanted
        # A shortage begins once requests have shown it.
        unseen = short and len(self._evidence.unseen(self.now_s, 0.0)) >= wanted - working
        self.excused[Excuse.UNSEEN] += unseen
        waited_for = not short or more or unseen
        self._short_since = None if waited_for else (self._short_since or self.now_s)
        lasted_s = self.now_s - (self._short_since or self.now_s)
        if lasted_s <= SHORT_S:
            return
        if not self._calm(SHORT_S) and not self._bears_it(wanted - working):
            self.excused[Excuse.TROUBLE] += 1
        elif excuse := self._excuse(wanted - working):
            self.excused[excuse] += 1
        elif self._recently(HELPLESS):
            self.excused[Excuse.HELPLESS] += 1
        elif self._waits_for_budget(wanted - working):
            self.excused[Excuse.BUDGET] += 1
        else:
            how = f"{working} of {spot.desired} serve for {lasted_s / 60:.0f} min"
            self.broken(Promise.WHOLE, f"{how}, on-demand desired {on_demand.desired}")

    def _bears_it(self, short: int) -> bool:
        """Whether turns lacked only the table or the documents: they backfill, replacing nobody.

        What was ill until then is replaced afterwards, and its successor launches.
        """
        ill = sum(not self.works(i.instance_id) for i in self.in_service())
        ill += sum(self.now_s - at_s <= STEADY_S for at_s in self.replaced)
        return self.now_s - self.last_cut_off_s > SHORT_S and short > ill

    def _waits_for_budget(self, short: int) -> bool:
        """Whether all missing instances are ill or just replaced, and the budget is spent."""
        ill = sum(not self.works(i.instance_id) for i in self.in_service())
        ages_s = [self.now_s - at_s for at_s in self.replaced]
        return is_budget_spent(ages_s, short - ill, REPLACEMENTS_AN_HOUR)

    def in_service(self) -> list[InstanceView]:
        members = self.cloud.instances()
        return [i for i in members if i.state == IN_SERVICE and not self.is_other(i)]

    def _weigh(self) -> None:
        """Count the requests that passed each instance in service that does nothing."""
        there = self.in_service()
        idle = {i.instance_id for i in there if not self.works(i.instance_id)}
        logged, self._logged_before = self.logged - self._logged_before, self.logged
        requests, only_alarms = evidence_of(
            self.scenario,
            self.now_s,
            len(there),
            len(idle),
            logged,
            reported=not self.heard.isdisjoint(idle),
        )
        if only_alarms:
            self._only_alarms_s = self.now_s
        if self._just(FORGETFUL):
            self._evidence = Evidence()
        # A turn reads the logs of the last minutes: what passed while no turn ran is not counted.
        counted = 0.0 if Kind.NO_TURNS in self.active else requests
        self._evidence.add(idle, counted, self.now_s)
        if not self.heard.isdisjoint([i.instance_id for i in there]):
            self._unheard_alone = self._unheard()

    @property
    def _only_alarms(self) -> bool:
        """Whether only alarms follow, or did: then the others are replaced."""
        return self.now_s - self._only_alarms_s <= SILENT_S

    def _excuse(self, short: int) -> Excuse | None:
        """Why this many instances may do nothing: nothing shows it yet, or an alarm rings."""
        unseen = len(self._evidence.unseen(self.now_s, SHORT_S))
        if unseen >= short:
            return Excuse.UNSEEN
        alarmed = self._rings("nobody-serves") or self._rings("search-logs-missing")
        # One of them may have been replaced to see whether its successor reports.
        started = sum(self.now_s - at_s < WHOLE_AFTER_S for at_s in self.replaced)
        if self._only_alarms and alarmed and len(self._evidence.passed) + started >= short:
            return Excuse.ALARMED
        # Logs had stopped before the last of those that reported left: so may the requests have.
        return Excuse.UNHEARD if self._unheard_alone and alarmed else None

    def _rings(self, alarm: str) -> bool:
        return self.now_s - self.rang_s[alarm] <= SILENT_S

    def _unheard(self) -> bool:
        """Whether nothing shows what serves, as no log arrives and no queue is known."""
        return not self.scenario.queue_known and bool(UNHEARD & self.active.keys())

    def _nobody(self) -> None:
        """When requests show that nobody serves, an alarm rings within ten minutes."""
        scenario = self.scenario
        nobody = not (self.working() or scenario.onprem_workers) and self.in_service()
        if not nobody or not self.heard or self._just(FORGETFUL):
            self._unserved, self._alarm_due_s = 0.0, math.inf
            return
        self._unserved += 60.0 * min(_loads(scenario, self.now_s)) / scenario.service_s
        if self._unserved >= CHANCE * CERTAIN:
            self._alarm_due_s = min(self._alarm_due_s, self.now_s + ALARMED_AFTER_S)
        if self.now_s <= self._alarm_due_s or self._rings("nobody-serves"):
            return
        if not self._calm(ALARMED_AFTER_S):
            self.excused[Excuse.TROUBLE] += 1
        elif self.now_s - self.last_excused_s <= ALARMED_AFTER_S:
            self.excused[Excuse.WRONG] += 1
        else:
            how = f"{self._unserved:.0f} requests arrived since the last was served"
            self.broken(Promise.ALARMED, f"{how}, and no alarm says that nobody serves")

    def _just(self, kinds: frozenset[Kind]) -> bool:
        """Whether one of some faults happened within the last minute."""
        return any(f.kind in kinds and f.at_s > self.now_s - 60.0 for f in self._begun())

    def _begun(self) -> list[Fault]:
        return [f for f in self.scenario.faults if f.at_s <= self.now_s]

    def _recently(self, kinds: frozenset[Kind]) -> bool:
        """Whether one of some faults lasts, or has lasted within the time to become whole."""
        since_s = self.now_s - WHOLE_AFTER_S
        return any(fault.kind in kinds and fault.end_s >= since_s for fault in self._begun())

    def _operator(self) -> None:
        """Without sizing by load, nothing lowers the capacity that an operator set."""
        desired = self.group(self.spot).desired
        there = self.spot in self.cloud.groups()
        if there and not self.scenario.sized and desired < self.asked:
            self.broken(Promise.OPERATOR, f"spot desired {desired}, requested {self.asked}")

    def serving(self, group: GroupView) -> int:
        """How many instances of a group take requests and do not leave."""
        members = (i for i in group.instances if i.state != TERMINATING)
        return sum(self.works(i.instance_id) for i in members)

    def _others_turned(self) -> None:
        for name, recorded_s in self.others_recorded_s.items():
            since_s = self.now_s - recorded_s
            if since_s <= SILENT_S or self.now_s <= STEADY_S:
                continue
            if self._calm(SILENT_S):
                self.broken(Promise.ISOLATED, f"{name} was not turned for {since_s:.0f} s")
            else:
                self.excused[Excuse.TROUBLE] += 1

    def _calm(self, seconds: float) -> bool:
        """Whether nothing was wrong with AWS or the schedules for this long."""
        return self.now_s - self.last_trouble_s > seconds

    def failed(self, function: str, what: str) -> None:
        """Note that an invocation failed; without trouble of AWS's own that must soon be over."""
        failures = self._failures
        failures.append(self.now_s)
        while failures[0] < self.now_s - FAILURES_WITHIN_S:
            failures.popleft()
        if len(failures) <= FAILURES_AT_MOST:
            return
        if not self._calm(FAILURES_WITHIN_S):
            self.excused[Excuse.TROUBLE] += 1
        elif self.now_s - self.last_excused_s <= FAILURES_WITHIN_S:
            self.excused[Excuse.WRONG] += 1
        else:
            how = f"{len(failures)} failures within {FAILURES_WITHIN_S / 60:.0f} min"
            self.broken(Promise.SETTLED, f"{how}, the last of {function}: {what[:160]}")

    # --- every call that acts -------------------------------------------------------------------

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        """Look at what a call asks for, before it has its effect."""
        instance_id = params.get("InstanceId", "")
        group = params.get("AutoScalingGroupName", "") or self.group_of(instance_id)
        if operation == "suspend_processes":
            return
        if group in self.other_groups:
            self.broken(Promise.ISOLATED, f"{operation} {dict(params)} of the other fleet")
            return
        match operation:
            case "set_desired_capacity":
                view = self.group(group)
                by = view.desired - int(params["DesiredCapacity"])
                self._moved(group, -by)
                self._lowered(group, by, "", function)
            case "terminate_instance_in_auto_scaling_group":
                self._moved(group, -1)
                self._lowered(group, 1, instance_id, function)
            case "set_instance_health":
                self._replaces(instance_id)
            case _:
                return

    def _lowered(self, group: str, by: int, instance_id: str, function: str) -> None:
        if by <= 0:
            return
        if instance_id and self.cloud.instance(instance_id).state == TERMINATING:
            return
        view, load = self.group(group), self.steady_load(STEADY_S)
        if group == self.spot:
            self._slept |= view.desired == by
            left = view.desired - by + self.scenario.onprem_workers
            # A large fleet serves for a minute: its load is known late, to a hundredth.
            large = self.scenario.scale > 1
            needed = load * (0.99 if large and self.now_s > WARM_UP_S else float(not large))
            if left < needed and function == "check_health" and not self._may_sleep(left):
                how = f"spot {view.desired} -> {view.desired - by} under {load} erlangs"
                self.broken(Promise.SCALE_IN, f"{how}, {self.force.queued} requests wait")
            return
        gone = max(0, self.serving(view) - (view.desired - by))
        if instance_id:
            gone = int(self.works(instance_id))
        before = self._staying() + self._hang_unknown()
        # Sizing decides how many spot instances there are. For an adopted fleet the load decides,
        # within the operator's maximum, until the fleet sleeps or the operator sets a capacity.
        spot = self.group(self.spot)
        met = self.adopted and not self._slept and not self.operator_said
        needed = min(load, spot.maximum if met else spot.desired)
        left = before - gone + self.scenario.onprem_workers
        if gone and left < needed <= left + self._never_logged():
            self.excused[Excuse.UNHEARD] += 1
            self._unheard_alone = self._unheard()
        elif gone and left < needed:
            how = f"on-demand {view.desired} -> {view.desired - by}: {before} -> {before - gone}"
            self.broken(Promise.MAKE_BEFORE_BREAK, f"{how} instances serve {load} erlangs")

    def _staying(self) -> int:
        """How many instances take requests and do not leave: the calls are within one second."""
        members = self.cloud.instances()
        return sum(self.works(i.instance_id) for i in members if i.state != TERMINATING)

    def _hang_unknown(self) -> int:
        """How many hang too briefly for anything to distinguish them from idle ones."""
        unseen = self._evidence.unseen(self.now_s, SILENT_S)
        unknown = self._evidence.passed.keys() if self._only_alarms else unseen
        # Those that began to hang since the last look have no evidence against them yet.
        unknown = unknown | (self.hung.keys() - self._evidence.passed.keys())
        return len(self.hung.keys() & self.force.instances & unknown)

    def _never_logged(self) -> int:
        """Count those in service that no log showed: a queue shows only that some serve."""
        if not UNHEARD & self.active.keys():
            return 0
        return len({i.instance_id for i in self.in_service()} - self.heard)

    def _may_sleep(self, left: int) -> bool:
        """Whether the fleet may go to sleep: its queue is known to be empty."""
        idle = not self.force.queued and not self.force.in_flight
        scenario = self.scenario
        return not left and not scenario.spot_min and scenario.queue_known and idle

    def _replaces(self, instance_id: str) -> None:
        if instance_id in self.replaced_ids:
            return  # Asked once more, as the answer was lost: it has no further effect.
        self.replaced_ids.add(instance_id)
        self.replaced.append(self.now_s)
        works_s = self.now_s - self._works_since.get(instance_id, self.now_s)
        if works_s > STEADY_S and instance_id not in self.hung:
            self._replaces_healthy(instance_id)
        hour = sum(at_s > self.now_s - 3600.0 for at_s in self.replaced)
        if hour > REPLACEMENTS_AN_HOUR * self._memories():
            self.broken(Promise.BUDGET, f"{hour} replacements in an hour")

    def _memories(self) -> int:
        """How many memories the hour had: a lost one takes the replacements of before along."""
        lost = [f for f in self._begun() if f.kind in FORGETFUL and f.at_s > self.now_s - 3600.0]
        return 1 + len(lost)

    def _replaces_healthy(self, instance_id: str) -> None:
        if instance_id in self.muted:
            self.excused[Excuse.UNHEARD] += 1
        else:
            self.broken(Promise.REASONED, f"{instance_id}, which served, was replaced")
        self.unheard_replaced += 1
        if self.unheard_replaced > UNHEARD_REPLACED_AT_MOST * self._memories():
            how = f"{self.unheard_replaced} that served without logs were replaced"
            self.broken(Promise.REASONED, f"{how}, the last {instance_id}")

    # --- once nothing goes wrong any more and the load is steady ----

    def _in_quiet(self, quiet_s: float) -> None:
        """Check a world that has been quiet for `quiet_s`."""
        if quiet_s > SERVED_AFTER_S:
            self._requests_served()
        self._lent()
        self._cured()

    def _requests_served(self) -> None:
        spot, working, waiting = self.group(self.spot), self.working(), self.force.queued
        # Spotkeeper launches no more than bounds and operator allow, so the queue shrinks slowly.
        fewer = working < (self.scenario.spot_max if self.scenario.sized else spot.desired)
        if not fewer or waiting <= 60.0 * self.load() / self.scenario.service_s + 20:
            return
        if excuse := self._excuse(1):
            self.excused[excuse] += 1
        elif self._waits_for_budget(spot.desired - working):
            self.excused[Excuse.BUDGET] += 1
        else:
            how = f"{waiting} requests wait, {working} instances serve, {self.load()} erlangs"
            self.broken(Promise.SERVED, f"{how}, spot desired {spot.desired}")

    def _lent(self) -> None:
        """As long as spot does not serve, on-demand stands in for it."""
        spot, on_demand = self.group(self.spot), self.group(self.on_demand)
        served = self.serving(spot) >= min(spot.desired - self.spares, self.scenario.spot_max)
        lent = on_demand.desired and served
        self._lent_since = (self._lent_since or self.now_s) if lent else None
        lent_s = self.now_s - (self._lent_since or self.now_s)
        # No load is computed here that could tell which of the two is meant.
        lowered = (
            not self.scenario.sized and self.operator_said and spot.desired < on_demand.desired
        )
        if lent_s > BACK_AFTER_S and lowered and self._rings("adopting"):
            self.excused[Excuse.LOWERED] += 1
        elif lent_s > BACK_AFTER_S:
            how = f"on-demand desired {on_demand.desired} since {lent_s / 60:.0f} min of quiet"
            self.broken(Promise.GIVEN_BACK, f"{how}, spot {self.working()} of {spot.desired}")

    def _cured(self) -> None:
        """Who is in service and does not work is replaced, once the budget of an hour allows it."""
        known = self._ill_since
        there = [i.instance_id for i in self.in_service()]
        self._ill_since = {i: known.get(i, self.now_s) for i in there if not self.works(i)}
        lately_s = self.now_s - 3600.0 - WHOLE_AFTER_S
        lately = sum(at_s > lately_s for at_s in self.replaced)
        for instance_id, since_s in self._ill_since.items():
            ill_s = self.now_s - since_s
            missed_s = self.now_s - self._evidence.missed_s.get(instance_id, self.now_s)
            if (
                min(ill_s, missed_s) <= CURED_AFTER_S
                or self._excuse(len(self._ill_since))
                or instance_id in self.replaced_ids
                or lately >= REPLACEMENTS_AN_HOUR
            ):
                continue
            if self._killed_s > lately_s:
                # What that turn may have requested counts against the budget.
                self.excused[Excuse.BUDGET] += 1
            else:
                how = f"{instance_id} is in service for {ill_s / 60:.0f} min and does not work"
                self.broken(Promise.CURED, how)

    # --- what is launched, how often, and how much of it runs at once ----

    def _spent(self, quiet_s: float) -> None:
        """Check launches and cost; `quiet_s` is below 0 before the quiet."""
        launched = [i.launched_s for i in self.cloud.history() if not self.is_other(i)]
        self._launches(launched)
        if LAUNCH in self.group(self.spot).suspensions:
            self._suspended_s = self.now_s
        if quiet_s > 0:
            self._launches_in_quiet(launched)
        self._cost()

    def _moved(self, group: str, by: int) -> None:
        """Look at a call that asks a group for more, or for less."""
        refills = self._refills
        if group != self.on_demand or not by:
            return
        if by > 0 and self._lowered_last:
            refills.append(self.now_s)
        self._lowered_last = by < 0
        while refills and refills[0] < self.now_s - 3600.0:
            refills.popleft()
        if len(refills) > REFILLS_AN_HOUR:
            how = f"on-demand was filled again after it was given back {len(refills)} times"
            self.broken(Promise.NO_FLAPPING, f"{how} in an hour")

    def _launches(self, launched: list[float]) -> None:
        hour = sum(at_s > self.now_s - 3600.0 for at_s in launched)
        # AWS itself launches again and again what dies while it starts, or is abandoned.
        abandoned = self.scenario.launch_hook_s and not self.scenario.hook_continues
        kinds = CAPPED | NEVER_READY if abandoned else CAPPED
        looping = any(f.kind in kinds for f in self.scenario.faults)
        if hour > LAUNCHES_AN_HOUR * self.scenario.scale and not looping:
            self.broken(Promise.LAUNCHES, f"{hour} launches in an hour")

    def _launches_in_quiet(self, launched: list[float]) -> None:
        """AWS launches all missing instances when its suspension ends: that is no loop."""
        quiet_from_s = max(self.scenario.quiet_from_s, self._suspended_s)
        begin_s = quiet_from_s + QUIET_LAUNCHES_AFTER_S
        late = sum(at_s > begin_s for at_s in launched)
        if late > LAUNCHES_IN_QUIET * self.scenario.scale:
            how = f"{late} launches within {(self.now_s - begin_s) / 60:.0f} min of quiet"
            self.broken(Promise.NO_LOOP, how)

    def _cost(self) -> None:
        running = [i for i in self.cloud.instances() if not self.is_other(i)]
        # A burst of warnings: those that were warned, their replacements, and the backfill.
        most = 3 * max(self.scenario.spot_max, self.operator_desired, self.adopted) + 4
        if len(running) > most:
            self.broken(Promise.COST, f"{len(running)} instances run at once")

    # --- what else a world tells ----------------------------------------------------------------

    def announced(self, event: Mapping[str, Any]) -> None:
        """Check that a new event reports a change."""
        ids, fleet = self.announced_ids, event["fleet"]
        if event["id"] in ids:
            return
        ids.add(event["id"])
        state = State(event["state"])
        (kind,) = (number for number, states in enumerate(DIMENSIONS) if state in states)
        self.tell(f"  announced: {fleet} {state}")
        if self.states.get((fleet, kind)) is state and not self.forgot():
            self.broken(Promise.ANNOUNCED, f"{fleet} {state}, and again {state}")
        self.states[fleet, kind] = state

    def result(self) -> Result:
        self.last_announced()
        return Result(
            scenario=self.scenario,
            violations=tuple(self.found.values()),
            invocations=self.invocations,
            calls=self.calls,
            losses=self.cloud.bill().losses,
            excused=+self.excused,
            story=tuple(self.story),
        )

    def done(self, invocation: Invocation) -> None:
        function = invocation.function
        if invocation.failed:
            self.tell(f"  {function} failed: {invocation.failed[:200]}")
            self.failed(function, invocation.failed)
            if function == HEALTH and invocation.failed == "killed":
                self._killed_s = self.now_s
        if invocation.bug:
            self.broken(Promise.NO_BUG, f"{function}: {invocation.bug}")
        ticks = function in (HEALTH, AVAILABILITY) and "Records" not in invocation.event
        if ticks and invocation.answered:
            self._all_recorded(invocation)

    def _all_recorded(self, invocation: Invocation) -> None:
        """A tick leaves a record of every fleet, unless another turn was at work on it."""
        fleets = (MAIN, *self.scenario.others)
        for fleet in fleets if len(fleets) <= FLEETS_AN_INVOCATION else ():
            if fleet in invocation.recorded or invocation.overlapped:
                continue
            if not any(key.endswith("_until") for key in self.state_item(fleet)):
                how = f"{invocation.function} left no record of {fleet} and did not fail"
                self.broken(Promise.RECORDED, how)
