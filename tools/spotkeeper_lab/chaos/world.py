"""The world of one run: workers and their logs, events and schedules, faults, and who watches."""

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from spotkeeper_lab.chaos.breaking import begin, end
from spotkeeper_lab.chaos.promises import Promise, Violation
from spotkeeper_lab.chaos.stand_ins.aws import MAIN, OTHER, Aws
from spotkeeper_lab.chaos.stand_ins.lambdas import Invocation
from spotkeeper_lab.chaos.story.refusals import disturbs
from spotkeeper_lab.chaos.story.scenario import Fault, Kind, Scenario, StartState
from spotkeeper_lab.chaos.story.scene import cloud_of, documents_of, requests_of
from spotkeeper_lab.chaos.watch import Watch
from spotkeeper_lab.checkout import Handler
from spotkeeper_lab.cloud.values import CloudError, CloudEvent, InstanceView
from spotkeeper_lab.cloud.words import TERMINATING
from spotkeeper_lab.end_to_end.events import Events
from spotkeeper_lab.end_to_end.functions import (
    AVAILABILITY,
    COLLECT,
    HEALTH,
    INTERRUPTION,
)
from spotkeeper_lab.end_to_end.serving.logs import SearchLogQueue, SearchLogs
from spotkeeper_lab.end_to_end.serving.served import Served
from spotkeeper_lab.end_to_end.serving.workers import Workforce

TURN_EVERY_S, JITTER_S = 60.0, 59.0
SHIP_EVERY_S, BATCHING_S = 45.0, 5.0
MUSTER_EVERY_S = 5.0
LAST_REQUEST_S = 30.0
# EventBridge's retries of an invocation that failed (template.yaml: two, within two minutes).
RETRIES_S = (60.0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run came to; `story` is told line by line."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    invocations: int
    calls: int
    losses: int
    story: tuple[str, ...]


class World(Aws):
    """A run under way."""

    spot, on_demand = f"{MAIN}-spot", f"{MAIN}-on-demand"
    other_groups = (f"{OTHER}-spot", f"{OTHER}-on-demand")
    replacements_an_hour = 2

    def __init__(self, scenario: Scenario, handlers: Mapping[str, Handler]) -> None:
        super().__init__(scenario, cloud_of(scenario), handlers, documents_of(scenario))
        self.events = Events(self.time)
        self.logs, self.queue = SearchLogs(self.time), SearchLogQueue(self.time)
        self.force = Workforce(
            requests_of(scenario),
            self._served,
            onprem_workers=scenario.onprem_workers,
            chance=random.Random(f"{scenario.seed}/idle"),
        )
        self.hung: dict[str, float] = {}
        self.hung_unseen: set[str] = set()
        """Those that hang since before their fleet was looked at: as if their logs did not come."""
        self.mute: set[str] = set()
        self.muted: set[str] = set()
        """Those that ship no search logs, once did not, or came when none were read."""
        self.operator_desired = 0
        """The most that an operator has asked for."""
        self.asked = self.cloud.group(self.spot).desired
        """What an operator asked for last; what the group began with until then."""
        self.closed_at = 0
        """What an operator had asked the spot group for when its maximum was set to 0."""
        self.adopted = 6 if scenario.start is StartState.ON_DEMAND else 0
        self.last_trouble_s = 0.0
        self.last_excused_s = -math.inf
        self.watch = Watch(self)
        self._mustered_s = -MUSTER_EVERY_S
        self._others: dict[str, bool] = {}
        self._loads: deque[tuple[float, float]] = deque()

    def run(self) -> Result:
        """Go through the run."""
        self._plan()
        self._go_through(self.scenario.end_s)
        self._kill_all()
        return Result(
            scenario=self.scenario,
            violations=tuple(self.watch.found.values()),
            invocations=self.invocations,
            calls=self.calls,
            losses=self.cloud.bill().losses,
            story=tuple(self.story),
        )

    def _plan(self) -> None:
        met_s = self.scenario.met_at_s
        self.enter(met_s + self.rng.uniform(0.0, 59.0), self._tick(HEALTH, met_s))
        self.enter(met_s + self.rng.uniform(0.0, 59.0), self._tick(AVAILABILITY, met_s))
        self.enter(met_s, self._ship)
        self.enter(60.0, self._minute)
        for fault in self.scenario.faults:
            self.enter(fault.at_s, partial(self._begin, fault))
            if fault.length_s:
                self.enter(fault.end_s, partial(self._end, fault))

    def _minute(self) -> None:
        self._muster()
        self._loads.append((self.now_s, self.load()))
        if any(disturbs(fault) for fault in self.active.values()):
            self.last_trouble_s = self.now_s
        if Kind.WRONG_DOCUMENT in self.active:
            self.last_excused_s = self.now_s
        self.watch.minute()
        self.enter(self.now_s + 60.0, self._minute)

    # --- faults ---------------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        self.tell(f"! {fault.kind} for {fault.length_s:.0f} s ({fault.value})")
        self.active[fault.kind] = fault
        if disturbs(fault):
            self.last_trouble_s = self.now_s
        begin(self, fault)

    def _end(self, fault: Fault) -> None:
        self.tell(f"! over: {fault.kind}")
        if self.active.get(fault.kind) is fault:
            del self.active[fault.kind]
        end(self, fault)

    # --- functions ------------------------------------------------------------------------------

    def _happened(self, event: CloudEvent) -> None:
        if self.now_s < self.scenario.met_at_s:
            return  # No rule matches it yet.
        self.enter(event.deliver_s, lambda: self.event(self.events.of_cloud(event)))

    def _pass(self, to_s: float) -> None:
        """Let time pass for the workers, too."""
        self.force.advance(to_s)
        before = self._entered
        super()._pass(to_s)
        if self._entered > before or to_s >= self._mustered_s + MUSTER_EVERY_S:
            self._muster()

    def _acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        self.watch.acts(operation, params, function)

    def _requests(self) -> tuple[int, int]:
        return self.force.queued, self.force.in_flight

    def _look_at(self, invocation: Invocation) -> None:
        """Judge what an invocation has left."""
        function = invocation.function
        if invocation.failed:
            self.tell(f"  {function} failed: {invocation.failed[:200]}")
            self.watch.failed(function, invocation.failed)
        if invocation.bug:
            self.watch.broken(Promise.NO_BUG, f"{function}: {invocation.bug}")
        if function in (HEALTH, AVAILABILITY) and invocation.answered:
            self._all_recorded(invocation)

    def _all_recorded(self, invocation: Invocation) -> None:
        """Every fleet has its record, unless another turn was at work on it."""
        for fleet in (MAIN, OTHER):
            if fleet in invocation.recorded or invocation.overlapped:
                continue
            item = self.table.partitions.get(f"fleet#{fleet}", {}).get("state", {})
            if not any(key.endswith("_until") for key in item):
                how = f"{invocation.function} left no record of {fleet} and did not fail"
                self.watch.broken(Promise.RECORDED, how)

    def _tick(self, function: str, minute_s: float) -> Callable[[], None]:
        def tick() -> None:
            if Kind.NO_TURNS not in self.active:
                self.invoke(function, self.events.scheduled(self.now_s))
            next_s = minute_s + TURN_EVERY_S
            self.enter(next_s + self.rng.uniform(0.0, JITTER_S), self._tick(function, next_s))

        return tick

    def event(self, event: dict[str, Any], retries: tuple[float, ...] = RETRIES_S) -> None:
        """Deliver an event; a failed invocation is tried again."""

        def again(invocation: Invocation, _: object) -> None:
            if retries and invocation.failed:
                at_s = self.now_s + retries[0]
                self.enter(at_s, lambda: self.event(event, retries[1:]))

        self.invoke(INTERRUPTION, event, again)

    def _ship(self) -> None:
        late = self.active.get(Kind.LOGS_LATE)
        bodies = [] if Kind.LOGS_STOP in self.active else self.logs.ship()
        if self.now_s <= self.scenario.met_at_s:
            bodies = []  # There is no queue yet.
        delay_s = 60.0 + 180.0 * late.value if late else 0.0
        self.enter(self.now_s + delay_s, lambda: self.queue.send(bodies, self.now_s))
        self.enter(self.now_s + delay_s + BATCHING_S, self._collect)
        self.enter(self.now_s + SHIP_EVERY_S, self._ship)

    def _collect(self) -> None:
        if Kind.COLLECTOR_DOWN in self.active:
            return
        batch = self.queue.receive(self.now_s)
        if batch is None:
            return

        def settle(invocation: Invocation, answer: Any) -> None:
            records: Any = batch["Records"]
            failed = [record["messageId"] for record in records]
            if answer is not None and not invocation.failed:
                failed = [one["itemIdentifier"] for one in answer["batchItemFailures"]]
            self.queue.settle(batch, failed)

        self.invoke(COLLECT, batch, settle)

    # --- workers --------------------------------------------------------------------------------

    def _served(self, served: Served) -> None:
        if served.instance_id not in self.mute:
            self.logs.write(served)

    def _muster(self) -> None:
        """Start, drain or take away the workers of instances that came, leave or are gone."""
        self._mustered_s = now_s = self.now_s
        views = [view for view in self.cloud.instances() if not self.is_other(view)]
        there = self.force.instances
        for view in views:
            ready = view.serves_s is not None and view.serves_s <= now_s
            if ready and view.instance_id not in there:
                self.force.join(view.instance_id)
            gone = view.gone_s is not None and now_s >= view.gone_s - LAST_REQUEST_S
            if view.state == TERMINATING or gone:
                self.force.drain([view.instance_id])
            elif view.instance_id not in self.hung:
                # The mark was taken away: what was warned serves again.
                self.force.resume(view.instance_id)
        for instance_id in there - {view.instance_id for view in views}:
            self._lose(instance_id)

    def _lose(self, instance_id: str) -> None:
        if not self.force.serving(instance_id) and Kind.LOGS_STOP not in self.active:
            self.queue.send(self.logs.ship(instance_id), self.now_s)
        self.logs.lose(instance_id)
        self.force.lose(instance_id)

    # --- what is asked about it -----------------------------------------------------------------

    def is_other(self, view: InstanceView) -> bool:
        """Whether an instance is the other fleet's; one that was detached stays whose it was."""
        if view.group:
            self._others[view.instance_id] = view.group in self.other_groups
        return self._others.get(view.instance_id, False)

    def works(self, instance_id: str) -> bool:
        """Whether an instance takes requests."""
        return self.force.serving(instance_id)

    def working(self) -> int:
        """How many instances take requests."""
        return sum(self.force.serving(instance_id) for instance_id in self.force.instances)

    def load(self) -> float:
        """The load that is offered now, in erlangs."""
        return [erlangs for at_s, erlangs in self.scenario.loads if at_s <= self.now_s][-1]

    def steady_load(self, seconds: float) -> float:
        """The least load of the last so many seconds."""
        while self._loads and self._loads[0][0] < self.now_s - seconds:
            self._loads.popleft()
        return min([erlangs for _, erlangs in self._loads], default=self.load())

    def group_of(self, instance_id: str) -> str:
        """The group of an instance, or nothing."""
        try:
            return self.cloud.instance(instance_id).group
        except CloudError:
            return ""

    def operator_asked(self, desired: int) -> None:
        """Note what an operator asks of the spot group."""
        self.asked, self.operator_desired = desired, max(self.operator_desired, desired)

    def mend_documents(self) -> None:
        """Write the documents as they were."""
        self.documents = documents_of(self.scenario)

    def state_item(self) -> dict[str, Any]:
        """The fleet's item in the table, empty where it has none."""
        return self.table.partitions.get(f"fleet#{MAIN}", {}).get("state", {})
