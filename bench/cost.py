"""What the control plane costs a month: measured calls, durations and sizes at public prices.

The functions run on the local AWS, for a fleet of 50 workers under 100 requests/s. Prices are those
of us-east-1 in November 2025, without the free tiers but Scheduler's. A duration is the processor
time here, the local AWS's own included, at the share of a core that 512 MB brings, and CALL_S for
each call of AWS. Search logs are sent as the agent sends them while the load is steady, and are
received as in a simulation of Lambda's polling; a second table prices the agent's pace on a
generated day.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import batched
from math import ceil
from random import Random
from statistics import fmean
from typing import Any, NamedTuple
from unittest.mock import patch

import boto3
import numpy as np
from rich.console import Console
from rich.table import Table

from bench._figures import table
from bench._stack import deployed, invoke, of_cloud, on_each_call, output
from spotkeeper.adapters.ec2 import prices
from spotkeeper_lab.checkout import read_template
from spotkeeper_lab.cloud.values import EventKind
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests
from spotkeeper_lab.workers import Served, Workforce, sqs_record
from spotkeeper_worker.logs.pace import Pace, PaceSettings
from tests.builders import TABLE, at

SQS_USD = 0.40e-6  # a request, and each 64 KiB of one
LAMBDA_GB_S_USD = 0.0000133334  # arm64
LAMBDA_CALL_USD = 0.20e-6
WRITE_USD = 0.625e-6  # a write unit: an item of up to 1 KB
READ_USD = 0.125e-6  # a read unit: 8 KB, eventually consistent
METRIC_USD = 0.30  # a metric and month
LOG_GB_USD = 0.50  # taken in
STORED_GB_USD = 0.25  # in the table, a month
ALARM_USD = 0.10  # a metric that an alarm looks at
DASHBOARD_USD = 3.00
EVENT_USD = 1 / 1e6  # put on a bus
LIST_PRICES = {"g5.xlarge": 1.006}
SPOT_USD_PER_HOUR = 0.30 * LIST_PRICES["g5.xlarge"]

MEMORY_GB = 0.5
VCPU_GB = 1769 / 1024  # memory that comes with one core
CALL_S = 0.015

WORKERS = 50
REQUESTS_PER_S = 100
SERVICE_S = 0.33
# No request waits (`spotkeeper_worker.logs.pace`).
SHIPPED_EVERY_S = 30
# The function takes what arrives within its window, at most 100 messages.
WINDOW_OF_BATCH_S = 10
MESSAGES_A_CALL = min(100, WORKERS * WINDOW_OF_BATCH_S // SHIPPED_EVERY_S)
QUIET_TURNS = 10

MINUTES = 365 / 12 * 24 * 60
# Launches, ends and warnings of a fleet of 50 that loses each instance every other day, and as
# many again that concern others.
EVENTS = 50 * 365 / 12 / 2 * 4 * 2
POLL = 10
# Lambda polls with five connections at least. A long poll ends with the first message.
POLLERS, ROUND_TRIP_S, SIMULATED = 5, 0.02, 10_000
# An empty queue is polled with up to five connections, each for 20 s.
EMPTY_RECEIVES = 5 * 3
LEDGERS = MINUTES / 5
DAYS = 365 / 12
DOCTOR_TIMEOUT_S = 120
RECORD_DAYS = 30
WINDOW_S = 300
TIMES = {
    "check_availability": MINUTES,
    "check_health": MINUTES,
    "handle_interruption": EVENTS,
    "keep_ledger": LEDGERS,
    "collect_search_logs": MINUTES * 60 / SHIPPED_EVERY_S * WORKERS / MESSAGES_A_CALL,
}
"""Invocations a month."""
MOST_CALLS = {"autoscaling and ec2": 5, "dynamodb": 6}
"""Of a quiet turn of check_availability. Of the table it reads the control and both memories,
takes and releases the lease, and writes a memory and the record."""
GOAL_USD = 7.0
"""For the search logs of 50 workers at the agent's pace."""
REGION_GOAL_USD, REGION_BATCH = 0.70, 20 / WINDOW_OF_BATCH_S
"""Of a further region; and the messages that one call of its home's collector counts: those of its
own window."""


@dataclass(slots=True)
class Turn:
    """What a turn of a function calls, takes and writes."""

    calls: Counter[str]
    cpu_s: float
    log_bytes: int = 0
    metrics: set[str] = field(default_factory=set)


class Work(NamedTuple):
    """A quiet turn of each function, and what it leaves in the table.

    `sizes` are the mean KiB of an item by kind; `items` is how many a batch of messages leaves.
    """

    turns: Mapping[str, Turn]
    items: float
    sizes: Mapping[str, float]


class Item(NamedTuple):
    """A line of the bill, in USD a month."""

    what: str
    how: str
    usd: float


def measure() -> Work:
    """Run ten quiet minutes; keep the last turn of each function, at its least processor time."""
    runs: dict[str, list[Turn]] = {}
    calls: Counter[str] = Counter()

    def note(model: Any, **_: object) -> None:
        calls[model.service_model.service_name] += 1

    def turn(name: str, event: object) -> None:
        calls.clear()
        with output() as written:
            began = time.process_time()
            invoke(name, event)
            done = Turn(Counter(calls), time.process_time() - began)
        for line in written.getvalue().splitlines():
            done.log_bytes += len(line.encode()) + 1
            directives = json.loads(line).get("_aws", {}).get("CloudWatchMetrics", [])
            done.metrics |= {m["Name"] for each in directives for m in each["Metrics"]}
        runs.setdefault(name, []).append(done)

    # moto has no price list; a warm function asks for it once.
    fixed = patch.object(prices, "on_demand_prices", lambda *_: LIST_PRICES)
    with deployed(["ocr"], WORKERS, 100) as cloud, fixed:
        on_each_call(note)
        for minute in range(QUIET_TURNS, 2 * QUIET_TURNS):
            for second in range(0, 60, SHIPPED_EVERY_S):
                begin_s = 60 * minute + second
                cloud.advance(begin_s + SHIPPED_EVERY_S)
                for batch in batched(_messages(begin_s), MESSAGES_A_CALL, strict=False):
                    turn("collect_search_logs", {"Records": list(batch)})
            for name in ("check_availability", "check_health", "keep_ledger"):
                turn(name, {})
            first = cloud.group("ocr-spot").instances[0].instance_id
            launched = of_cloud(EventKind.LAUNCH_SUCCESSFUL, first, cloud.now_s, "ocr-spot")
            turn("handle_interruption", launched)
        load = _sizes("load#ocr", "2")
        return Work(
            turns={
                name: replace(turns[-1], cpu_s=min(turn.cpu_s for turn in turns))
                for name, turns in runs.items()
            },
            items=len(load) / len(runs["collect_search_logs"]),
            sizes={
                "load": fmean(load),
                "memory": fmean(_sizes("fleet#ocr", "memory#")),
                "record": fmean(_sizes("fleet#ocr", "decision#")),
                "ledger": fmean(_sizes("ledger#ocr", "open#")),
            },
        )


def _sizes(pk: str, beginning: str) -> list[float]:
    """The KiB of the table's items of a kind, as DynamoDB counts them, near enough."""
    answer = boto3.client("dynamodb").query(
        TableName=TABLE,
        KeyConditionExpression="pk = :pk AND begins_with(sk, :sk)",
        ExpressionAttributeValues={":pk": {"S": pk}, ":sk": {"S": beginning}},
    )
    return [item_bytes(item) / 1024 for item in answer["Items"]]


def item_bytes(item: Mapping[str, Any]) -> int:
    """Count an item's bytes: its names and its values."""
    values = [next(iter(value.values())) for value in item.values()]
    sizes = [len(v) if isinstance(v, str | bytes) else len(str(v)) for v in values]
    return sum(map(len, item)) + sum(sizes)


def _messages(begin_s: float) -> Iterator[dict[str, object]]:
    """The search logs of ten seconds, a message of each worker, in the order of their sending."""
    for shift_s, worker in sorted((n % SHIPPED_EVERY_S + 2.5, n) for n in range(WORKERS)):
        sent_ms = int(1000 * at(begin_s + shift_s + SHIPPED_EVERY_S).timestamp())
        body = "\n".join(_logs(worker, begin_s + shift_s))
        yield sqs_record("search-logs", f"w{worker}", body, sent_ms)


def _logs(worker: int, begin_s: float) -> Iterator[str]:
    count = REQUESTS_PER_S * SHIPPED_EVERY_S // WORKERS
    random = Random(f"{worker} {begin_s}")
    for number in range(count):
        at_s = begin_s + number * SHIPPED_EVERY_S / count
        began = at(at_s)
        served_s = min(SERVICE_S * random.lognormvariate(-0.1, 0.4), 0.5)
        times = {
            "enqueued_at": began - timedelta(seconds=random.expovariate(5)),
            "started_at": began,
            "finished_at": began + timedelta(seconds=served_s),
        }
        yield json.dumps(
            {
                "version": 1,
                "request_id": f"{worker:08x}-{at_s:020.3f}",
                "worker_id": f"gpu-{worker}",
                "cluster": "aws",
                "instance_id": f"i-{worker + 1:017x}",
                **{name: at.isoformat(timespec="milliseconds") for name, at in times.items()},
                "status": "ok",
            }
        )


def bill(work: Work) -> Iterator[Item]:
    """Price a month of one fleet."""
    sizes, batches = work.sizes, TIMES["collect_search_logs"]
    messages = batches * MESSAGES_A_CALL
    logs = MINUTES * 60 * REQUESTS_PER_S / messages
    a_s = WORKERS / SHIPPED_EVERY_S
    how = f"{messages:,.0f} messages of {logs:.0f} logs, {received_at_once(a_s):.2f} a receive"
    yield Item("queue", how, queue_usd(messages, a_s))
    for name, times in TIMES.items():
        turn = work.turns[name]
        seconds = turn.cpu_s * VCPU_GB / MEMORY_GB + turn.calls.total() * CALL_S
        usd = times * (seconds * MEMORY_GB * LAMBDA_GB_S_USD + LAMBDA_CALL_USD)
        yield Item(name, f"{times:,.0f} times {1000 * seconds:.0f} ms", usd)
    items = batches * work.items
    how = f"{items:,.0f} writes of {sizes['load']:.2f} KiB"
    yield Item("table: digests", how, items * ceil(sizes["load"]) * WRITE_USD)
    turns = 2 * MINUTES + EVENTS / 2
    units = turns * (2 + ceil(sizes["memory"]) + ceil(sizes["record"]))
    yield Item("table: turns", f"{units:,.0f} write units", units * WRITE_USD)
    in_window = WINDOW_S / SHIPPED_EVERY_S * WORKERS / MESSAGES_A_CALL
    window_kib = in_window * work.items * sizes["load"]
    usd = MINUTES * window_kib / 8 * READ_USD
    yield Item("table: load read", f"{window_kib:.0f} KiB a minute", usd)
    # Each look reads what is open; an instance is written when it is opened, closed and dropped.
    usd = LEDGERS * WORKERS * sizes["ledger"] / 8 * READ_USD + 3 * EVENTS / 8 * WRITE_USD
    yield Item("table: ledger", f"{WORKERS} items of {sizes['ledger']:.2f} KiB a look", usd)
    kept_gb = turns * sizes["record"] * RECORD_DAYS / DAYS / 1024**2
    yield Item("table: stored", f"{1024 * kept_gb:.0f} MiB of records", kept_gb * STORED_GB_USD)
    # A change of state costs its event, one more write of the memory, and the call.
    changes = 3 * EVENTS / 8
    usd = EVENT_USD + ceil(sizes["memory"]) * WRITE_USD + 2 * CALL_S * MEMORY_GB * LAMBDA_GB_S_USD
    most = EVENT_USD * MINUTES
    how = f"{changes:,.0f} changes of state; the events of one in each minute: {most:.3f}"
    yield Item("events out", how, changes * usd)
    names = set[str]().union(*(turn.metrics for turn in work.turns.values()))
    how = f"{len(names)} names; others in the hours in which something happens"
    yield Item("metrics", how, len(names) * METRIC_USD)
    size = sum(TIMES[name] * turn.log_bytes for name, turn in work.turns.items())
    yield Item("logs", f"{size / 1e6:,.0f} MB", size / 1e9 * LOG_GB_USD)


def _a_region(work: Work) -> Item:
    """Price what a further region adds to its stack, with a third of the fleet.

    Its collector's digests: a message of each slot, counted once more at home. A report each
    minute, and a share every four at least; the region reads its share, and the home both.
    """
    turn, messages = work.turns["collect_search_logs"], MINUTES * 60 / WINDOW_OF_BATCH_S
    # A message is sent and received; what one call counts is deleted at once.
    queue = messages * work.items * (2 + 1 / REGION_BATCH) * SQS_USD
    seconds = turn.cpu_s * VCPU_GB / MEMORY_GB + turn.calls.total() * CALL_S
    call = seconds * MEMORY_GB * LAMBDA_GB_S_USD + LAMBDA_CALL_USD
    writes = work.items * ceil(work.sizes["load"] / 3)
    counted = messages * (call / REGION_BATCH + writes * WRITE_USD)
    # A strongly consistent read of up to 4 KB is a unit; the home's turn waits for it.
    waits = MINUTES * 2 * CALL_S * MEMORY_GB * LAMBDA_GB_S_USD
    table = MINUTES * (1.25 * WRITE_USD + 2 * READ_USD) + waits
    how = f"forwarding {queue:.2f}, counting {counted:.2f}, share and report {table:.2f}"
    return Item("a further region", f"{how}; goal {REGION_GOAL_USD:.2f}", queue + counted + table)


def received_at_once(messages_a_s: float) -> float:
    """Simulate Lambda's long polls; return the messages of one receive."""
    random = Random(1)
    back_s = [0.0] * POLLERS
    receives = messages = waiting = 0
    now_s = 0.0
    while messages < SIMULATED:
        now_s += random.expovariate(messages_a_s)
        messages, waiting = messages + 1, waiting + 1
        first = min(range(POLLERS), key=back_s.__getitem__)
        if back_s[first] <= now_s or waiting == POLL:
            receives, waiting = receives + 1, 0
            back_s[first] = max(now_s, back_s[first]) + ROUND_TRIP_S
    return messages / receives


def queue_usd(messages: float, messages_a_s: float) -> float:
    """Price messages: each is sent; they are received by polls, and deleted with their batch."""
    deletes = 1 / min(POLL, MESSAGES_A_CALL)
    return messages * (1 + 1 / received_at_once(messages_a_s) + deletes) * SQS_USD


def alarms_and_metrics() -> tuple[int, int]:
    """Count the alarms of a stack without jobs, and the metrics that are paid for them."""
    every = read_template()["Resources"].values()
    resources = [one for one in every if one.get("Condition") != "HasJobs"]
    alarms = [one["Properties"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
    parts = [part for alarm in alarms for part in alarm.get("Metrics", [alarm])]
    # A metric, or a query that finds one a fleet; the rest is arithmetic over other parts.
    metrics = [
        part
        for part in parts
        if "MetricStat" in part
        or "MetricName" in part
        or "SELECT" in str(part.get("Expression", ""))  # as it is, or below Fn::Sub
    ]
    return len(alarms), len(metrics)


def _once_a_stack() -> Item:
    alarms, looks = alarms_and_metrics()
    polls_usd = 2 * MINUTES * EMPTY_RECEIVES * SQS_USD
    # Its looks at the whole of its time-out, and the hour of its metric.
    look_usd = DOCTOR_TIMEOUT_S * MEMORY_GB * LAMBDA_GB_S_USD + LAMBDA_CALL_USD
    doctor = DAYS * (look_usd + METRIC_USD / (DAYS * 24))
    how = (
        f"{alarms} alarms on {looks} metrics, a dashboard, asking the queues of further turns "
        f"({polls_usd:.2f}), the daily doctor (at most {doctor:.2f})"
    )
    return Item("once a stack", how, looks * ALARM_USD + DASHBOARD_USD + polls_usd + doctor)


class Sent(NamedTuple):
    """Count a day's search-log messages, and a log's age when it is sent."""

    messages_an_hour: float
    mean_age_s: float
    p95_age_s: float

    def usd(self, counted_usd: float = 1.25) -> float:
        """USD a month of 50 workers: each message is sent, received, deleted, and counted."""
        messages = self.messages_an_hour * WORKERS * MINUTES / 60
        return queue_usd(messages, self.messages_an_hour * WORKERS / 3600) + counted_usd


def sent(trace: RequestTrace, settings: PaceSettings, busy_share: float = 0.6) -> Sent:
    """Count the messages of as many workers as are busy for `busy_share` of their time."""
    workers = max(1, round(trace.offered_load / busy_share))
    paces = {f"onprem-{number}": Pace(settings, 0.0) for number in range(workers)}
    waiting: dict[str, list[float]] = {name: [] for name in paces}
    ages: list[float] = []
    messages = 0

    def look(name: str, at_s: float) -> None:
        nonlocal messages
        if paces[name].due(at_s):
            paces[name].sent(at_s)
            messages += 1
            ages.extend(at_s - each for each in waiting[name])
            waiting[name].clear()

    def served(one: Served) -> None:
        paces[one.worker_id].add(300, one.started_s - one.enqueued_s, one.finished_s)
        waiting[one.worker_id].append(one.finished_s)
        look(one.worker_id, one.finished_s)

    requests = zip(trace.arrival_s.tolist(), trace.service_s.tolist(), strict=True)
    force = Workforce(requests, served, onprem_workers=workers)
    seconds = int(trace.end_s)
    for now_s in range(1, seconds + 1):
        force.advance(float(now_s))
        for name in paces:
            look(name, float(now_s))
    hours = seconds / 3600
    return Sent(messages / workers / hours, float(np.mean(ages)), float(np.quantile(ages, 0.95)))


def main() -> None:
    """Print the calls, the bill beside what the workers cost, and search logs by their pace."""
    work, console = measure(), Console()
    limits = ", ".join(f"{most} {service}" for service, most in MOST_CALLS.items())
    caption = f"limits of check_availability: {limits}"
    heads = ("a quiet turn of", *MOST_CALLS, "parameters", "ms of a core")
    shown = Table(*heads, title="Calls", caption=caption)
    for name, turn in work.turns.items():
        counts = (turn.calls["autoscaling"] + turn.calls["ec2"], turn.calls["dynamodb"])
        over = [count > most for count, most in zip(counts, MOST_CALLS.values(), strict=True)]
        style = "red" if name == "check_availability" and any(over) else None
        cells = [f"{count}" for count in (*counts, turn.calls["ssm"])]
        shown.add_row(name, *cells, f"{1000 * turn.cpu_s:.0f}", style=style)
    console.print(shown)

    items = list(bill(work))
    fleet = WORKERS * MINUTES / 60 * SPOT_USD_PER_HOUR
    total = sum(item.usd for item in items)
    share = f"{total / fleet:.2%} of {fleet:,.0f} USD for {WORKERS} spot g5.xlarge"
    title = f"A fleet and month: {WORKERS} workers, {REQUESTS_PER_S} requests/s"
    lines = [(what, how, f"{usd:.2f}") for what, how, usd in items]
    shown = table(("part", "how much", "USD"), lines, title=title)
    shown.add_section()
    for what, how, usd in (Item("in all", share, total), _once_a_stack(), _a_region(work)):
        shown.add_row(what, how, f"{usd:.2f}")
    console.print(shown)

    # They follow the calls of the function, not the messages.
    counted = sum(i.usd for i in items if i.what in ("collect_search_logs", "table: digests"))
    day, rows = generate_requests(0, mean_load=10.0), []
    for name, settings in (
        ("the agent", PaceSettings()),
        ("SEND_AT_MOST_S=30", PaceSettings(5, 30)),
    ):
        volumes = sent(day, settings)
        age = f"{volumes.mean_age_s:.1f}, {volumes.p95_age_s:.1f}"
        rows.append((name, f"{volumes.messages_an_hour:.0f}", age, f"{volumes.usd(counted):.2f}"))
    heads = ("sent", "an hour, each", "age of a log: mean, p95 s", "USD a month")
    title = f"Search-log messages of {WORKERS} workers"
    caption = f"goal: below {GOAL_USD:g} USD"
    console.print(table(heads, rows, title=title, caption=caption))
