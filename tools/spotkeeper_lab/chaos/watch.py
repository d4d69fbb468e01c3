"""What must hold whatever goes wrong, looked at every virtual minute and at every act."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spotkeeper_lab.chaos.expenses import Expenses
from spotkeeper_lab.chaos.missed import is_budget_spent, to_be_missed_s
from spotkeeper_lab.chaos.promises import (
    CAPPED,
    CONFIGURATION_CAP,
    FAILURES_AT_MOST,
    FAILURES_WITHIN_S,
    FORGETFUL,
    HELPLESS,
    ORPHAN_S,
    SHORT_S,
    SILENT_S,
    STEADY_S,
    UNHEARD,
    UNHEARD_REPLACED_AT_MOST,
    WHOLE_AFTER_S,
    Promise,
    Violation,
)
from spotkeeper_lab.chaos.quiet import Quiet
from spotkeeper_lab.chaos.story.scenario import SPOT_MAX, Fault, Kind
from spotkeeper_lab.cloud.values import GroupView, InstanceView
from spotkeeper_lab.cloud.words import IN_SERVICE, TERMINATING

if TYPE_CHECKING:
    from spotkeeper_lab.chaos.world import World


@dataclass(slots=True)
class Watch:
    """Looks at a world; only the first break of each promise is kept."""

    world: "World"
    found: dict[Promise, Violation] = field(default_factory=dict)
    replaced: deque[float] = field(default_factory=deque)
    replaced_ids: set[str] = field(default_factory=set)
    _works_since: dict[str, float] = field(default_factory=dict)
    unheard_replaced: int = 0
    _failures: deque[float] = field(default_factory=deque)
    _outside_since: dict[str, float] = field(default_factory=dict)
    _short_since: float | None = None
    _patience_s: float = 0.0
    _most: int = 0
    _slept: bool = False
    _quiet: Quiet = field(init=False)
    _expenses: Expenses = field(init=False)

    def __post_init__(self) -> None:
        self._quiet, self._expenses = Quiet(self), Expenses(self)

    def broken(self, promise: Promise, how: str) -> None:
        """Note that a promise is broken."""
        violation = Violation(promise=promise, at_s=self.world.now_s, how=how)
        self.found.setdefault(promise, violation)

    # --- every minute ---------------------------------------------------------------------------

    def minute(self) -> None:
        """Look at everything."""
        world = self.world
        self._follow()
        self._bounds()
        self._orphans()
        self._operator()
        self._whole()
        quiet_s = world.now_s - world.scenario.quiet_from_s
        if quiet_s > 0:
            self._quiet.minute(quiet_s)
        self._expenses.minute(quiet_s)
        self._others()

    def _follow(self) -> None:
        """Note who began to take requests, and whose logs nobody reads."""
        world, known = self.world, self._works_since
        works = {i for i in world.force.instances if world.works(i)}
        if UNHEARD & world.active.keys():
            world.muted |= works - known.keys()
        self._works_since = {i: known.get(i, world.now_s) for i in works}

    def _bounds(self) -> None:
        world = self.world
        spot, on_demand = world.cloud.group(world.spot), world.cloud.group(world.on_demand)
        if spot.desired > max(SPOT_MAX, world.operator_desired):
            self.broken(Promise.BOUNDS, f"spot desired {spot.desired}, spot_max {SPOT_MAX}")
        if on_demand.desired > max(SPOT_MAX, world.adopted):
            how = f"on-demand desired {on_demand.desired}, on_demand_max {SPOT_MAX}"
            self.broken(Promise.BOUNDS, how)

    def _orphans(self) -> None:
        world = self.world
        outside = {i.instance_id for i in world.cloud.instances() if not i.group}
        known = self._outside_since
        self._outside_since = {i: known.get(i, world.now_s) for i in outside}
        for instance_id, since_s in self._outside_since.items():
            excused = world.now_s - world.last_excused_s <= ORPHAN_S
            if world.now_s - since_s > ORPHAN_S and self._calm(ORPHAN_S) and not excused:
                how = f"{instance_id} runs in no group since {since_s:.0f} s"
                self.broken(Promise.ORPHANS, how)

    def _whole(self) -> None:
        """The fleet is whole: always, but for what nothing can be done about in time."""
        world = self.world
        spot, on_demand = world.cloud.group(world.spot), world.cloud.group(world.on_demand)
        working, wanted = world.working(), min(spot.desired - world.spares, SPOT_MAX)
        if self._recently(CAPPED):
            wanted = min(wanted, CONFIGURATION_CAP)
        short = working < wanted
        # Where more and more is asked for, who was asked for last is waited for.
        more, self._most = wanted > self._most, max(wanted, self._most) if short else wanted
        self._short_since = None if not short or more else (self._short_since or world.now_s)
        lasted_s = world.now_s - (self._short_since or world.now_s)
        self._patience_s = max(self._patience_s, self.to_be_missed_s()) if short else 0.0
        too_long = lasted_s > SHORT_S + self._patience_s
        helpless = self._recently(HELPLESS, self._patience_s) or self._waits_for_budget(
            wanted - working
        )
        if too_long and self._calm(SHORT_S) and not helpless:
            how = f"{working} of {spot.desired} serve for {lasted_s / 60:.0f} min"
            self.broken(Promise.WHOLE, f"{how}, on-demand desired {on_demand.desired}")

    def _waits_for_budget(self, short: int) -> bool:
        """Whether all who are short are ill, or just replaced, and the budget was spent lately."""
        world = self.world
        ill = sum(not world.works(i.instance_id) for i in self.in_service())
        ages_s = [world.now_s - at_s for at_s in self.replaced]
        return is_budget_spent(ages_s, short - ill, world.replacements_an_hour)

    def in_service(self) -> list[InstanceView]:
        members = self.world.cloud.instances()
        return [i for i in members if i.state == IN_SERVICE and not self.world.is_other(i)]

    def to_be_missed_s(self) -> float:
        world, there = self.world, self.in_service()
        if world.hung_unseen.intersection(world.force.instances):
            return math.inf
        idle = {i.instance_id for i in there if not world.works(i.instance_id)}
        hang = idle <= world.hung.keys()
        return to_be_missed_s(world.scenario, world.now_s, len(there), len(idle), hang=hang)

    def _begun(self) -> list[Fault]:
        return [f for f in self.world.scenario.faults if f.at_s <= self.world.now_s]

    def _recently(self, kinds: frozenset[Kind], patience_s: float = 0.0) -> bool:
        """Whether one of some faults lasts, or has lasted within the time to become whole."""
        since_s = self.world.now_s - WHOLE_AFTER_S - patience_s
        return any(fault.kind in kinds and fault.end_s >= since_s for fault in self._begun())

    def _operator(self) -> None:
        """Where nobody sizes by load, less than was asked for is asked for by nobody."""
        world, desired = self.world, self.world.cloud.group(self.world.spot).desired
        if not world.scenario.sized and desired < world.asked:
            self.broken(Promise.OPERATOR, f"spot desired {desired}, asked for {world.asked}")

    def serving(self, group: GroupView) -> int:
        """How many of a group take requests and are not told to go."""
        members = (i for i in group.instances if i.state != TERMINATING)
        return sum(self.world.works(i.instance_id) for i in members)

    def _others(self) -> None:
        since_s = self.world.now_s - self.world.other_recorded_s
        if since_s > SILENT_S and self.world.now_s > STEADY_S and self._calm(SILENT_S):
            self.broken(Promise.ISOLATED, f"the other fleet was not turned for {since_s:.0f} s")

    def _calm(self, seconds: float) -> bool:
        """Whether nothing was wrong with AWS or the schedules for so long."""
        return self.world.now_s - self.world.last_trouble_s > seconds

    def failed(self, function: str, what: str) -> None:
        """Note that an invocation failed; without trouble of AWS's own that must soon be over."""
        world, failures = self.world, self._failures
        excused_s = world.now_s - world.last_excused_s
        calm = self._calm(FAILURES_WITHIN_S) and excused_s > FAILURES_WITHIN_S
        failures.append(world.now_s)
        while failures[0] < world.now_s - FAILURES_WITHIN_S:
            failures.popleft()
        if calm and len(failures) > FAILURES_AT_MOST:
            how = f"{len(failures)} failures within {FAILURES_WITHIN_S / 60:.0f} min"
            self.broken(Promise.SETTLED, f"{how}, the last of {function}: {what[:160]}")

    # --- every call that acts -------------------------------------------------------------------

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        """Look at what a call asks for, before it has its effect."""
        world, instance_id = self.world, params.get("InstanceId", "")
        group = params.get("AutoScalingGroupName", "") or world.group_of(instance_id)
        if operation == "suspend_processes":
            return
        if group in world.other_groups:
            self.broken(Promise.ISOLATED, f"{operation} {dict(params)} of the other fleet")
            return
        match operation:
            case "set_desired_capacity":
                view = world.cloud.group(group)
                by = view.desired - int(params["DesiredCapacity"])
                self._expenses.moved(group, -by)
                self._lowered(group, by, "", function)
            case "terminate_instance_in_auto_scaling_group":
                self._expenses.moved(group, -1)
                self._lowered(group, 1, instance_id, function)
            case "set_instance_health":
                self._replaces(instance_id)
            case _:
                return

    def _lowered(self, group: str, by: int, instance_id: str, function: str) -> None:
        if by <= 0:
            return
        world = self.world
        if instance_id and world.cloud.instance(instance_id).state == TERMINATING:
            return
        view, load = world.cloud.group(group), world.steady_load(STEADY_S)
        if group == world.spot:
            self._slept |= view.desired == by
            left = view.desired - by + world.scenario.onprem_workers
            if left < load and function == "check_health" and not self._may_sleep(left):
                how = f"spot {view.desired} -> {view.desired - by} under {load} erlangs"
                self.broken(Promise.SCALE_IN, f"{how}, {world.force.queued} requests wait")
            return
        gone = max(0, self.serving(view) - (view.desired - by))
        if instance_id:
            gone = int(world.works(instance_id))
        before = self._staying() + self._hang_unknown()
        # Whom spot is asked for is the sizing's to say; of a fleet that is met the load says it,
        # as far as an operator lets spot serve it, until it sleeps or the operator says it.
        spot = world.cloud.group(world.spot)
        met = world.adopted and not self._slept and not world.operator_desired
        needed = min(load, spot.maximum if met else spot.desired)
        if gone and before - gone + world.scenario.onprem_workers < needed:
            how = f"on-demand {view.desired} -> {view.desired - by}: {before} -> {before - gone}"
            self.broken(Promise.MAKE_BEFORE_BREAK, f"{how} instances serve {load} erlangs")

    def _staying(self) -> int:
        """How many instances take requests and are not told to go: calls come within a second."""
        members = self.world.cloud.instances()
        return sum(self.world.works(i.instance_id) for i in members if i.state != TERMINATING)

    def _hang_unknown(self) -> int:
        """How many hang for so short that nothing tells them from who has nothing to do."""
        world, unknown_s = self.world, self.to_be_missed_s()
        there = world.force.instances
        return sum(world.now_s - at_s < unknown_s for i, at_s in world.hung.items() if i in there)

    def _may_sleep(self, left: int) -> bool:
        """Whether the fleet may go to sleep: its queue is known to be empty."""
        world = self.world
        idle = not world.force.queued and not world.force.in_flight
        scenario = world.scenario
        return not left and not scenario.spot_min and scenario.queue_known and idle

    def _replaces(self, instance_id: str) -> None:
        world = self.world
        if instance_id in self.replaced_ids:
            return  # Asked once more, as the answer was lost: it has no further effect.
        self.replaced_ids.add(instance_id)
        self.replaced.append(world.now_s)
        works_s = world.now_s - self._works_since.get(instance_id, world.now_s)
        if works_s > STEADY_S and instance_id not in world.hung:
            self._replaces_healthy(instance_id)
        hour = sum(at_s > world.now_s - 3600.0 for at_s in self.replaced)
        # A memory that was lost takes the replacements of before along.
        lost = sum(f.kind in FORGETFUL and f.at_s > world.now_s - 3600.0 for f in self._begun())
        if hour > world.replacements_an_hour * (1 + lost):
            self.broken(Promise.BUDGET, f"{hour} replacements in an hour")

    def _replaces_healthy(self, instance_id: str) -> None:
        if instance_id not in self.world.muted:
            self.broken(Promise.REASONED, f"{instance_id}, which served, was replaced")
        self.unheard_replaced += 1
        if self.unheard_replaced > UNHEARD_REPLACED_AT_MOST:
            how = f"{self.unheard_replaced} that served without logs were replaced"
            self.broken(Promise.REASONED, f"{how}, the last {instance_id}")
