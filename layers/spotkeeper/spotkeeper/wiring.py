"""The one place that puts parts together: clients, adapters, settings, and the clock."""

import os
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.adapters.ec2.lives import InstanceLives, ScalingActivities
from spotkeeper.adapters.ec2.prices import MarketPrices, price_list_region
from spotkeeper.adapters.event_bus import EventBus
from spotkeeper.adapters.fleet_documents import DocumentCopy, FleetDocuments, FleetDocumentStore
from spotkeeper.adapters.regions import RegionTables, forward
from spotkeeper.adapters.regions import unpacked as unpacked
from spotkeeper.adapters.request_queues import EveryRequestQueue
from spotkeeper.adapters.wake_ups import TurnQueue
from spotkeeper.border.settings import (
    AvailabilitySettings,
    CheckerSettings,
    CollectSettings,
    EventSettings,
    ExamineSettings,
    HealthSettings,
    JobSettings,
    Settings,
)
from spotkeeper.observability import tell_unused
from spotkeeper.ports import Ports
from spotkeeper.turns.keep_jobs import JobPorts
from spotkeeper.turns.keep_ledger import LedgerPorts

if TYPE_CHECKING:
    from collections.abc import Callable

    from spotkeeper.domain.doctor.facts import Facts
    from spotkeeper.turns.collect_search_logs import Add


def _config(*, connect_s: int, read_s: int, attempts: int) -> Config:
    retries: dict[str, Any] = {"mode": "standard", "total_max_attempts": attempts}
    return Config(
        retries=retries,  # type: ignore[arg-type]
        connect_timeout=connect_s,
        read_timeout=read_s,
    )


# A function has 30 s (template.yaml), and a call that hangs must fail while the rest can be done.
# Groups must be read and resized: nothing can be done without them.
NEEDED = _config(connect_s=1, read_s=3, attempts=3)
# What a turn requests of groups: the next turn requests it again.
REQUESTED = _config(connect_s=1, read_s=3, attempts=1)
# A turn continues without the answers of these.
OPTIONAL = _config(connect_s=1, read_s=3, attempts=2)
# CreateFleet answers once it has launched. A repeated call has the same token.
LAUNCH = _config(connect_s=1, read_s=20, attempts=1)
# Each turn has several calls of the table, which answers within milliseconds.
TABLE = _config(connect_s=1, read_s=2, attempts=2)
# The documents' copy must not take a turn's time.
COPY = _config(connect_s=1, read_s=1, attempts=1)
# What can be sent again by the next turn is not waited for.
SENT_AGAIN = _config(connect_s=1, read_s=2, attempts=1)
# Looks at the account, without a turn that waits for them.
UNHURRIED = _config(connect_s=2, read_s=5, attempts=3)


# How often template.yaml has the ledger kept; each look reports what was spent in that time.
LEDGER_EVERY = timedelta(minutes=5)


def now() -> datetime:
    """Read the clock; everything below takes the time as a value."""
    return datetime.now(UTC)


def fleet_documents(*, copies: bool = False) -> FleetDocuments:
    """Read the fleets of this stack; `copies`: keep a copy of what is in force."""
    documents = _documents().load(now(), copies=copies)
    for fleet in documents.fleets:
        tell_unused(fleet.name, fleet.unused)
    return documents


@cache
def ports() -> Ports:
    """Put together what every turn needs of the world."""
    settings = AvailabilitySettings.parse(os.environ)
    ec2, dynamodb, table = _client("ec2", OPTIONAL), _client("dynamodb", TABLE), settings.table_name
    nonce, autoscaling = settings.stack_nonce, _client("autoscaling", NEEDED)
    activities = _client("autoscaling", OPTIONAL)
    return Ports(
        groups=AutoScalingReader(autoscaling, ec2, nonce, activities),
        writer=AutoScalingWriter(
            _client("autoscaling", REQUESTED), _client("ec2", REQUESTED), nonce
        ),
        owner=nonce,
        states=FleetStateTable(dynamodb, table, timedelta(days=settings.record_days)),
        load=load_table(),
        histories=LoadHistoryTable(dynamodb, table),
        queues=queue_looks(),
        wake_ups=availability_queue(),
        controls=ControlTable(dynamodb, table),
        announcements=announcements(settings),
        regions=RegionTables(
            ec2.meta.region_name, table, lambda r: _client("dynamodb", TABLE, region_name=r)
        ),
        # A region's report has the spot price alone.
        prices=MarketPrices(ec2, None, ec2.meta.region_name),
        clock=lambda: now(),
    )


@cache
def ledger_ports() -> LedgerPorts:
    """Put together what the ledger keeper needs of the world."""
    autoscaling, ec2 = _client("autoscaling", NEEDED), _client("ec2", OPTIONAL)
    return LedgerPorts(
        groups=AutoScalingReader(autoscaling, ec2),
        ledger=LedgerTable(_client("dynamodb", TABLE), _table()),
        lives=InstanceLives(ec2),
        activities=ScalingActivities(autoscaling),
        prices=_prices(UNHURRIED),
        clock=lambda: now(),
    )


@cache
def job_ports() -> JobPorts:
    """Put together what the keeper of jobs needs of the world."""
    # One function of all has jobs: the others do not load this at every cold start.
    from spotkeeper.adapters.dynamodb.jobs import JobItems
    from spotkeeper.adapters.ec2.jobs import AwsJobs

    settings = JobSettings.parse(os.environ)
    ec2, launching = _client("ec2", OPTIONAL), _client("ec2", LAUNCH)
    s3, sns = _client("s3", OPTIONAL), _client("sns", OPTIONAL)
    cloud = AwsJobs(ec2, launching, s3, sns, settings)
    return JobPorts(
        table=JobItems(_client("dynamodb", TABLE), settings.table_name, cloud.zones),
        cloud=cloud,
        prices=_prices(OPTIONAL),
        clock=lambda: now(),
    )


def stack_facts() -> "Facts":
    """Look at this stack, its groups and its account; raises `SettingsError` and `FleetError`."""
    # One function of all looks once a day: the others do not load this at every cold start.
    from spotkeeper.adapters.doctor.doctor import facts_of
    from spotkeeper.adapters.stacks import StackReader

    name = ExamineSettings.parse(os.environ).stack_name
    stack = StackReader(_client("cloudformation")).whole(name)
    documents = fleet_documents()
    return facts_of(_client, now(), documents.fleets, documents.errors, stack)


@cache
def availability_queue() -> TurnQueue:
    """Put together what has check_availability invoked again."""
    return TurnQueue(
        lambda: _client("sqs", SENT_AGAIN), CheckerSettings.parse(os.environ).wake_up_queue_url
    )


@cache
def health_queue() -> TurnQueue:
    """Put together what has check_health invoked again."""
    return TurnQueue(
        lambda: _client("sqs", SENT_AGAIN), HealthSettings.parse(os.environ).health_queue_url
    )


@cache
def load_table() -> LoadDigestTable:
    """Put the load table together."""
    return LoadDigestTable(_client("dynamodb", TABLE), _table())


@cache
def queue_looks() -> EveryRequestQueue:
    """Make the counter of request queues, and the store of the lengths that agents report."""
    sqs, cloudwatch = (partial(_client, service, OPTIONAL) for service in ("sqs", "cloudwatch"))
    return EveryRequestQueue(sqs, cloudwatch, _client("dynamodb", TABLE), _table(), now)


@cache
def to_home() -> "Add | None":
    """Put together what forwards search logs home; None where this stack is at home."""
    url = collect_settings().home_queue_url
    if not url:
        return None
    there = _client("sqs", OPTIONAL, region_name=url.split(".")[1])
    return partial(forward, there, url, _client("sqs", OPTIONAL).meta.region_name)


def announcements(settings: EventSettings) -> EventBus | None:
    """Make what sends events; None where there is no bus."""
    bus, stack = settings.event_bus, settings.stack_name
    return EventBus(lambda: _client("events", SENT_AGAIN), bus, stack) if bus else None


def collect_settings() -> CollectSettings:
    """Read what collect_search_logs needs; raises `SettingsError`."""
    return CollectSettings.parse(os.environ)


@cache
def _documents() -> FleetDocumentStore:
    settings = Settings.parse(os.environ)
    copy = DocumentCopy(_client("dynamodb", COPY), settings.table_name)
    return FleetDocumentStore(_client("ssm", OPTIONAL), settings.fleet_documents_path, copy)


def _table() -> str:
    return Settings.parse(os.environ).table_name


def _prices(config: Config) -> MarketPrices:
    ec2 = _client("ec2", OPTIONAL)
    region = ec2.meta.region_name
    where = price_list_region(region)
    pricing = _client("pricing", config, region_name=where) if where else None
    return MarketPrices(ec2, pricing, region)


@cache
def _client(service: str, config: Config = UNHURRIED, **more: str) -> Any:
    # boto3's stubs know a service only where its name is written out.
    make: Callable[..., Any] = boto3.client
    return make(service, config=config, **more)
