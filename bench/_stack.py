"""A stack on the local AWS whose functions the benches call as Lambda calls them."""

import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import chain
from typing import Any
from unittest.mock import patch

import boto3

from spotkeeper import wiring
from spotkeeper_lab.aws.context import create_table, local_aws
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Physics, two_groups
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.world import Context, forget

ACCOUNT, REGION = "123456789012", "us-east-1"
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
ZONES = ("us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge")
TABLE, PATH = "bench", "/spotkeeper/bench/fleets"
QUEUES = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}"
ENVIRONMENT = {
    "TABLE_NAME": TABLE,
    "FLEET_DOCUMENTS_PATH": PATH,
    "DEFAULT_FLEET": "ocr",
    "STACK_NONCE": "51af3dc0-da77-11e4-872e-1234567db123",
    "WAKE_UP_QUEUE_URL": f"{QUEUES}/wake-ups",
    "HEALTH_QUEUE_URL": f"{QUEUES}/health",
    "POWERTOOLS_SERVICE_NAME": "bench",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
}


@contextmanager
def deployed(fleets: Sequence[str], desired: int, most: int) -> Iterator[Cloud]:
    """Deploy fleets whose spot groups ask for `desired` instances, half of them in each zone."""
    names = {fleet: (f"{fleet}-spot", f"{fleet}-on-demand") for fleet in fleets}
    made = [
        two_groups(*groups, pools=ZONES, maximum=most, desired=desired) for groups in names.values()
    ]
    capacity = {zone: [(0.0, 2 * most * len(fleets))] for zone in ZONES}
    cloud = Cloud(market_of("bench", 86_400.0, capacity), [*chain(*made)], Physics())
    bounds = {"spot_min": 0, "spot_max": most, "on_demand_max": most}
    with (
        local_aws(cloud, VirtualTime(START)),
        patch.dict(os.environ, ENVIRONMENT),
        patch.object(wiring, "now", lambda: START + timedelta(seconds=cloud.now_s)),
    ):
        forget()
        create_table(boto3.client("dynamodb"), TABLE)
        for name in ("wake-ups", "health"):
            boto3.client("sqs").create_queue(QueueName=name)
        for fleet, (spot, on_demand) in names.items():
            groups = {"spot_group": spot, "on_demand_group": on_demand}
            document = json.dumps({"version": 1, "bounds": bounds, **groups})
            boto3.client("ssm").put_parameter(Name=f"{PATH}/{fleet}", Type="String", Value=document)
        yield cloud
    forget()


def invoke(name: str, event: object) -> Any:
    """Call a function as Lambda does; returns its answer."""
    return import_module(f"functions.{name}.app").handler(event, Context())


def on_each_call(note: Any) -> None:
    """Have `note(params, model)` called for each call of AWS."""
    assert boto3.DEFAULT_SESSION
    boto3.DEFAULT_SESSION.events.register("provide-client-params", note)


@contextmanager
def output() -> Iterator[io.StringIO]:
    """Catch what functions write: the logger keeps the standard output of its creation."""
    logger = import_module("spotkeeper.observability").logger
    before = [(handler, handler.stream) for handler in logger.handlers]
    written = io.StringIO()
    for handler, _ in before:
        handler.setStream(written)
    try:
        with redirect_stdout(written):
            yield written
    finally:
        for handler, stdout in before:
            handler.setStream(stdout)


def warning(instance_id: str, at: datetime) -> dict[str, Any]:
    """Make EC2's event that an instance is about to be interrupted."""
    return {
        "version": "0", "id": "1", "source": "aws.ec2", "account": ACCOUNT, "region": REGION,
        "resources": [], "time": at.isoformat(),
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "detail": {"instance-id": instance_id, "instance-action": "terminate"},
    }  # fmt: skip
