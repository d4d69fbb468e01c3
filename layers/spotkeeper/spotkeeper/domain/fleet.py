"""What a fleet is: its groups as observed, and what the operator allows.

The words are those of docs/architecture.md. Every duration of a policy is in seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spotkeeper.domain.permission import Mode
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.setting import group_name, setting
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy


class Phase(StrEnum):
    """The phase of an instance in its group."""

    LAUNCHING = "launching"
    IN_SERVICE = "in_service"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance of a group; `pool` is `zone/type`, `template` its launch template's version."""

    instance_id: str
    pool: str
    phase: Phase
    healthy: bool = True
    template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """An Auto Scaling group as it was observed; `suspended` are its stopped processes.

    AWS itself suspends a group that launched nothing for a day: `suspended_by_aws` are those.
    `owner` is the stack whose turns act on the group, empty where none has claimed it. One that
    does not `exists` is as it is remembered, or without any capacity. `offers` are the pools that
    it may launch in, as far as it names types.
    """

    name: str
    desired: int
    minimum: int
    maximum: int
    instances: tuple[Instance, ...] = ()
    suspended: frozenset[str] = frozenset()
    suspended_by_aws: frozenset[str] = frozenset()
    owner: str = ""
    exists: bool = True
    offers: tuple[str, ...] = ()


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"(({'|'.join(_DAYS)}) )?{_CLOCK}-{_CLOCK}"


def _end(text: str, at: datetime) -> datetime | None:
    """Return when a time ends, perhaps on the next day; None where an instant is not within it."""
    day, _, span = text.rpartition(" ")
    begin, end = (timedelta(hours=int(t[:2]), minutes=int(t[3:])) for t in span.split("-"))
    end += timedelta(days=end <= begin)
    for began in (at, at - timedelta(days=1)):
        midnight = began.replace(hour=0, minute=0, second=0, microsecond=0)
        if day in ("", _DAYS[began.weekday()]) and begin <= at - midnight < end:
            return midnight + end
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One spot group, one on-demand group and any on-premises workers, sized together."""

    name: str
    spot_group: str = group_name("Auto Scaling group that launches spot")
    on_demand_group: str = group_name(
        "Auto Scaling group that launches on-demand; not `spot_group`"
    )
    mode: Mode = setting(
        "`observe`: turns record what they would request, and request nothing, until "
        "`spotkeeper mode` changes it. Set by the stack's `Mode`",
        "you [observe first](first-week.md)",
        default=Mode.ACT,
    )
    workers_per_instance: int = setting(
        "worker processes on one instance",
        "an instance runs several",
        unit="workers",
        least=1,
        most=1000,
        default=1,
    )
    slots: int = setting(
        "requests that one worker serves at once",
        "a worker batches (vLLM, Triton)",
        unit="requests",
        least=1,
        most=1000,
        default=1,
    )
    onprem_workers: int = setting(
        "how many workers run on machines of your own. They are used first; no more than these "
        "count, and an alarm rings when one is missing. 0: all that send logs count, and no alarm",
        "you have machines of your own",
        unit="workers",
        least=0,
        most=10_000,
        default=0,
    )
    request_queue_url: str | None = setting(
        "queue that the workers take requests from; Spotkeeper reads its length. It is an SQS "
        "queue; `amazon-mq://BROKER/VHOST/QUEUE` (the vhost `/` is `%2F`), which CloudWatch "
        "reports a minute or two late; or `rabbitmq://VHOST/QUEUE` or `redis://DATABASE/QUEUE` on "
        "a broker of your own, which [an agent reads](rabbitmq.md#the-length-of-the-queue). Set by "
        "the stack's `RequestQueueName`",
        "you have one: [to zero and back](sizing.md#to-zero-and-back)",
        unit="URL",
        pattern=(
            r"^(https://sqs\.[a-z0-9-]+\.amazonaws\.(com|com\.cn|eu)"
            r"/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?"
            r"|amazon-mq://[A-Za-z0-9_-]{1,50}/[^/\s]{1,255}/[^/\s]{1,255}"
            r"|rabbitmq://[^/\s]{1,255}/[^/\s]{1,255}"
            r"|redis://[0-9]{1,5}/[^/\s]{1,255})$"
        ),
        example="https://sqs.us-east-1.amazonaws.com/123456789012/requests",
        default=None,
    )
    home: str | None = setting(
        "the region whose stack divides the need among [several regions](regions.md); this stack "
        "serves the share that it is given. Set by the stack's `Home`",
        "this is a further region of a fleet",
        unit="region",
        pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]$",
        example="us-west-2",
        default=None,
    )
    regions: str = setting(
        "the tables of the fleet's stacks in other regions, as ARNs with commas between them: this "
        "stack divides the need among them. Set by the stack's `Regions`",
        "you add [a region](regions.md)",
        unit="ARNs",
        pattern=r"^(arn:aws[a-z-]*:dynamodb:[a-z0-9-]+:[0-9]{12}:table/[A-Za-z0-9_.-]+(,|$))*$",
        example="arn:aws:dynamodb:us-west-2:123456789012:table/spotkeeper-Table-ABC",
        default="",
    )
    egress_usd: float = setting(
        "what the transfer of 1,000 requests to another region costs. It counts in the price of "
        "[other regions](regions.md)",
        "requests or results are large",
        unit="USD",
        least=0,
        default=0.0,
    )
    maintenance: str = setting(
        "times in UTC at which nothing is replaced for health, and no warned instance before its "
        "end, such as `Sat 22:00-02:00, 03:00-03:30`. A time without a day is for each day",
        "you work on workers, queues or networks at fixed times",
        unit="times",
        pattern=f"^({_TIME}(, ?{_TIME})*)?$",
        example="Sat 22:00-02:00, 03:00-03:30",
        default="",
    )
    bounds: Bounds
    objective: Objective | None = None
    sizing: SizingPolicy = field(default_factory=SizingPolicy)
    availability: AvailabilityPolicy = field(default_factory=AvailabilityPolicy)
    worker_health: WorkerHealthPolicy = field(default_factory=WorkerHealthPolicy)
    # Settings of earlier releases that its document has: read, and not used.
    unused: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, str]:
        """The names of both groups, spot first."""
        return self.spot_group, self.on_demand_group

    @property
    def elsewhere(self) -> dict[str, str]:
        """The tables of its other regions, by region; empty unless this stack is their home."""
        tables = [arn.split(":") for arn in self.regions.split(",") if arn]
        return {arn[3]: arn[5].removeprefix("table/") for arn in tables}

    def maintenance_until(self, now: datetime) -> datetime | None:
        """Return when the time of maintenance ends that an instant is within, if it is."""
        at, spans = now.astimezone(UTC), filter(None, self.maintenance.split(","))
        return max(filter(None, (_end(span.strip(), at) for span in spans)), default=None)

    @property
    def is_shared(self) -> bool:
        """Whether a share says what it serves, of its own or another region's home."""
        return bool(self.home or self.regions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Both groups of a fleet at one instant; `seen_at` is aware."""

    seen_at: datetime
    spot: Group
    on_demand: Group


type BusyShares = Mapping[str, float]
"""Share of the last minutes that each instance's workers were busy, by instance id."""
