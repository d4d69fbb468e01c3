"""A stack on moto under the load of 50 workers, whose functions are called as Lambda calls them.

Search logs come in through collect_search_logs, every worker shipping every 10 s.
"""

import io
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import batched
from math import ceil
from random import Random
from typing import Any
from unittest.mock import patch

import boto3

from spotkeeper import wiring
from spotkeeper.adapters.ec2 import prices
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.local_aws.context import VirtualTime, local_aws
from spotkeeper_lab.local_aws.table import create_table
from spotkeeper_lab.traces.market import market_of

WORKERS = 50


REQUESTS_PER_S = 100


SHIPPED_EVERY_S = 10


# The function takes what comes in within 5 s, at most 100 messages.
MESSAGES_A_CALL = min(100, WORKERS * 5 // SHIPPED_EVERY_S)


BATCHES = ceil(WORKERS / MESSAGES_A_CALL)


SERVICE_S = 0.33


START = datetime(2026, 11, 20, 12, tzinfo=UTC)


POOL = "us-east-1a/g5.xlarge"


LIST_PRICES = {"g5.xlarge": 1.006}


TABLE, PATH = "bench", "/spotkeeper/bench/fleets"


ENVIRONMENT = {
    "TABLE_NAME": TABLE,
    "FLEET_DOCUMENTS_PATH": PATH,
    "DEFAULT_FLEET": "ocr",
    "STACK_NONCE": "51af3dc0-da77-11e4-872e-1234567db123",
    "WAKE_UP_QUEUE_URL": "https://sqs.us-east-1.amazonaws.com/123456789012/wake-ups",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
}


DOCUMENT = {
    "version": 1,
    "spot_group": "ocr-spot",
    "on_demand_group": "ocr-on-demand",
    "bounds": {"spot_min": 0, "spot_max": 100, "on_demand_max": 100},
}


SERVICES = {"autoscaling": "EC2 and Auto Scaling", "ec2": "EC2 and Auto Scaling",
            "dynamodb": "table", "ssm": "parameters", "sqs": "queues"}  # fmt: skip


@dataclass(slots=True)
class Turn:
    """What one invocation cost."""

    calls: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    log_bytes: int = 0
    metrics: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Context:
    """What the handlers read of Lambda's context."""

    function_name: str = "bench"
    memory_limit_in_mb: int = 512
    invoked_function_arn: str = "arn:aws:lambda:us-east-1:123456789012:function:bench"
    aws_request_id: str = "request"


class Bench:
    """The stack on moto; `invoke` measures one call of a function."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._turn = Turn()
        assert boto3.DEFAULT_SESSION
        boto3.DEFAULT_SESSION.events.register("provide-client-params", self._note)

    def _note(self, model: Any, **_: object) -> None:
        self._turn.calls[SERVICES[model.service_model.service_name]] += 1

    def invoke(self, name: str, event: object) -> Turn:
        """Call a function as Lambda does."""
        handler = import_module(f"functions.{name}.app").handler
        turn = self._turn = Turn()
        written = io.StringIO()
        with redirect_stdout(written), _logging_to(written):
            began = time.process_time()
            handler(event, Context())
            turn.cpu_s = time.process_time() - began
        self._turn = Turn()
        for line in written.getvalue().splitlines():
            turn.log_bytes += len(line.encode()) + 1
            directives = json.loads(line).get("_aws", {}).get("CloudWatchMetrics", [])
            turn.metrics |= {m["Name"] for each in directives for m in each["Metrics"]}
        return turn

    def items(self, pk: str, beginning: str) -> int:
        """Count the table's items of a kind."""
        return len(self._sizes(pk, beginning))

    def item_kib(self, pk: str, beginning: str) -> float:
        """Mean size of the table's items of a kind, in KiB."""
        sizes = self._sizes(pk, beginning)
        return sum(sizes) / len(sizes) / 1024

    def _sizes(self, pk: str, beginning: str) -> list[int]:
        answer = boto3.client("dynamodb").query(
            TableName=TABLE,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :sk)",
            ExpressionAttributeValues={":pk": {"S": pk}, ":sk": {"S": beginning}},
        )
        return [_bytes(item) for item in answer["Items"]]

    def ship(self, begin_s: float) -> Turn:
        """Have all workers ship the logs of 10 s, in batches as they come in; the last one's turn.

        Every other batch is of two slots.
        """
        shifts = sorted((n % SHIPPED_EVERY_S + 2.5, n) for n in range(WORKERS))
        records = [_message(f"w{n}", n, begin_s + shift_s) for shift_s, n in shifts]
        turns = [
            self.invoke("collect_search_logs", {"Records": list(batch)})
            for batch in batched(records, MESSAGES_A_CALL, strict=False)
        ]
        return turns[-1]


def _bytes(item: Any) -> int:
    """Size of an item as DynamoDB counts it, near enough."""
    values = [next(iter(value.values())) for value in item.values()]
    return sum(map(len, item)) + sum(
        len(value) if isinstance(value, str | bytes) else len(str(value)) for value in values
    )


def _message(message_id: str, worker: int, begin_s: float) -> dict[str, object]:
    count = REQUESTS_PER_S * SHIPPED_EVERY_S // WORKERS
    random = Random(f"{worker} {begin_s}")
    every_s = SHIPPED_EVERY_S / count
    logs = [_log(worker, begin_s + n * every_s, random) for n in range(count)]
    sent = START + timedelta(seconds=begin_s + SHIPPED_EVERY_S)
    return {
        "messageId": message_id,
        "body": "\n".join(map(json.dumps, logs)),
        "attributes": {
            "SentTimestamp": str(int(sent.timestamp() * 1000)),
            "ApproximateReceiveCount": "1",
        },
        "eventSource": "aws:sqs",
    }


def _log(worker: int, begin_s: float, random: Random) -> dict[str, object]:
    began = START + timedelta(seconds=begin_s)
    ended = began + timedelta(seconds=min(SERVICE_S * random.lognormvariate(-0.1, 0.4), 0.5))
    return {
        "version": 1,
        "request_id": f"{worker:08x}-{begin_s:020.3f}",
        "worker_id": f"gpu-{worker}",
        "cluster": "aws",
        "instance_id": f"i-{worker + 1:017x}",
        "enqueued_at": (began - timedelta(seconds=random.expovariate(5))).isoformat(
            timespec="milliseconds"
        ),
        "started_at": began.isoformat(timespec="milliseconds"),
        "finished_at": ended.isoformat(timespec="milliseconds"),
        "status": "ok",
    }


@contextmanager
def _logging_to(stream: io.StringIO) -> Iterator[None]:
    """Catch the logger's lines: it holds the standard output of when it was made."""
    logger = import_module("spotkeeper.observability").logger
    before = [(handler, handler.stream) for handler in logger.handlers]
    for handler, _ in before:
        handler.setStream(stream)
    try:
        yield
    finally:
        for handler, stdout in before:
            handler.setStream(stdout)


@contextmanager
def bench() -> Iterator[Bench]:
    """Set the stack up: 50 spot instances in service, none on demand."""
    os.environ |= ENVIRONMENT
    specs = [
        GroupSpec(
            name=name, purchase=purchase, minimum=0, maximum=200, desired=desired, pools=(POOL,)
        )
        for name, purchase, desired in (
            ("ocr-spot", Purchase.SPOT, WORKERS),
            ("ocr-on-demand", Purchase.ON_DEMAND, 0),
        )
    ]
    cloud = Cloud(market_of("bench", 86_400.0, {POOL: [(0.0, 200)]}), specs, Physics())
    with local_aws(cloud, VirtualTime(START)):
        _create()
        with (
            patch.object(wiring, "now", lambda: START + timedelta(seconds=cloud.now_s)),
            # moto has no price list; a warm function asks for it once.
            patch.object(prices, "on_demand_prices", lambda *_: LIST_PRICES),
        ):
            yield Bench(cloud)


def _create() -> None:
    boto3.client("ssm").put_parameter(Name=f"{PATH}/ocr", Type="String", Value=json.dumps(DOCUMENT))
    create_table(boto3.client("dynamodb"), TABLE)
