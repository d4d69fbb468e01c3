"""The alarms of template.yaml in a simulated world, over the metrics that its functions wrote.

Each rings in time in the situation that it is for, and in no other. The situations are those of the
world: its faults, its groups and its queues.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from itertools import pairwise

from spotkeeper_lab.alarms import MINUTE_S, Alarm, Change, Metric, Metrics, State, evaluate_all
from spotkeeper_lab.faults import ACTS, OF_AWS, Kind
from spotkeeper_lab.promises import Check, Lately, Promise, Watch
from spotkeeper_lab.scenario import WARM_UP_S
from spotkeeper_lab.template import Stack
from spotkeeper_lab.world import Invocation

STACK = "lab"
"""Under this name the functions of a world write their metrics."""
FUNCTIONS = {
    "collect_search_logs": "CollectSearchLogs",
    "check_health": "CheckHealth",
    "check_availability": "CheckAvailability",
    "handle_interruption": "HandleInterruption",
    "keep_ledger": "KeepLedger",
}
LAMBDA, SQS = "AWS/Lambda", "AWS/SQS"
ADOPTED = {"SpotGroupName": "spot", "OnDemandGroupName": "on-demand"}


def of_template() -> list[Alarm]:
    """Return the alarms of a stack that adopts its groups."""
    stack = Stack.with_parameters(ADOPTED, STACK)
    return [Alarm(one) for one in stack.resources("AWS::CloudWatch::Alarm").values()]


# While these last, and for a while after them, what a turn reads or requests is wrong or missing.
_AWS = frozenset({
    *OF_AWS, Kind.HANGING, Kind.CLOCK_JUMPS, Kind.GROUP_DELETED, Kind.ON_DEMAND_DELETED,
    Kind.WRONG_DOCUMENT,
})  # fmt: skip
_MEMORY = frozenset({Kind.STATE_LOST, Kind.STATE_UNREADABLE})
_LOGS = frozenset({
    Kind.LOGS_STOP, Kind.LOGS_LATE, Kind.HALF_LOGS, Kind.COLLECTOR_DOWN, Kind.CLOCKS,
    Kind.CLOCKS_FAR,
})  # fmt: skip
_TABLE = frozenset({
    Kind.TABLE_DOWN, Kind.TABLE_THROTTLED, Kind.FAULTY, Kind.KILLED, Kind.SLOW, Kind.ANSWERS_LOST,
    Kind.HANGING,
})  # fmt: skip
_BROKEN = frozenset({
    Kind.BAD_SPOT_IMAGE, Kind.BAD_ON_DEMAND_IMAGE, Kind.BOOT_LOOP, Kind.LAUNCH_REFUSED,
    Kind.OPERATOR_SUSPENDS,
})  # fmt: skip
_CAPACITY = _BROKEN | {
    Kind.SPOT_DRY, Kind.ON_DEMAND_DRY, Kind.OPERATOR_DESIRED, Kind.OPERATOR_MAXIMUM,
    Kind.OPERATOR_ENDS, Kind.UNWARNED_LOSS, Kind.LOSS, Kind.HANG, Kind.FAIL, Kind.ZONES_EVENED,
    *ACTS,
}  # fmt: skip
CAUSES: Mapping[str, frozenset[Kind]] = {
    "errors": _AWS | _MEMORY,
    "oldest-message": _TABLE | _LOGS | {Kind.CLOCK_JUMPS},
    "search-log-dead-letters": _TABLE | {Kind.COLLECTOR_DOWN},
    "checker-not-running": frozenset({Kind.NO_TURNS}),
    "shortfall-unfilled": _AWS | _LOGS | _MEMORY | _CAPACITY,
    "both-short": frozenset({Kind.ON_DEMAND_DRY, Kind.ON_DEMAND_DELETED}),
    "configuration-failure": _AWS | _LOGS | _MEMORY | _BROKEN | {Kind.HANG},
    "stale-search-logs": _AWS | _LOGS | _MEMORY | _BROKEN | {Kind.HANG, Kind.OPERATOR_ENDS},
    "nobody-serves": _AWS | _LOGS | _MEMORY | _CAPACITY,
    "search-logs-lost": _LOGS | _TABLE | {Kind.CLOCK_JUMPS},
    "request-queue-unread": _AWS,
    "events-unsent": _TABLE,
    "onprem-workers": _AWS | _LOGS,
}
"""The faults in which an alarm may ring; it rings for nothing in others, or where none is named."""
AFTER_S = 1800.0
"""After the end of a fault, too, for this time."""
RARE, RARE_S = 20.0, 600.0
"""Fewer requests in this time are rare."""
WAITED_S = 780.0
"""The age of a message that the alarm must have seen: 120 s, ten minutes later."""
RINGS_AN_HOUR = 4
"""An alarm that begins to ring more often flaps, unless calls fail by chance."""
_BY_CHANCE = frozenset({
    Kind.THROTTLED, Kind.FAULTY, Kind.ANSWERS_LOST, Kind.SLOW, Kind.KILLED, Kind.TABLE_THROTTLED,
    Kind.HANGING,
})  # fmt: skip
SOON_OVER = (
    "errors", "throttles", "checker-not-running", "oldest-message", "search-logs-lost",
    "request-queue-unread", "events-unsent",
)  # fmt: skip
"""Alarms whose trouble ends with its fault; what others are about may last."""


class Rings(Check):
    """Evaluates every alarm each minute: it rings in time where it should, and nowhere else."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self.metrics, self.alarms = Metrics(), {one.name: one for one in of_template()}
        self.rung: Counter[str] = Counter()
        self._begun: defaultdict[tuple[str, str], Lately] = defaultdict(lambda: Lately(3600.0))
        self.world.enter(MINUTE_S, self._minute)

    def printed(self, line: str) -> None:
        self.metrics.put_log(line, self.now_s)

    def begun(self, function: str) -> None:
        self._put("Invocations", function, 1.0)

    def done(self, invocation: Invocation) -> None:
        for metric in ("Errors", "AsyncEventsDropped"):
            self._put(metric, invocation.function, float(bool(invocation.failed)))

    def _put(self, metric: str, function: str, value: float) -> None:
        of = _of(LAMBDA, metric, "FunctionName", FUNCTIONS[function])
        self.metrics.put(of, self.now_s, value)

    def _minute(self) -> None:
        queue = self.world.queue
        for of, name, value in (
            ("SearchLogQueue", "ApproximateAgeOfOldestMessage", queue.age_s(self.now_s)),
            ("SearchLogDeadLetters", "ApproximateNumberOfMessagesVisible", len(queue.dead_letters)),
        ):
            metric = _of(SQS, name, "QueueName", f"{of}.QueueName")
            self.metrics.put(metric, self.now_s - 1.0, value)
        minute = int(self.now_s // MINUTE_S) - 1
        for change in evaluate_all(self.alarms.values(), self.metrics, minute):
            alarm = self.alarms[change.alarm]
            # An alarm of fleets rings for each of them.
            if change.state is State.ALARM and (change.contributor or not alarm.contributors):
                self._rings(change)
        self._should_ring()
        self._should_be_back()
        self.world.enter(self.now_s + MINUTE_S, self._minute)

    def _rings(self, change: Change) -> None:
        name, fleet = change.alarm.removeprefix(f"{STACK}-"), change.contributor
        self.world.tell(f"  alarm {name} {fleet} rings")
        self.rung[name] += 1
        begun = self._begun[name, fleet]
        begun.add(self.now_s, 1)
        if not self.truth.settled:
            return
        if not self._has_cause(name):
            self.watch.broken(Promise.QUIET, f"{name} {fleet} rings, and nothing is wrong")
        if len(begun) > RINGS_AN_HOUR and not self.truth.active(_BY_CHANCE, 3600.0):
            how = f"{name} {fleet} began to ring {len(begun)} times in an hour"
            self.watch.broken(Promise.QUIET, how)

    def _should_ring(self) -> None:
        for name, (within_s, holds) in SHOULD_RING.items():
            if math.isinf(since_s := self.since(name, self.truth.settled and holds(self))):
                continue
            alarm = self.alarms[f"{STACK}-{name}"]
            # `checker-not-running` tells of no data, too.
            rings = alarm.state is State.ALARM or (
                alarm.state is State.NO_DATA and "InsufficientDataActions" in alarm.described
            )
            if rings:
                # A minute without a turn may end it.
                self._begun_s[name] = self.now_s
            elif self.now_s - since_s > within_s:
                how = f"{name} does not ring after {(self.now_s - since_s) / 60:.0f} min"
                self.watch.broken(Promise.RINGS, how, since_s)

    def _should_be_back(self) -> None:
        """What rang is over some time after its cause."""
        if self.now_s < WARM_UP_S + AFTER_S:
            return
        for of in SOON_OVER:
            alarm = self.alarms[f"{STACK}-{of}"]
            if alarm.state is State.ALARM and not self._has_cause(of):
                self.watch.broken(Promise.QUIET, f"{of} still rings, and nothing is wrong")

    def _has_cause(self, name: str) -> bool:
        """Whether an alarm may ring: without a queue, rare requests look like missing logs."""
        requests = RARE_S * self.world.load() / self.scenario.service_s
        rare = not self.scenario.queue_known and requests < RARE
        of_logs = name in ("stale-search-logs", "nobody-serves")
        # What was broken in a fault may still be in service.
        of_workers = of_logs or name in ("configuration-failure", "shortfall-unfilled")
        if of_workers and self.now_s < self.truth.idle_until_s + AFTER_S:
            return True
        if name == "shortfall-unfilled" and self._grows():
            return True
        return (rare and of_logs) or self.truth.active(CAUSES.get(name, ()), AFTER_S)

    def _grows(self) -> bool:
        """Whether the load has become larger, which has to be seen and to launch."""
        steps = pairwise(self.scenario.loads)
        return any(0 <= self.now_s - at_s < AFTER_S for (_, old), (at_s, new) in steps if new > old)

    def runs(self) -> bool:
        """Whether turns run and AWS answers them."""
        return not self.truth.active(_AWS - {Kind.QUEUE_DOWN}, 300.0)

    def short(self) -> bool:
        """Whether both groups have fewer in service than the spot group's capacity, for AWS."""
        world = self.world
        there = [v for v in self.truth.in_service() if v.healthy and not self.truth.warned(v)]
        return self.runs() and len(there) < min(self.truth.stood(), world.group(world.spot).desired)

    def hang_together(self) -> bool:
        """Whether requests wait, and instances are in service of which none works."""
        world, blind = self.world, _LOGS | _MEMORY
        none_works = self.truth.in_service() and not world.working()
        waits = (
            self.scenario.queue_known and world.force.queued and not self.scenario.onprem_workers
        )
        hang = self.active(Kind.HANG) and not self.truth.active(blind, 900.0)
        return bool(none_works and waits and hang and self.runs())

    def blind(self) -> bool:
        """Whether workers serve many requests, and none of their search logs is counted."""
        lost = self.active(Kind.LOGS_STOP) or self.active(Kind.COLLECTOR_DOWN)
        many = RARE_S * self.world.load() / self.scenario.service_s >= 3 * RARE
        sized = self.scenario.sized and many and not self.truth.active(_MEMORY, AFTER_S)
        return bool(lost and sized and self.world.working() and self.runs())

    def active(self, *kinds: Kind) -> bool:
        return set(kinds) <= self.world.active.keys()

    def cannot_launch(self) -> bool:
        """Whether both groups lack instances, and AWS has none of either kind."""
        groups = [self.world.group(name) for name in (self.world.spot, self.world.on_demand)]
        lack = all(len(one.instances) < one.desired for one in groups)
        return lack and self.runs() and self.active(Kind.SPOT_DRY, Kind.ON_DEMAND_DRY)


SHOULD_RING: Mapping[str, tuple[float, Callable[[Rings], bool]]] = {
    "checker-not-running": (420.0, lambda it: it.active(Kind.NO_TURNS)),
    "errors": (300.0, lambda it: it.active(Kind.TABLE_DOWN) and not it.active(Kind.NO_TURNS)),
    "request-queue-unread": (
        540.0,
        lambda it: it.active(Kind.QUEUE_DOWN) and it.scenario.queue_known and it.runs(),
    ),
    "oldest-message": (120.0, lambda it: it.world.queue.age_s(it.now_s) > WAITED_S),
    "search-log-dead-letters": (120.0, lambda it: bool(it.world.queue.dead_letters)),
    "shortfall-unfilled": (1380.0, Rings.short),
    "nobody-serves": (570.0, Rings.hang_together),
    "both-short": (900.0, Rings.cannot_launch),
    "stale-search-logs": (660.0, Rings.blind),
}
"""In which situation an alarm has to ring, and in how many seconds of it."""


def _of(namespace: str, name: str, dimension: str, value: str) -> Metric:
    return Metric(namespace, name, frozenset({(dimension, value)}))
