"""What Lambda hands to functions: EventBridge events, requests for turns, and a queue's messages.

An event becomes an `Interruption`, or nothing for strangers. AWS documents events as best effort:
late, repeated, absent. Instance ids are read from the detail, never from the ARNs of `resources`
(the zone in them may be wrong).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from pydantic import AliasPath, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from spotkeeper.border import wrong_fields
from spotkeeper.domain.interruption import Interruption
from spotkeeper.domain.interruption import InterruptionKind as Kind


class EventError(Exception):
    """An event of a known kind without its fields; names every wrong one."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Origin(_Part):
    """The source of an EventBridge event; other fields are ignored."""

    source: str
    detail_type: Annotated[str, Field(alias="detail-type")]
    account: str


class _Envelope(_Origin):
    """What all events of known kinds share."""

    time: AwareDatetime
    detail: dict[str, Any]


class _OfInstance(_Part):
    """The detail of an event about one instance."""

    instance_id: Annotated[str, Field(alias="instance-id", pattern=r"^i-[0-9a-f]{8,17}$")]

    def about(self) -> dict[str, Any] | None:
        """Return the fields of the interruption; None where the event tells a turn nothing."""
        return {"instance_ids": (self.instance_id,)}


class _OfState(_OfInstance):
    state: str

    def about(self) -> dict[str, Any] | None:
        # The group reports when an instance serves, and an instance that has ended stopped counting
        # when it began to end.
        return super().about() if self.state in ("stopping", "shutting-down") else None


# An instance is named by its id, or by its ARN.
_ENTITY = re.compile(r"^(?:arn:[^:]+:ec2:[^:]*:[0-9]*:instance/)?(i-[0-9a-f]{8,17})$")


class _OfGroup(_Part):
    """A failed launch names no instance, or one that never was: `DUMMY_` and a UUID."""

    group: Annotated[str, Field(alias="AutoScalingGroupName", min_length=1)]
    instance_id: Annotated[Any, Field(alias="EC2InstanceId")] = None

    def about(self) -> dict[str, Any] | None:
        match = _ENTITY.match(str(self.instance_id))
        return {"instance_ids": (match[1],) if match else (), "group": self.group}


class _Change(_Part):
    """A change that AWS announces; an entity of it that cannot be read costs that entity only."""

    status: Annotated[str, Field(alias="statusCode")] = "upcoming"
    starts: Annotated[str, Field(alias="startTime")]
    affected: Annotated[Any, Field(alias="affectedEntities")] = ()

    def instances(self) -> tuple[str, ...] | None:
        """Return the instances that are still concerned; None where all of them are resolved."""
        entities = self.affected if isinstance(self.affected, list) else []
        read = [each for each in entities if isinstance(each, dict)]
        due = [each for each in read if str(each.get("status")).upper() != "RESOLVED"]
        ids = [_ENTITY.match(str(each.get("entityValue"))) for each in due]
        return (
            None if read and not due else tuple(dict.fromkeys(match[1] for match in ids if match))
        )


class _OfHealth(_Part):
    """What an AWS Health event is about, which is mostly not EC2."""

    model_config = ConfigDict(frozen=True, extra="allow")

    service: str
    category: Annotated[str, Field(alias="eventTypeCategory")]

    def about(self) -> dict[str, Any] | None:
        if (self.service, self.category) != ("EC2", "scheduledChange"):
            return None
        change = _Change.model_validate(self.model_extra)
        ids = change.instances()
        # AWS reports a change that is over or was called off once more, as closed.
        if ids is None or change.status == "closed":
            return None
        return {"instance_ids": ids, "due": _health_time(change.starts)}


def _health_time(text: str) -> datetime:
    """Read AWS Health's times, RFC 1123 or ISO; raises `EventError` for anything else."""
    try:
        at = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except (ValueError, OverflowError) as error:
        raise EventError(f"event AWS Health Event: startTime: {text!r} is not a time") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


type _Details = _OfInstance | _OfGroup | _OfHealth
_KINDS: Mapping[tuple[str, str], tuple[Kind, type[_Details]]] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): (Kind.INTERRUPTION_WARNING, _OfInstance),
    ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): (
        Kind.INTERRUPTION_WARNING, _OfInstance
    ),
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): (
        Kind.REBALANCE_RECOMMENDATION, _OfInstance
    ),
    ("aws.ec2", "EC2 Instance State-change Notification"): (Kind.STATE_CHANGE, _OfState),
    ("aws.autoscaling", "EC2 Instance Launch Unsuccessful"): (Kind.LAUNCH_UNSUCCESSFUL, _OfGroup),
    ("aws.autoscaling", "EC2 Instance Launch Successful"): (Kind.LAUNCH_SUCCESSFUL, _OfGroup),
    ("aws.autoscaling", "EC2 Instance Terminate Successful"): (Kind.TERMINATE_SUCCESSFUL, _OfGroup),
    ("aws.autoscaling", "EC2 Auto Scaling Instance Refresh Started"): (
        Kind.REFRESH_STARTED, _OfGroup
    ),
    ("aws.health", "AWS Health Event"): (Kind.SCHEDULED_CHANGE, _OfHealth),
}  # fmt: skip


def parse_event(event: object, account: str) -> Interruption | None:
    """Parse an EventBridge event; None for one of another account or an unknown kind.

    One of a known kind that names no instance and no group concerns nobody, which is unexpected.

    Raises `EventError` if it is not an event, or a known kind lacks fields.
    """
    detail_type = "of no known kind"
    try:
        origin = _Origin.model_validate(event)
        detail_type = origin.detail_type
        known = _KINDS.get((origin.source, origin.detail_type))
        if known is None or origin.account != account:
            return None
        (kind, model), envelope = known, _Envelope.model_validate(event)
        about = model.model_validate(envelope.detail).about()
    except ValidationError as error:
        raise EventError(f"event {detail_type}: {wrong_fields(error, 'event')}") from error
    return None if about is None else Interruption(kind=kind, at=envelope.time, **about)


# A request for a minute's turns is of no use once the next minute has sent its own.
OF_USE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """The fleets whose turns an event asks for, None for all; `woken` counts wake-ups in a row.

    `messages` are the ids of the queue's messages, with the fleets that each names, or None for
    all. They are empty for a tick.
    """

    fleets: frozenset[str] | None = None
    woken: int = 0
    messages: Mapping[str, frozenset[str] | None] = field(default_factory=dict)


class _Message(_Part):
    """A message that asks for turns: a wake-up of one `fleet`, or a minute's turns of `fleets`."""

    fleet: str = ""
    fleets: tuple[str, ...] = ()
    minute: AwareDatetime | None = None
    woken: Annotated[int, Field(ge=0)] = 0


def turn_request(event: object, now: datetime) -> TurnRequest:
    """Read which turns an event asks for: all of them for a tick, or a message that is not ours.

    Messages of an earlier minute ask for none.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    sent = [r for r in records or () if isinstance(r, dict)]
    ids = [str(r["messageId"]) for r in sent if r.get("messageId")]
    try:
        read = [_Message.model_validate_json(r.get("body", "")) for r in sent]
    except ValidationError:
        return TurnRequest(messages=dict.fromkeys(ids))
    if not read:
        return TurnRequest()
    useful = [m for m in read if m.minute is None or (now - m.minute).total_seconds() < OF_USE_S]
    named = frozenset(name for m in useful for name in (m.fleet, *m.fleets) if name)
    of = [frozenset((m.fleet, *m.fleets)) for m in read]
    messages = dict(zip(ids, of, strict=True)) if len(ids) == len(of) else {}
    woken = max((m.woken for m in useful), default=0)
    return TurnRequest(fleets=named, woken=woken, messages=messages)


# --- messages of a queue --------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A queue message; `sent_at` is the queue's own clock.

    Collectors of other regions `forwarded` those of a queue of their own: only they can send there.
    """

    message_id: str
    body: str
    sent_at: datetime
    forwarded: bool = False


class _Record(_Part):
    message_id: Annotated[str, Field(alias="messageId", min_length=1)]
    body: str
    sent_ms: Annotated[
        int, Field(validation_alias=AliasPath("attributes", "SentTimestamp"), ge=0, lt=2**43)
    ]
    source: Annotated[str, Field(alias="eventSourceARN")] = ""


class _QueueEvent(_Part):
    records: Annotated[list[_Record], Field(alias="Records")]


def read_messages(event: Mapping[str, Any]) -> list[Message]:
    """Return the messages of an event of SQS; raises EventError for anything else."""
    try:
        records = _QueueEvent.model_validate(event).records
    except ValidationError as error:
        fields = wrong_fields(error, "event")
        raise EventError(f"not an event of an SQS queue: {fields}") from None
    return [
        Message(
            message_id=record.message_id,
            body=record.body,
            sent_at=_EPOCH + timedelta(milliseconds=record.sent_ms),
            forwarded=record.source.endswith("-regions"),
        )
        for record in records
    ]
