"""EventBridge events, parsed once at the border: an `Interruption`, or nothing for strangers.

AWS documents these events as best effort: late, repeated, absent. Instance ids are read from the
detail, never from an ARN (the zone in it may be wrong).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from spotkeeper.domain.interruption import Interruption, InterruptionKind


class EventError(Exception):
    """An event of a known kind without its fields; names every wrong one."""


class _Detail(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Origin(BaseModel):
    """The source of an EventBridge event, whatever else is in it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str
    detail_type: Annotated[str, Field(alias="detail-type")]
    account: str


class _Envelope(_Origin):
    """What all events of known kinds share."""

    time: AwareDatetime
    detail: dict[str, Any]


InstanceId = Annotated[str, Field(pattern=r"^i-[0-9a-f]{8,17}$")]


class _InstanceDetail(_Detail):
    instance_id: Annotated[InstanceId, Field(alias="instance-id")]


class _StateDetail(_InstanceDetail):
    state: str


class _GroupDetail(_Detail):
    """A failed launch names no instance, or an empty one."""

    group: Annotated[str, Field(alias="AutoScalingGroupName", min_length=1)]
    instance_id: Annotated[
        str | None, Field(alias="EC2InstanceId", pattern=r"^(i-[0-9a-f]{8,17})?$")
    ] = None


class _Affected(_Detail):
    entity: Annotated[str, Field(alias="entityValue")]


class _HealthSubject(_Detail):
    """What an AWS Health event is about, which is mostly not EC2."""

    service: str
    category: Annotated[str, Field(alias="eventTypeCategory")]


class _HealthDetail(_Detail):
    status: Annotated[str, Field(alias="statusCode")] = "upcoming"
    starts: Annotated[str, Field(alias="startTime")]
    affected: Annotated[tuple[_Affected, ...], Field(alias="affectedEntities")] = ()


type _Reader = Callable[[_Envelope], Interruption | None]


def _of_instance(kind: InterruptionKind) -> _Reader:
    def read(event: _Envelope) -> Interruption:
        detail = _InstanceDetail.model_validate(event.detail)
        return Interruption(kind=kind, at=event.time, instance_ids=(detail.instance_id,))

    return read


def _of_group(kind: InterruptionKind) -> _Reader:
    def read(event: _Envelope) -> Interruption:
        detail = _GroupDetail.model_validate(event.detail)
        ids = (detail.instance_id,) if detail.instance_id else ()
        return Interruption(kind=kind, at=event.time, instance_ids=ids, group=detail.group)

    return read


# Other states tell a turn nothing: the group reports when an instance serves, and an instance that
# has ended stopped counting when it began to end.
_LEAVING_STATES = frozenset({"stopping", "shutting-down"})


def _state_change(event: _Envelope) -> Interruption | None:
    detail = _StateDetail.model_validate(event.detail)
    if detail.state not in _LEAVING_STATES:
        return None
    kind = InterruptionKind.STATE_CHANGE
    return Interruption(kind=kind, at=event.time, instance_ids=(detail.instance_id,))


def _scheduled_change(event: _Envelope) -> Interruption | None:
    subject = _HealthSubject.model_validate(event.detail)
    if (subject.service, subject.category) != ("EC2", "scheduledChange"):
        return None
    detail = _HealthDetail.model_validate(event.detail)
    ids = tuple(a.entity for a in detail.affected if a.entity.startswith("i-"))
    # AWS reports a change that is over or was called off once more, as closed.
    if not ids or detail.status == "closed":
        return None
    return Interruption(
        kind=InterruptionKind.SCHEDULED_CHANGE,
        at=event.time,
        instance_ids=ids,
        due=_health_time(detail.starts),
    )


def _health_time(text: str) -> datetime:
    """Read AWS Health's times, RFC 1123 or ISO; raises `EventError` for anything else."""
    try:
        at = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except (ValueError, OverflowError) as error:
        raise EventError(f"event AWS Health Event: startTime: {text!r} is no time") from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


_READERS: Mapping[tuple[str, str], _Reader] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): _of_instance(
        InterruptionKind.INTERRUPTION_WARNING
    ),
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): _of_instance(
        InterruptionKind.REBALANCE_RECOMMENDATION
    ),
    ("aws.ec2", "EC2 Instance State-change Notification"): _state_change,
    ("aws.autoscaling", "EC2 Instance Launch Unsuccessful"): _of_group(
        InterruptionKind.LAUNCH_UNSUCCESSFUL
    ),
    ("aws.autoscaling", "EC2 Instance Launch Successful"): _of_group(
        InterruptionKind.LAUNCH_SUCCESSFUL
    ),
    ("aws.autoscaling", "EC2 Instance Terminate Successful"): _of_group(
        InterruptionKind.TERMINATE_SUCCESSFUL
    ),
    ("aws.health", "AWS Health Event"): _scheduled_change,
}


def parse_event(event: object, account: str) -> Interruption | None:
    """Parse an EventBridge event; None for one of another account or an unknown kind.

    Raises `EventError` when it is no event, or a known kind lacks its fields.
    """
    kind = "of no known kind"
    try:
        origin = _Origin.model_validate(event)
        kind = origin.detail_type
        reader = _READERS.get((origin.source, origin.detail_type))
        if reader is None or origin.account != account:
            return None
        return reader(_Envelope.model_validate(event))
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(str(part) for part in e['loc']) or 'event'}: {e['msg']}"
            for e in error.errors()
        )
        raise EventError(f"event {kind}: {wrong}") from error


# A request for a minute's turns is of no use once the next minute has sent its own.
OF_USE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """The fleets whose turns an event asks for, None for all; `woken` counts wake-ups in a row."""

    fleets: frozenset[str] | None = None
    woken: int = 0


class _Message(BaseModel):
    """A message that asks for turns: a wake-up of one `fleet`, or a minute's turns of `fleets`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    fleet: str = ""
    fleets: tuple[str, ...] = ()
    minute: AwareDatetime | None = None
    woken: Annotated[int, Field(ge=0)] = 0


def turn_request(event: object, now: datetime) -> TurnRequest:
    """Read which turns an event asks for: all of them for a tick, or a message that is not ours.

    Messages of an earlier minute ask for none.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    bodies = [r.get("body", "") for r in records or () if isinstance(r, dict)]
    try:
        read = [_Message.model_validate_json(body) for body in bodies]
    except ValidationError:
        return TurnRequest()
    if not read:
        return TurnRequest()
    useful = [m for m in read if m.minute is None or (now - m.minute).total_seconds() < OF_USE_S]
    named = frozenset(name for m in useful for name in (m.fleet, *m.fleets) if name)
    return TurnRequest(fleets=named, woken=max((m.woken for m in useful), default=0))
