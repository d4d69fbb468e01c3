"""Collecting search logs: speed beside a plain JSON parse of the same bytes, and what it costs.

`python -m bench.collect`. Processor time of one core, the best of several rounds.
"""

import base64
import gzip
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from rich.console import Console
from rich.table import Table

from spotkeeper.adapters.dynamodb.load_items import pack, unpack
from spotkeeper.border.queue_messages import Message
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.ports import LoadTable
from spotkeeper.turns.collect_search_logs import collect

SENT = datetime(2026, 11, 20, 12, tzinfo=UTC)
FLEET = "ocr"
LOGS = 20_000
ROUNDS = 5
GOAL_LOGS_PER_S = 100_000
GOAL_USD_PER_MILLION = 0.01

# Public prices, us-east-1, November 2025, without the free tiers.
SQS_USD = 0.40e-6  # a request, and each 64 KiB of one
LAMBDA_GB_S_USD = 0.0000133334  # arm64
LAMBDA_CALL_USD = 0.20e-6
WRITE_USD = 0.625e-6  # a write unit: an item of up to 1 KB
READ_USD = 0.125e-6  # a read unit: 8 KB, eventually consistent
MEMORY_GB = 0.5
VCPU_GB = 1769 / 1024  # memory that comes with one core
# Waiting in an invocation: one call to the table for each 25 digests, and the runtime around it.
CALL_S = 0.015
OVERHEAD_S = 0.02
# Every digest is read by two checkers, once a minute, over windows of five minutes.
READS = 10
BATCH = 100
POLL = 10


class Packed(LoadTable):
    """A table that does the adapter's work and sends nothing."""

    def __init__(self) -> None:
        """Begin empty."""
        self.bytes = 0

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Pack every digest."""
        for digest in digests:
            values = [next(iter(value.values())) for value in pack(digest).values()]
            self.bytes += sum(map(len, values)) + 25
        return ()

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Hold nothing."""
        return ()


def worker_logs(seed: int, count: int) -> list[dict[str, object]]:
    """Logs of a worker in AWS that serves Poisson traffic for 500 s."""
    draw = random.Random(seed)
    logs: list[dict[str, object]] = []
    for age in sorted((draw.uniform(30, 530) for _ in range(count)), reverse=True):
        at = SENT - timedelta(seconds=age)
        started = at + timedelta(seconds=draw.expovariate(10))
        finished = started + timedelta(seconds=draw.expovariate(2))
        enqueued, started_at, finished_at = (
            moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            for moment in (at, started, finished)
        )
        logs.append(
            {
                "version": 1,
                "request_id": f"{draw.getrandbits(128):032x}",
                "worker_id": f"gpu-{seed}",
                "cluster": "aws",
                "instance_id": f"i-{seed:017x}",
                "enqueued_at": enqueued,
                "started_at": started_at,
                "finished_at": finished_at,
                "status": "ok",
            }
        )
    return logs


def bodies(per_message: int, *, packed: bool = False) -> list[str]:
    """Messages of JSON lines, `LOGS` logs in all."""
    texts = [
        "\n".join(json.dumps(log, separators=(",", ":")) for log in worker_logs(n, per_message))
        for n in range(LOGS // per_message)
    ]
    if not packed:
        return texts
    return [base64.b64encode(gzip.compress(text.encode())).decode() for text in texts]


def rate(work: Callable[[], object], count: int) -> float:
    """How many of `count` pieces of work are done in a second of processor time."""
    best = math.inf
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return count / best


def parsed_plainly(texts: Sequence[str]) -> list[object]:
    """Parse JSON lines and do nothing with them."""
    return [json.loads(line) for text in texts for line in text.split("\n")]


def collected(texts: Sequence[str], table: LoadTable) -> None:
    """Take message bodies to stored digests, a batch at a time."""
    for first in range(0, len(texts), BATCH):
        batch = [
            Message(message_id=str(n), body=text, sent_at=SENT)
            for n, text in enumerate(texts[first : first + BATCH])
        ]
        report = collect(batch, table, {FLEET}, FLEET)
        if report.refused or report.unstored:
            raise RuntimeError(f"refused: {report.refused or report.unstored}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """USD for a million logs, by part."""

    queue: float
    function: float
    table: float

    @property
    def total(self) -> float:
        """USD for a million logs."""
        return self.queue + self.function + self.table


def cost(texts: Sequence[str], messages_per_call: int, logs_per_s: float) -> Cost:
    """Price a million logs sent so; every message is sent by a request of its own."""
    table = Packed()
    collected(texts, table)
    messages = 1e6 / (LOGS / len(texts))
    calls = messages / messages_per_call
    body_kib = sum(map(len, texts)) / len(texts) / 1024
    receives = max(messages / min(messages_per_call, POLL), messages * body_kib / 64)
    deletes = messages / min(messages_per_call, POLL)
    sends = messages * math.ceil(body_kib / 64)
    table_calls = calls * math.ceil(messages_per_call / 25)
    seconds = 1e6 / logs_per_s * VCPU_GB / MEMORY_GB + calls * OVERHEAD_S + table_calls * CALL_S
    item_kb = table.bytes / len(texts) / 1024
    return Cost(
        queue=(sends + receives + deletes) * SQS_USD,
        function=seconds * MEMORY_GB * LAMBDA_GB_S_USD + calls * LAMBDA_CALL_USD,
        table=messages * (math.ceil(item_kb) * WRITE_USD + READS * item_kb / 8 * READ_USD),
    )


def speed_table() -> Table:
    """Logs a second from message bodies to digests, beside json.loads of the same bytes."""
    table = Table("500 logs a message", "logs/s", "json.loads", "ratio", title="Collecting")
    plain = bodies(500)
    for name, texts in (("JSON lines", plain), ("gzip+base64", bodies(500, packed=True))):
        parsed = rate(partial(parsed_plainly, plain), LOGS)
        ours = rate(partial(collected, texts, Packed()), LOGS)
        table.add_row(name, f"{ours:,.0f}", f"{parsed:,.0f}", f"{parsed / ours:.1f}x")
    table.caption = f"goal: {GOAL_LOGS_PER_S:,} logs/s"
    return table


def cost_table() -> Table:
    """USD for a million logs, by how they are sent and how full the function's batches are."""
    table = Table("sent", "queue", "function", "table", "USD per million", title="Cost")
    cases = (
        ("500 a message, gzip, one message a call", bodies(500, packed=True), 1),
        ("500 a message, gzip, 10 messages a call", bodies(500, packed=True), 10),
        ("500 a message, plain, one message a call", bodies(500), 1),
        ("1 a message, 100 messages a call", bodies(1), 100),
    )
    for name, texts, per_call in cases:
        logs_per_s = rate(partial(collected, texts, Packed()), LOGS)
        usd = cost(texts, per_call, logs_per_s)
        parts = (usd.queue, usd.function, usd.table, usd.total)
        table.add_row(name, *(f"{part:.5f}" for part in parts))
    table.caption = f"goal at 500 a message: {GOAL_USD_PER_MILLION} USD"
    return table


def summing_table() -> Table:
    """Time to read and sum up a window of 15 minutes of 500 workers that ship once a minute."""
    items: list[dict[str, object]] = []

    class Kept(Packed):
        def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
            items.extend(dict(pack(digest)) for digest in digests)
            return ()

    for worker in range(500):
        text = "\n".join(map(json.dumps, worker_logs(worker, 20)))
        message = Message(message_id="m", body=text, sent_at=SENT)
        collect([message], Kept(), {FLEET}, FLEET)
    copies = [
        {**item, "sk": {"S": f"2026-11-20T12:00:00.000Z#{n:08x}{copy:08x}"}}
        for n, item in enumerate(items)
        for copy in range(15)
    ]
    digests = [digest for item in copies for digest in unpack(FLEET, item)]
    table = Table("500 workers, 7,500 messages, 15 minutes", "ms", title="Summing up")
    unpacking = 1000 / rate(lambda: [unpack(FLEET, item) for item in copies], 1)
    summing = 1000 / rate(lambda: summarise(digests, SENT, 900), 1)
    table.add_row("unpack the items", f"{unpacking:.0f}")
    table.add_row("summarise", f"{summing:.0f}")
    return table


def main() -> None:
    """Print every figure of this file."""
    console = Console()
    for table in (speed_table(), cost_table(), summing_table()):
        console.print(table)


if __name__ == "__main__":
    main()
