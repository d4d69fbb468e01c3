"""Worlds in which things go wrong: how each fault begins and ends, and what it affects."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from spotkeeper_lab.cloud.refresh import Preferences
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    ON_DEMAND_DRY,
    SPOT_DRY,
    STANDBY,
    TERMINATING,
    CloudError,
    CloudEvent,
    EventKind,
    GroupView,
    InstanceView,
    Purchase,
)
from spotkeeper_lab.faults import LAUNCH_TEXTS, Fault, Kind
from spotkeeper_lab.scenario import (
    MAIN,
    NEIGHBOURS_LOAD,
    A,
    B,
    Scenario,
    documents_of,
    requests_of,
    specs_of,
    stage_of,
)
from spotkeeper_lab.workers import SearchLogs, Served, Workforce
from spotkeeper_lab.world import AVAILABILITY, HEALTH, INTERRUPTION, Invocation, Stage, World

TURN_EVERY_S, JITTER_S = 60.0, 59.0
SHIP_EVERY_S, BATCHING_S = 45.0, 5.0
UPDATE_EVERY_S = 5.0
LAST_REQUEST_S = 30.0
# EventBridge's retries of an invocation that failed (template.yaml: two, within two minutes).
RETRIES_S = (60.0,)
LONGEST_BOOT_S = 40.0
REPLACEMENTS_AN_HOUR = 2
NOTICE_S = 120.0


class Faulted(World):
    """A world with faults of its first fleet: of its groups, its workers and their logs.

    Faults of AWS and of the functions are in `world.py`.
    """

    def __init__(self, stage: Stage, spot: str, on_demand: str) -> None:
        super().__init__(stage)
        self.spot, self.on_demand = spot, on_demand
        self.hit: dict[Kind, list[str]] = {}
        """The instances that the last fault of each kind chose."""
        self.hung: dict[str, float] = {}

    def play(self, faults: Iterable[Fault]) -> None:
        """Have faults begin and end at their times."""
        for fault in faults:
            self.enter(fault.at_s, partial(self._begin, fault))
            if fault.length_s:
                self.enter(fault.end_s, partial(self._end, fault))

    def _begin(self, fault: Fault) -> None:
        self.tell(f"! {fault.kind} for {fault.length_s:.0f} s ({fault.value})")
        self.active[fault.kind] = fault
        self.logs.stopped = Kind.LOGS_STOP in self.active
        # The group may have been deleted meanwhile.
        with suppress(CloudError):
            self.do(fault)

    def _end(self, fault: Fault) -> None:
        self.tell(f"! over: {fault.kind}")
        if self.active.get(fault.kind) is fault:
            del self.active[fault.kind]
        self.logs.stopped = Kind.LOGS_STOP in self.active
        with suppress(CloudError):
            self.undo(fault)

    def do(self, fault: Fault) -> None:
        """Let a fault happen."""
        cloud, spot, now_s = self.cloud, self.spot, self.now_s
        match fault.kind:
            case Kind.LOSS:
                self._take(fault)
            case Kind.UNWARNED_LOSS:
                cloud.reclaim(self.choose(fault), now_s)
            case Kind.SPOT_DRY:
                cloud.fail_launches(spot, fault.at_s, fault.end_s, SPOT_DRY)
                self._take(fault)
            case Kind.ON_DEMAND_DRY:
                text = ON_DEMAND_DRY.format(type="g5.xlarge", zone="us-east-1a")
                cloud.fail_launches(self.on_demand, fault.at_s, fault.end_s, text)
            case Kind.LAUNCH_REFUSED:
                text = fault.chosen(LAUNCH_TEXTS)
                cloud.fail_launches(spot, fault.at_s, fault.end_s, text)
                self._take(fault)
            case Kind.BAD_SPOT_IMAGE:
                # No more than can be replaced within an hour.
                cloud.break_image(spot, fault.at_s, fault.end_s)
                cloud.reclaim(self.choose(fault)[:REPLACEMENTS_AN_HOUR], now_s + NOTICE_S)
            case Kind.BAD_ON_DEMAND_IMAGE:
                cloud.break_image(self.on_demand, fault.at_s, fault.end_s)
            case Kind.BOOT_LOOP:
                cloud.reclaim(self.choose(fault), now_s)
                self._take_what_starts(fault)
            case Kind.EMPTY_WARNING | Kind.REBALANCE:
                warns = fault.kind is Kind.EMPTY_WARNING
                for instance_id in self.choose(fault):
                    self._post(EventKind.WARNING if warns else EventKind.REBALANCE, instance_id)
            case Kind.FOREIGN_EVENTS:
                for number in range(1 + int(20 * fault.value)):
                    at_s = now_s + self.rng.uniform(0.0, 60.0)
                    foreign = f"i-0f00{number:013x}"
                    self.enter(at_s, partial(self._post, EventKind.WARNING, foreign))
            case Kind.HANG:
                for instance_id in self.choose(fault, fault.value / 2):
                    self.hung[instance_id] = now_s
                    self.force.hang(instance_id)
            case Kind.FAIL:
                self.logs.failing |= {*self.choose(fault)}
            case Kind.SLOWED:
                self.force.slower |= dict.fromkeys(self.choose(fault), 4.0)
            case Kind.CLOCKS:
                self.logs.ahead_s = 0.004 if fault.value < 0.5 else 1.5  # noqa: PLR2004
            case Kind.CLOCKS_FAR:
                off_s = -600.0 if fault.value < 0.5 else 600.0  # noqa: PLR2004
                self.logs.off_s = dict.fromkeys(self._half(), off_s)
            case Kind.CLOCK_JUMPS:
                self.ahead_s = -3600.0 if fault.value < 0.5 else 3600.0  # noqa: PLR2004
            case Kind.OPERATOR_ENDS:
                # An operator's role needs no mark.
                for instance_id in self.choose(fault, fault.value / 2):
                    cloud.kill(instance_id)
            case Kind.REFRESH:
                most = 110 if fault.value < 0.5 else None  # noqa: PLR2004
                cloud.start_refresh(spot, Preferences(max_healthy=most))
            case Kind.ZONAL_SHIFT:
                pool = A if fault.value < 0.5 else B  # noqa: PLR2004
                lost = [view for view in self.group(spot).instances if view.pool == pool]
                for group in (spot, self.on_demand):
                    cloud.shift(group, pool.partition("/")[0])
                cloud.reclaim([view.instance_id for view in lost], now_s)
            case Kind.ZONES_EVENED:
                # As AZRebalance does: one ends, and another is launched.
                for instance_id in self.choose(fault, 0.0):
                    if "AZRebalance" not in self.group(spot).suspensions:
                        cloud.set_unhealthy(instance_id)

    def undo(self, fault: Fault) -> None:
        """End a fault's effect, if it ends with the fault."""
        if fault.kind is Kind.CLOCKS:
            self.logs.ahead_s = 0.0
        elif fault.kind is Kind.CLOCKS_FAR:
            self.logs.off_s = {}
        elif fault.kind is Kind.CLOCK_JUMPS:
            self.ahead_s = 0.0
        elif fault.kind is Kind.REFRESH and self.cloud.refresh(self.spot):
            self.cloud.cancel_refresh(self.spot)
        elif fault.kind is Kind.ZONAL_SHIFT:
            for group in (self.spot, self.on_demand):
                self.cloud.shift(group, "")

    def choose(self, fault: Fault, share: float | None = None) -> list[str]:
        """Choose spot instances that are in service, at least one if there is any."""
        members = self.group(self.spot).instances
        there = [i.instance_id for i in members if i.state == IN_SERVICE]
        wanted = max(1, round((fault.value if share is None else share) * len(there)))
        chosen = self.hit[fault.kind] = self.rng.sample(there, min(len(there), wanted))
        return chosen

    def _half(self) -> list[str]:
        """Half of the instances with workers."""
        there = sorted(self.force.instances)
        return self.rng.sample(there, len(there) // 2)

    def _take(self, fault: Fault) -> None:
        self.cloud.reclaim(self.choose(fault), self.now_s + NOTICE_S)

    def _take_what_starts(self, fault: Fault) -> None:
        """Take every instance that starts, until the fault is over."""
        if fault.kind not in self.active:
            return
        starting = [
            view.instance_id
            for view in self.group(self.spot).instances
            if view.state != IN_SERVICE and self.now_s - view.launched_s > LONGEST_BOOT_S
        ]
        self.cloud.reclaim(starting, self.now_s)
        self.enter(self.now_s + 10.0, partial(self._take_what_starts, fault))

    def _post(self, kind: EventKind, instance_id: str) -> None:
        now_s = self.now_s
        event = CloudEvent(
            kind=kind, at_s=now_s, deliver_s=now_s, group="", instance_id=instance_id
        )
        self.event(self.events.of_cloud(event))

    def event(self, event: dict[str, object], retries: tuple[float, ...] = RETRIES_S) -> None:
        """Deliver an event; a failed invocation is tried again."""

        def again(invocation: Invocation) -> None:
            if retries and invocation.failed:
                self.enter(self.now_s + retries[0], lambda: self.event(event, retries[1:]))

        self.invoke(INTERRUPTION, event, again)

    def group(self, name: str) -> GroupView:
        """A group; an empty one if it was deleted."""
        if name in self.cloud.groups():
            return self.cloud.group(name)
        return GroupView(name=name, purchase=Purchase.SPOT)


def mistaken(documents: dict[str, str], value: float) -> dict[str, str]:
    """Make a mistake in the fleet's document, or beside it; `value` chooses which."""
    main = json.loads(documents[MAIN])
    twice = json.dumps(main | {"on_demand_group": main["spot_group"]})
    mistakes: tuple[dict[str, str], ...] = (
        {MAIN: '{"version": 1}'},
        {f"{MAIN}.overrides": '{"bounds": {"spot_mx": 9}}'},
        {MAIN: twice},
        {f"a-{MAIN}": json.dumps(main | {"mode": "observe"})},
        {MAIN: ""},
    )
    changed = documents | mistakes[min(len(mistakes) - 1, int(value * len(mistakes)))]
    return {name: text for name, text in changed.items() if text}


class Troubled(Faulted):
    """The fleets of a scenario, and the faults that happen to them."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(stage_of(scenario), f"{MAIN}-spot", f"{MAIN}-on-demand")
        self.scenario = scenario
        self.logs.slots = scenario.slots
        self.force.holds = scenario.hang_holds
        self.other_groups = frozenset(
            f"{name}-{kind}" for name in scenario.others for kind in ("spot", "on-demand")
        )
        self.beside: Workforce | None = None
        """The workers of the neighbour, if there is one, and their logs."""
        self.logs_beside = SearchLogs(self.time, scenario.neighbour)
        if scenario.neighbour:
            requests = requests_of(scenario, ((0.0, NEIGHBOURS_LOAD),))
            self.beside = Workforce(
                zip(requests.arrival_s.tolist(), requests.service_s.tolist(), strict=True),
                self._served_beside,
                chance=random.Random(f"{scenario.seed}/beside"),
            )
        self.mute: set[str] = set()
        self.muted: set[str] = set()
        """Instances that sent no search logs for a time, or began to serve while none were read."""
        self.logged_instances: set[str] = set()
        """Instances that sent a search log while the collector read them."""
        self._have_logged: set[str] = set()
        self.logged = 0
        """The number of requests logged until now."""
        self.replaced: dict[str, float] = {}
        """When the product last requested the replacement of an instance."""
        self.operator_desired = 0
        """The highest capacity that an operator has set."""
        self.operator_acted = False
        """Whether an operator has set a capacity."""
        self.operator_wants = self.group(self.spot).desired
        """The capacity that an operator set last; until then the first one of the group."""
        self.closed_at = 0
        """The capacity that an operator had set when the maximum became 0."""
        self.adopted = scenario.adopted
        self._updated_s = -UPDATE_EVERY_S
        self._fleets: dict[str, str] = {}

    def go(self) -> None:
        deployed_s = self.scenario.deployed_at_s
        self.enter(deployed_s + self.rng.uniform(0.0, 59.0), self._tick(HEALTH, deployed_s))
        self.enter(deployed_s + self.rng.uniform(0.0, 59.0), self._tick(AVAILABILITY, deployed_s))
        self.enter(deployed_s, self._ship)
        self.play(self.scenario.faults)
        while (at_s := self.next_s()) <= self.scenario.end_s:
            self.step(at_s)

    def do(self, fault: Fault) -> None:
        """Let a fault happen: those of the operator, the state and the document."""
        cloud, spot = self.cloud, self.spot
        match fault.kind:
            case Kind.HALF_LOGS:
                self.mute = set(self._half())
                self.muted |= self.mute
            case Kind.STATE_LOST:
                self.table.delete_item(Key={"pk": {"S": f"fleet#{MAIN}"}, "sk": {"S": "state"}})
            case Kind.STATE_UNREADABLE:
                self._spoil_state(fault)
            case Kind.OPERATOR_DESIRED:
                group = self.group(spot)
                # A turn cannot see a change to the same value.
                if (wanted := int(fault.value * group.maximum)) != group.desired:
                    cloud.set_desired(spot, wanted)
                    self._note_operator(wanted)
            case Kind.OPERATOR_MAXIMUM:
                self.closed_at = self.operator_wants
                cloud.set_bounds(spot, 0, 0)
                self._note_operator(0)
            case Kind.OPERATOR_SUSPENDS:
                cloud.suspend(spot, "Launch")
                self._take(fault)
            case Kind.STANDBY:
                there = self.choose(fault, fault.value / 2)
                cloud.enter_standby(spot, there, smaller=fault.value < 0.5)  # noqa: PLR2004
                self._note_operator(self.group(spot).desired)
            case Kind.WRONG_DOCUMENT:
                self.documents = mistaken(documents_of(self.scenario), fault.value)
            case Kind.GROUP_DELETED if spot in cloud.groups():
                cloud.delete_group(spot)
            case Kind.ON_DEMAND_DELETED if self.on_demand in cloud.groups():
                cloud.delete_group(self.on_demand)
            case _:
                super().do(fault)

    def undo(self, fault: Fault) -> None:
        """End a fault's effect, if it ends with the fault."""
        cloud, spot, scenario = self.cloud, self.spot, self.scenario
        match fault.kind:
            case Kind.HALF_LOGS:
                self.mute = set()
            case Kind.OPERATOR_MAXIMUM:
                cloud.set_bounds(spot, 0, scenario.group_maximum)
                # Where sizing is off, the operator sets the desired capacity again.
                if not scenario.sized:
                    cloud.set_desired(spot, self.closed_at)
                    self._note_operator(self.closed_at)
            case Kind.OPERATOR_SUSPENDS:
                cloud.resume(spot, "Launch")
            case Kind.STANDBY:
                self._leave_standby()
            case Kind.WRONG_DOCUMENT:
                self.documents = documents_of(scenario)
            case Kind.GROUP_DELETED if spot not in cloud.groups():
                # At 0; where sizing is off, the operator sets the desired capacity.
                self._make(spot, 0 if scenario.sized else self.operator_wants)
            case Kind.ON_DEMAND_DELETED if self.on_demand not in cloud.groups():
                self._make(self.on_demand, 0)
            case _:
                super().undo(fault)

    def _leave_standby(self) -> None:
        """Move the instances back; the operator ends those that the group has no room for."""
        for view in self.group(self.spot).instances:
            if view.state == STANDBY:
                try:
                    self.cloud.exit_standby(self.spot, [view.instance_id])
                except CloudError:
                    self.cloud.kill(view.instance_id)
        self._note_operator(self.group(self.spot).desired)

    def _make(self, group: str, desired: int) -> None:
        """Make a group again."""
        (spec,) = [one for one in specs_of(self.scenario, (A, B)) if one.name == group]
        self.cloud.create_group(replace(spec, desired=desired))

    def _note_operator(self, desired: int) -> None:
        """Remember the capacity that an operator set for the spot group."""
        self.operator_acted = True
        self.operator_wants, self.operator_desired = desired, max(self.operator_desired, desired)

    def _spoil_state(self, fault: Fault) -> None:
        item = dict(self.state_item(MAIN))
        spoilt: dict[str, Any] = {"availability_memory": {"S": "{"}, "health_memory": {"S": "{"}}
        if fault.value < 0.3:  # noqa: PLR2004
            spoilt["availability_notes"] = {"L": [{"S": "{"}]}
        if fault.value > 0.7:  # noqa: PLR2004
            spoilt["availability_written"] = {"S": "2026-01-01T00:00:00"}
        if item:
            self.table.put_item(Item={**item, **spoilt})

    # --- functions ------------------------------------------------------------------------------

    def happened(self, event: CloudEvent) -> None:
        """Deliver an event; before the functions are deployed, no rule matches it."""
        for one in self.observers:
            one.happened(event)
        if self.now_s >= self.scenario.deployed_at_s:
            self.enter(event.deliver_s, lambda: self.event(self.events.of_cloud(event)))

    def pass_to(self, to_s: float) -> None:
        """Let time pass for the workers, too."""
        before = self._entered
        if self.beside:
            self.beside.advance(to_s)
        super().pass_to(to_s)
        if self._entered > before or to_s >= self._updated_s + UPDATE_EVERY_S:
            self._update_workers()

    def recorded(self, fleet: str, text: str) -> None:
        """Add a decision to the story, unless it is a hold without an alarm."""
        super().recorded(fleet, text)
        record = json.loads(text)
        if fleet == MAIN and (record["action"] != "hold" or record["alarms"]):
            decision = f"{record['action']} ({record['rule']}): {record['reason']}"
            self.tell(f"{record['controller']} {decision}")

    def done(self, invocation: Invocation) -> None:
        """Add a failure to the story."""
        if invocation.failed:
            self.tell(f"  {invocation.function} failed: {invocation.failed[:200]}")
        super().done(invocation)

    def _tick(self, function: str, minute_s: float) -> Callable[[], None]:
        def tick() -> None:
            if Kind.NO_TURNS not in self.active:
                self.invoke(function, self.events.scheduled(self.now_s))
            next_s = minute_s + TURN_EVERY_S
            self.enter(next_s + self.rng.uniform(0.0, JITTER_S), self._tick(function, next_s))

        return tick

    def _ship(self) -> None:
        late = self.active.get(Kind.LOGS_LATE)
        beside = self.logs_beside.ship()
        bodies = self.logs.ship()
        if self.now_s <= self.scenario.deployed_at_s:
            bodies = []  # There is no queue yet.
        if not {Kind.LOGS_STOP, Kind.COLLECTOR_DOWN} & self.active.keys():
            self.logged_instances |= self._have_logged
        delay_s = 60.0 + 180.0 * late.value if late else 0.0
        self.queue.send(beside, self.now_s)
        self.enter(self.now_s + delay_s, lambda: self.queue.send(bodies, self.now_s))
        self.enter(self.now_s + delay_s + BATCHING_S, self._collect)
        self.enter(self.now_s + SHIP_EVERY_S, self._ship)

    def _collect(self) -> None:
        if Kind.COLLECTOR_DOWN not in self.active:
            self.collect()

    # --- workers --------------------------------------------------------------------------------

    def served(self, served: Served) -> None:
        """Log a finished request, unless its worker sends no logs."""
        for one in self.observers:
            one.finished(served)
        if served.instance_id not in self.mute:
            self.logs.write(served)
            self._have_logged.add(served.instance_id)
            self.logged += Kind.LOGS_STOP not in self.active

    def _update_workers(self) -> None:
        """Start, drain or remove the workers of instances that are new, leave or have ended."""
        self._updated_s = self.now_s
        views = self.cloud.instances()
        self._update(self.force, self.logs, [v for v in views if not self.is_other(v)])
        if self.beside:
            neighbour = [v for v in views if self.fleet_of(v) == self.scenario.neighbour]
            self._update(self.beside, self.logs_beside, neighbour)

    def _update(self, force: Workforce, logs: SearchLogs, views: Sequence[InstanceView]) -> None:
        now_s, there = self.now_s, force.instances
        for view in views:
            ready = view.serves_s is not None and view.serves_s <= now_s
            if ready and view.instance_id not in there:
                force.join(view.instance_id)
            gone = view.gone_s is not None and now_s >= view.gone_s - LAST_REQUEST_S
            if view.state == TERMINATING or gone:
                force.take(view.instance_id, takes=False)
            elif view.instance_id not in self.hung:
                # The mark was removed: a warned instance serves again.
                force.take(view.instance_id, takes=True)
        for instance_id in there - {view.instance_id for view in views}:
            self.queue.send(logs.dismiss(instance_id, force, now_s), now_s)

    def _served_beside(self, served: Served) -> None:
        for one in self.observers:
            one.finished_beside(served)
        self.logs_beside.write(served)

    # --- its state ------------------------------------------------------------------------------

    def is_other(self, view: InstanceView) -> bool:
        """Whether an instance is another fleet's."""
        return self.fleet_of(view) != MAIN

    def fleet_of(self, view: InstanceView) -> str:
        """Name an instance's fleet; a detached one keeps it."""
        if view.group:
            other = view.group in self.other_groups
            self._fleets[view.instance_id] = view.group.partition("-")[0] if other else MAIN
        return self._fleets.get(view.instance_id, MAIN)

    def works(self, instance_id: str) -> bool:
        return self.force.serving(instance_id)

    def working(self) -> int:
        """How many instances take requests."""
        return sum(self.force.serving(instance_id) for instance_id in self.force.instances)

    def load(self) -> float:
        """The load that is offered now, in erlangs."""
        return [erlangs for at_s, erlangs in self.scenario.loads if at_s <= self.now_s][-1]

    def group_of(self, instance_id: str) -> str:
        try:
            return self.cloud.instance(instance_id).group
        except CloudError:
            return ""
