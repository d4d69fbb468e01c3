"""A stack on the local AWS whose functions the benches call as Lambda calls them."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from itertools import chain
from typing import Any

import boto3

from spotkeeper_lab.aws.wire import Events, VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudEvent, EventKind, Physics, two_groups
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.world import Context
from tests.builders import NOON, at
from tests.functions import conftest
from tests.functions.conftest import document, groups

ZONES = ("us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge")
EVENTS = Events(VirtualTime(NOON))


@contextmanager
def deployed(fleets: Sequence[str], desired: int, most: int) -> Iterator[Cloud]:
    """Deploy fleets whose spot groups ask for `desired` instances, half of them in each zone."""
    made = [
        two_groups(*groups(fleet), pools=ZONES, maximum=most, desired=desired) for fleet in fleets
    ]
    capacity = {zone: [(0.0, 2 * most * len(fleets))] for zone in ZONES}
    cloud = Cloud(market_of("bench", 86_400.0, capacity), [*chain(*made)], Physics())
    bounds = {"spot_min": 0, "spot_max": most, "on_demand_max": most}
    documents = [document(fleet, bounds=bounds) for fleet in fleets]
    with conftest.deployed(cloud, documents, lambda: at(cloud.now_s)):
        for name in ("wake-ups", "health"):
            boto3.client("sqs").create_queue(QueueName=name)
        yield cloud


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


def warning(instance_id: str, at_s: float) -> dict[str, object]:
    """Make EC2's event that an instance is about to be interrupted."""
    return of_cloud(EventKind.WARNING, instance_id, at_s)


def of_cloud(kind: EventKind, instance_id: str, at_s: float, group: str = "") -> dict[str, object]:
    """Make the event of something that happened to an instance."""
    return EVENTS.of_cloud(
        CloudEvent(kind=kind, at_s=at_s, deliver_s=at_s, group=group, instance_id=instance_id)
    )
