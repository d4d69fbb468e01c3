"""Large accounts: 100 fleets of 10 instances, and one fleet of 1,000 that loses a zone of 400.

The real handlers run on the local AWS. Every call takes 50 ms of virtual time; the functions' own
work takes none. Exits with 1 when a goal is missed.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from heapq import heapify, heapreplace
from math import ceil
from typing import Any
from unittest.mock import patch

from moto.sqs.models import sqs_backends

from bench._figures import Figure, show
from bench._stack import deployed, invoke, on_each_call, output, warning
from bench.cost import (
    LAMBDA_CALL_USD,
    LAMBDA_GB_S_USD,
    MEMORY_GB,
    METRIC_USD,
    MINUTES,
    SQS_USD,
    WRITE_USD,
    item_bytes,
)
from spotkeeper import wiring
from spotkeeper.domain.availability import decide
from spotkeeper.turns import check_availability
from spotkeeper_lab.aws.wire import ACCOUNT, REGION
from spotkeeper_lab.cloud.api import Cloud
from tests.builders import NOON, at

CALL_S = 0.05
WARM_S = 600
RUNS, LOOP = 10, 8_800
# Goals: an invocation; the whole of a storm; deciding, in times of a loop that takes 1 ms alone.
INVOCATION_S, STORM_S, DECIDING = 20.0, 60.0, 2.0
# How many invocations of a queue run at once, in a new account and with ReserveConcurrency.
AT_ONCE = (2, 5)
# Invocations of handle_interruption beside the first one, in a new account.
EVENTS_AT_ONCE = 9
# Calls of an API of EC2 a minute, as AWS documents (docs/truth.md).
DESCRIBES = 1_200
METRICS_A_FLEET = 8


@dataclass(slots=True)
class Account:
    """The stack under test: what it has called, and how long the running function has run."""

    cloud: Cloud
    minute: datetime = NOON
    spent_s: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    write_units: int = 0
    deciding: list[float] = field(default_factory=list)
    during: Callable[[], None] | None = None

    def note(self, params: Mapping[str, Any], model: Any, **_: object) -> None:
        """Count a call and its write units, and let its time pass."""
        self.calls[f"{model.service_model.service_name}.{model.name}"] += 1
        self.spent_s += CALL_S
        items: list[Mapping[str, Any]] = []
        if model.name == "UpdateItem":
            # An update is of the small item of leases.
            items = [{}]
        elif model.name == "PutItem":
            items = [params["Item"]]
        elif model.name == "BatchWriteItem":
            (requests,) = params["RequestItems"].values()
            items = [next(iter(request.values())).get("Item", {}) for request in requests]
        self.write_units += sum(max(1, ceil(item_bytes(item) / 1024)) for item in items)
        if model.name == "DescribeSpotInstanceRequests" and self.during:
            during, self.during = self.during, None
            during()

    def invoke(self, name: str, event: object) -> tuple[float, dict[str, str]]:
        """Call a function as Lambda does; how long it ran, and what it answered."""
        before, self.spent_s = self.spent_s, 0.0
        answer = invoke(name, event)
        took, self.spent_s = self.spent_s, before
        return took, answer

    def timed[**P, T](self, step: Callable[P, T]) -> Callable[P, T]:
        """Note how long a step of deciding takes: it is pure, and all but the fastest is noise.

        Beside other work everything takes longer, so it is compared with a loop of the same moment.
        """

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            decided, took, loops = list[T](), list[float](), list[float]()
            for _ in range(RUNS):
                began = time.process_time()
                decided.append(step(*args, **kwargs))
                ended = time.process_time()
                _ = {number: str(number) for number in range(LOOP)}
                took.append(ended - began)
                loops.append(time.process_time() - ended)
            self.deciding.append(min(took) / min(loops))
            return decided[-1]

        return run

    def at(self, seconds: float) -> None:
        """Let time pass up to a second, and count from there."""
        self.cloud.advance(seconds)
        self.minute = at(seconds)
        self.calls, self.write_units, self.deciding = Counter(), 0, []


@contextmanager
def account(fleets: Sequence[str], desired: int) -> Iterator[Account]:
    """Deploy fleets that are whole, with half of each in either zone."""
    with deployed(fleets, desired, 2 * desired) as cloud:
        made = Account(cloud)
        on_each_call(made.note)
        with (
            patch.object(wiring, "now", lambda: made.minute + timedelta(seconds=made.spent_s)),
            patch.object(check_availability, "assess", made.timed(decide.assess)),
            patch.object(check_availability, "plan", made.timed(decide.plan)),
            patch.object(check_availability, "apply", made.timed(decide.apply)),
            output(),
        ):
            yield made


def last_end_s(own_s: float, others_s: Sequence[float], at_once: int) -> float:
    """Return when the last of a minute's invocations ends."""
    ends = [0.0] * at_once
    heapify(ends)
    for took in others_s:
        heapreplace(ends, ends[0] + took)
    return max(own_s, *ends)


def hundred_fleets() -> bool:
    """Turn 100 fleets of 10 for three minutes; print the last one. Returns whether goals hold."""
    names = [f"fleet-{n:03}" for n in range(100)]
    figures: list[Figure] = []
    seconds, invocations = 0.0, 0
    with account(names, 10) as stack:
        for minute in range(3):
            stack.at(WARM_S + 60 * minute)
            figures, seconds, invocations = [], 0.0, 0
            for function, queue in (("check_availability", "wake-ups"), ("check_health", "health")):
                own_s, turned = stack.invoke(function, {})
                sent = sqs_backends[ACCOUNT][REGION].queues[queue]
                messages, sent._messages = sent._messages, []
                times: list[float] = []
                for message in messages:
                    record = {"messageId": message.id, "body": message.body}
                    took, answer = stack.invoke(function, {"Records": [record]})
                    times.append(took)
                    if not answer["batchItemFailures"]:
                        turned |= dict.fromkeys(json.loads(message.body)["fleets"], "")
                longest_s, count = max(own_s, *times), 1 + len(times)
                not_turned = len(set(names) - turned.keys())
                figures += [
                    Figure(f"{function}: fleets without a turn", not_turned, "", 0),
                    Figure(f"{function}: the longest of {count}", longest_s, "s", INVOCATION_S),
                    *(
                        Figure(
                            f"{function}: {at_once} at once end within",
                            last_end_s(own_s, times, at_once),
                            "s",
                            STORM_S,
                        )
                        for at_once in AT_ONCE
                    ),
                ]
                invocations += count
                seconds += own_s + sum(times)
        bill = _bill(
            metrics=METRICS_A_FLEET * len(names) * METRIC_USD,
            functions=_functions_usd(seconds, invocations),
            table=MINUTES * stack.write_units * WRITE_USD,
            queues=MINUTES * 3 * invocations * SQS_USD,
        )
        figures += [*_calls(stack), *bill]
    return show("A minute of 100 fleets of 10, without their search logs", figures)


def one_of_a_thousand() -> bool:
    """Lose a zone of 400 of a fleet of 1,000; returns whether the goals hold."""
    with account(["big"], 1_000) as stack:
        seconds, quiet_units = 0.0, 0
        # The last minute is the quiet one.
        for at_s in (*range(WARM_S, WARM_S + 300, 60), WARM_S + 240):
            stack.at(at_s)
            seconds = sum(stack.invoke(f, {})[0] for f in ("check_availability", "check_health"))
            quiet_units = stack.write_units
        stack.at(stack.cloud.now_s + 30)
        lost = [i.instance_id for i in stack.cloud.group("big-spot").instances][:400]
        stack.cloud.reclaim(lost, stack.cloud.now_s + 120)
        others: list[float] = []

        def warned_s(instance_id: str) -> float:
            return stack.invoke("handle_interruption", warning(instance_id, stack.cloud.now_s))[0]

        stack.during = lambda: others.extend(map(warned_s, lost[1:]))
        first_s = warned_s(lost[0])
        on_demand = stack.cloud.group("big-on-demand").desired
        kept = {i.instance_id for i in stack.cloud.group("big-spot").instances} & set(lost)
        asked_s = last_end_s(0.0, others, EVENTS_AT_ONCE) + first_s
        figures = [
            Figure("lost and not requested on demand", len(lost) - on_demand, "", 0),
            Figure("lost and not replaced in the spot group", len(kept), "", 0),
            Figure("until the turn asks", asked_s, "s", STORM_S),
            Figure("slowest step of deciding", max(stack.deciding), "loops of 1 ms", DECIDING),
            Figure("write units", stack.write_units),
            *_calls(stack),
            *_bill(
                metrics=METRICS_A_FLEET * METRIC_USD,
                functions=_functions_usd(seconds, 2),
                table=MINUTES * quiet_units * WRITE_USD,
            ),
        ]
    return show("A fleet of 1,000 loses a zone of 400, a warning each; without logs", figures)


def _calls(stack: Account) -> Iterator[Figure]:
    for name, count in sorted(stack.calls.items()):
        yield Figure(name, count, "", DESCRIBES if name.startswith("ec2.Describe") else None)


def _functions_usd(seconds: float, invocations: int) -> float:
    """What a month of such minutes costs."""
    return MINUTES * (seconds * MEMORY_GB * LAMBDA_GB_S_USD + invocations * LAMBDA_CALL_USD)


def _bill(**parts: float) -> Iterator[Figure]:
    for part, usd in {**parts, "in all": sum(parts.values())}.items():
        yield Figure(f"{part}, a month", usd, "USD")


def main() -> None:
    """Run both and print them; exits with 1 when a goal is missed."""
    if not all([hundred_fleets(), one_of_a_thousand()]):
        sys.exit("a goal was missed")
