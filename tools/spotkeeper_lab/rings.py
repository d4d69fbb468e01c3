"""The alarms of template.yaml in a simulated world, over the metrics that its functions wrote."""

from collections import Counter
from collections.abc import Sequence

from spotkeeper_lab.alarms import MINUTE_S, Alarm, Change, Metric, Metrics, State, evaluate_all
from spotkeeper_lab.template import Stack
from spotkeeper_lab.world import Invocation, Observer, World

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


class Rings(Observer):
    """Evaluates every alarm each minute of a world's time; `changes` has what changed, and when."""

    def __init__(self, world: World) -> None:
        self.metrics, self.alarms = Metrics(), {one.name: one for one in of_template()}
        self.changes: list[tuple[float, Change]] = []
        self._world = world
        world.enter(MINUTE_S, self._minute)

    def printed(self, line: str) -> None:
        self.metrics.put_log(line, self._world.now_s)

    def done(self, invocation: Invocation) -> None:
        name, now_s = FUNCTIONS[invocation.function], self._world.now_s
        for metric, value in (("Invocations", 1.0), ("Errors", float(bool(invocation.failed)))):
            self.metrics.put(_of(LAMBDA, metric, "FunctionName", name), now_s, value)

    def _minute(self) -> None:
        world, queue = self._world, self._world.queue
        names = ("ApproximateAgeOfOldestMessage", queue.age_s(world.now_s)), (
            "ApproximateNumberOfMessagesVisible", float(len(queue.dead_letters)),
        )  # fmt: skip
        for of, (name, value) in zip(
            ("SearchLogQueue", "SearchLogDeadLetters"), names, strict=True
        ):
            metric = _of(SQS, name, "QueueName", f"{of}.QueueName")
            self.metrics.put(metric, world.now_s - 1.0, value)
        minute = int(world.now_s // MINUTE_S) - 1
        changed = evaluate_all(self.alarms.values(), self.metrics, minute)
        self.changes += [(world.now_s, one) for one in changed]
        world.enter(world.now_s + MINUTE_S, self._minute)

    def rung(self) -> Counter[str]:
        """Count how often each alarm began to ring, for each of its contributors."""
        return Counter(
            [
                one.alarm
                for _, one in self.changes
                if one.state is State.ALARM
                and (one.contributor or not self.alarms[one.alarm].contributors)
            ]
        )


def _of(namespace: str, name: str, dimension: str, value: str) -> Metric:
    return Metric(namespace, name, frozenset({(dimension, value)}))


def story(changes: Sequence[tuple[float, Change]]) -> list[str]:
    """Tell the changes line by line."""
    return [f"{at_s / 60:6.0f}  {c.alarm} {c.contributor} {c.state}" for at_s, c in changes]
