"""The one place that puts parts together: clients, adapters, settings, and the clock."""

import os
from datetime import UTC, datetime, timedelta
from functools import cache
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
from spotkeeper.adapters.request_queues import (
    AgentRequestQueues,
    AmazonMqRequestQueues,
    EveryRequestQueue,
    SqsRequestQueues,
)
from spotkeeper.adapters.wake_ups import TurnQueue
from spotkeeper.border.settings import (
    AvailabilitySettings,
    CheckerSettings,
    CollectSettings,
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

    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_sqs import SQSClient

    from spotkeeper.domain.doctor.facts import Facts


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
# A turn goes on without what these would answer.
OPTIONAL = _config(connect_s=1, read_s=3, attempts=2)
# CreateFleet answers once it has launched. A repeated call has the same token.
LAUNCH = _config(connect_s=1, read_s=20, attempts=1)
# Each turn has several calls of the table, which answers within milliseconds.
TABLE = _config(connect_s=1, read_s=2, attempts=3)
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
    """Read the fleets of this stack; `copies`: keep a copy for when they cannot be read."""
    documents = _documents().load(copies=copies)
    for fleet in documents.fleets:
        tell_unused(fleet.name, fleet.unused)
    return documents


@cache
def ports() -> Ports:
    """Put together what every turn needs of the world."""
    nonce = _checker_settings().stack_nonce
    return Ports(
        groups=AutoScalingReader(_autoscaling(), _ec2(), nonce, _activities()),
        writer=AutoScalingWriter(_autoscaling(), _ec2(), nonce),
        owner=nonce,
        states=_states(),
        load=load_table(),
        histories=LoadHistoryTable(_dynamodb(), _settings().table_name),
        queues=EveryRequestQueue(
            SqsRequestQueues(_sqs), AmazonMqRequestQueues(_cloudwatch, now), queue_looks()
        ),
        wake_ups=availability_queue(),
        controls=ControlTable(_dynamodb(), _settings().table_name),
        announcements=_event_bus(),
        clock=lambda: now(),
    )


@cache
def ledger_ports() -> LedgerPorts:
    """Put together what the ledger keeper needs of the world."""
    region = _ec2().meta.region_name
    where = price_list_region(region)
    pricing = boto3.client("pricing", region_name=where, config=UNHURRIED) if where else None
    return LedgerPorts(
        groups=AutoScalingReader(_autoscaling(), _ec2()),
        ledger=LedgerTable(_dynamodb(), _settings().table_name),
        lives=InstanceLives(_ec2()),
        activities=ScalingActivities(_autoscaling()),
        prices=MarketPrices(_ec2(), pricing, region),
        clock=lambda: now(),
    )


@cache
def job_ports() -> JobPorts:
    """Put together what the keeper of jobs needs of the world."""
    # One function of all has jobs: the others do not load this at every cold start.
    from spotkeeper.adapters.dynamodb.jobs import JobItems
    from spotkeeper.adapters.ec2.jobs import AwsJobs

    settings = JobSettings.parse(os.environ)
    s3, sns = boto3.client("s3", config=OPTIONAL), boto3.client("sns", config=OPTIONAL)
    cloud = AwsJobs(_ec2(), boto3.client("ec2", config=LAUNCH), s3, sns, settings)
    region = _ec2().meta.region_name
    where = price_list_region(region)
    pricing = boto3.client("pricing", region_name=where, config=OPTIONAL) if where else None
    return JobPorts(
        table=JobItems(_dynamodb(), settings.table_name, cloud.zones),
        cloud=cloud,
        prices=MarketPrices(_ec2(), pricing, region),
        clock=lambda: now(),
    )


def stack_facts() -> "Facts":
    """Look at this stack, its groups and its account; raises `SettingsError` and `FleetError`."""
    # One function of all looks once a day: the others do not load this at every cold start.
    from spotkeeper.adapters.doctor.doctor import Doctor
    from spotkeeper.adapters.stacks import StackReader

    name = ExamineSettings.parse(os.environ).stack_name
    stack = StackReader(_client("cloudformation")).whole(name)
    return Doctor(_client, now()).of_stack(stack, fleet_documents())


@cache
def availability_queue() -> TurnQueue:
    """Put together what has check_availability invoked again."""
    return TurnQueue(_sqs, _checker_settings().wake_up_queue_url)


@cache
def health_queue() -> TurnQueue:
    """Put together what has check_health invoked again."""
    return TurnQueue(_sqs, HealthSettings.parse(os.environ).health_queue_url)


@cache
def load_table() -> LoadDigestTable:
    """Put the load table together."""
    return LoadDigestTable(_dynamodb(), _settings().table_name)


@cache
def queue_looks() -> AgentRequestQueues:
    """Put together what keeps agents' looks at request queues."""
    return AgentRequestQueues(_dynamodb(), _settings().table_name, now)


@cache
def collect_settings() -> CollectSettings:
    """Read what collect_search_logs needs; raises `SettingsError`."""
    return CollectSettings.parse(os.environ)


@cache
def _settings() -> Settings:
    return Settings.parse(os.environ)


@cache
def _checker_settings() -> CheckerSettings:
    return CheckerSettings.parse(os.environ)


@cache
def _states() -> FleetStateTable:
    settings = _checker_settings()
    return FleetStateTable(_dynamodb(), settings.table_name, timedelta(days=settings.record_days))


def _event_bus() -> EventBus | None:
    settings = AvailabilitySettings.parse(os.environ)
    bus = settings.event_bus
    return EventBus(_events, bus, settings.stack_name) if bus else None


@cache
def _documents() -> FleetDocumentStore:
    settings = _settings()
    copy = DocumentCopy(boto3.client("dynamodb", config=COPY), settings.table_name)
    ssm = boto3.client("ssm", config=OPTIONAL)
    return FleetDocumentStore(ssm, settings.fleet_documents_path, copy)


def _client(service: str) -> Any:
    # boto3's stubs know a service only where its name is written out.
    make: Callable[..., Any] = boto3.client
    return make(service, config=UNHURRIED)


@cache
def _autoscaling() -> "AutoScalingClient":
    return boto3.client("autoscaling", config=NEEDED)


@cache
def _activities() -> "AutoScalingClient":
    return boto3.client("autoscaling", config=OPTIONAL)


@cache
def _ec2() -> "EC2Client":
    return boto3.client("ec2", config=OPTIONAL)


@cache
def _dynamodb() -> "DynamoDBClient":
    return boto3.client("dynamodb", config=TABLE)


@cache
def _cloudwatch() -> "CloudWatchClient":
    return boto3.client("cloudwatch", config=OPTIONAL)


@cache
def _events() -> "EventBridgeClient":
    return boto3.client("events", config=SENT_AGAIN)


@cache
def _sqs() -> "SQSClient":
    return boto3.client("sqs", config=OPTIONAL)
