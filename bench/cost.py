"""What the control plane costs a month: measured calls, durations and sizes at public prices.

Of us-east-1 in November 2025, without the free tiers but Scheduler's. A duration is the processor
time on moto at the share of a core that 512 MB brings, and so long for each call of AWS as
CALL_S says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from rich.console import Console
from rich.table import Table

from bench._stack import MESSAGES_A_CALL, REQUESTS_PER_S, SHIPPED_EVERY_S, WORKERS, Turn
from bench.collect import (
    CALL_S,
    LAMBDA_CALL_USD,
    LAMBDA_GB_S_USD,
    MEMORY_GB,
    READ_USD,
    SQS_USD,
    VCPU_GB,
    WRITE_USD,
)
from bench.turns import Work, measure
from spotkeeper_lab.checkout import read_template

METRIC_USD = 0.30  # a metric and month
LOG_GB_USD = 0.50  # taken in
STORED_GB_USD = 0.25  # in the table, a month
ALARM_USD = 0.10  # a metric that an alarm looks at
DASHBOARD_USD = 3.00

MINUTES = 365 / 12 * 24 * 60
# Launches, ends and warnings of a fleet of 50 that loses each instance every other day, and as
# many again that concern others.
EVENTS = 50 * 365 / 12 / 2 * 4 * 2
POLL = 10
# Lambda asks an empty queue with up to five connections, each for 20 s.
EMPTY_RECEIVES = 5 * 3
LEDGERS = MINUTES / 5
DAYS = 365 / 12
DOCTOR_TIMEOUT_S = 120
RECORD_DAYS = 30
WINDOW_S = 300
SPOT_USD_PER_HOUR = 0.30 * 1.006  # g5.xlarge at 30 % of on demand


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the bill, in USD a month."""

    what: str
    how: str
    usd: float


def bill(work: Work) -> list[Item]:
    """Price a month of one fleet."""
    return [
        *_functions(work),
        *_search_logs(work),
        *_table(work),
        Item("Scheduler", "two schedules a minute, one in five, 14 million free", 0.0),
        _metrics(work),
        _logs(work),
    ]


def _functions(work: Work) -> list[Item]:
    times = {
        "check_availability": MINUTES, "check_health": MINUTES, "handle_interruption": EVENTS,
        "keep_ledger": LEDGERS,
    }  # fmt: skip
    return [_function(name, work.turns[name], times[name]) for name in times]


def _function(name: str, turn: Turn, times: float) -> Item:
    seconds = turn.cpu_s * VCPU_GB / MEMORY_GB + turn.calls.total() * CALL_S
    usd = times * (seconds * MEMORY_GB * LAMBDA_GB_S_USD + LAMBDA_CALL_USD)
    return Item(name, f"{times:,.0f} times {1000 * seconds:.0f} ms", usd)


def _search_logs(work: Work) -> list[Item]:
    messages = MINUTES * 60 / SHIPPED_EVERY_S * WORKERS
    calls = messages / MESSAGES_A_CALL
    items = calls * work.items
    requests = messages * (1 + 2 / POLL)
    logs = MINUTES * 60 * REQUESTS_PER_S
    return [
        Item(
            "queue", f"{messages:,.0f} messages of {logs / messages:.0f} logs", requests * SQS_USD
        ),
        _function("collect_search_logs", work.turns["collect_search_logs"], calls),
        Item(
            "table: digests",
            f"{items:,.0f} writes of {work.item_kib:.2f} KiB",
            items * ceil(work.item_kib) * WRITE_USD,
        ),
    ]


def _table(work: Work) -> list[Item]:
    turns = 2 * MINUTES + EVENTS / 2
    units = turns * (2 + ceil(work.memory_kib) + ceil(work.record_kib))
    batches = WINDOW_S / SHIPPED_EVERY_S * WORKERS / MESSAGES_A_CALL
    window_kib = batches * work.items * work.item_kib
    read_usd = MINUTES * window_kib / 8 * READ_USD
    # Each look reads what is open; an instance is written when it is opened, closed and let go.
    looks_usd = LEDGERS * WORKERS * work.ledger_kib / 8 * READ_USD + 3 * EVENTS / 8 * WRITE_USD
    kept_gb = turns * work.record_kib * RECORD_DAYS / (365 / 12) / 1024**2
    return [
        Item("table: turns", f"{units:,.0f} write units", units * WRITE_USD),
        Item("table: load read", f"{window_kib:.0f} KiB a minute", read_usd),
        Item("table: ledger", f"{WORKERS} items of {work.ledger_kib:.2f} KiB a look", looks_usd),
        Item("table: stored", f"{1024 * kept_gb:.0f} MiB of records", kept_gb * STORED_GB_USD),
    ]


def _metrics(work: Work) -> Item:
    names = set[str]().union(*(turn.metrics for turn in work.turns.values()))
    how = f"{len(names)} names; as many hours of others as something happens in"
    return Item("metrics", how, len(names) * METRIC_USD)


def _logs(work: Work) -> Item:
    times = {
        "check_availability": MINUTES,
        "check_health": MINUTES,
        "handle_interruption": EVENTS,
        "keep_ledger": LEDGERS,
        "collect_search_logs": MINUTES * 60 / SHIPPED_EVERY_S * WORKERS / MESSAGES_A_CALL,
    }
    # Lambda adds its own START, END and REPORT lines.
    size = sum(times[name] * (turn.log_bytes + 350) for name, turn in work.turns.items())
    return Item("logs", f"{size / 1e6:,.0f} MB", size / 1e9 * LOG_GB_USD)


def _doctor() -> float:
    """Price its looks at the whole of its time-out, and the hour of its metric."""
    look_usd = DOCTOR_TIMEOUT_S * MEMORY_GB * LAMBDA_GB_S_USD + LAMBDA_CALL_USD
    return DAYS * (look_usd + METRIC_USD / (DAYS * 24))


def alarms_and_metrics() -> tuple[int, int]:
    """Count the template's alarms, and the metrics that they look at: those are what is paid."""
    resources = read_template()["Resources"].values()
    alarms = [one["Properties"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
    parts = [part for alarm in alarms for part in alarm.get("Metrics", [alarm])]
    return len(alarms), sum(map(_is_metric, parts))


def _is_metric(part: Mapping[str, Any]) -> bool:
    """Tell a metric, or a query that finds one a fleet, from arithmetic over other parts."""
    query = "SELECT" in str(part.get("Expression", ""))  # as it is, or below Fn::Sub
    return query or "MetricStat" in part or "MetricName" in part


def main() -> None:
    """Print the bill beside what the workers cost."""
    items = bill(measure())
    total = sum(item.usd for item in items)
    title = f"A fleet and month: {WORKERS} workers, {REQUESTS_PER_S} requests/s"
    table = Table("part", "how much", "USD", title=title)
    for item in items:
        table.add_row(item.what, item.how, f"{item.usd:.2f}")
    table.add_section()
    fleet = WORKERS * MINUTES / 60 * SPOT_USD_PER_HOUR
    table.add_row(
        "in all", f"{total / fleet:.2%} of {fleet:,.0f} USD for 50 spot g5.xlarge", f"{total:.2f}"
    )
    alarms, looks = alarms_and_metrics()
    polls_usd = 2 * MINUTES * EMPTY_RECEIVES * SQS_USD
    doctor = _doctor()
    once = looks * ALARM_USD + DASHBOARD_USD + polls_usd + doctor
    asking = f"asking the queues of further turns ({polls_usd:.2f})"
    daily = f"the daily doctor (at most {doctor:.2f})"
    what = f"{alarms} alarms on {looks} metrics, a dashboard, {asking}, {daily}"
    table.add_row("once a stack", what, f"{once:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
