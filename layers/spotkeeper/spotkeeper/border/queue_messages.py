"""The messages of a batch, as SQS hands it to a function."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, Field, ValidationError

from spotkeeper.border import wrong_fields
from spotkeeper.border.events import EventError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A queue message; `sent_at` is the queue's own clock."""

    message_id: str
    body: str
    sent_at: datetime


class _Record(BaseModel):
    message_id: Annotated[str, Field(alias="messageId", min_length=1)]
    body: str
    sent_ms: Annotated[
        int, Field(validation_alias=AliasPath("attributes", "SentTimestamp"), ge=0, lt=2**43)
    ]


class _QueueEvent(BaseModel):
    records: Annotated[list[_Record], Field(alias="Records")]


def read_messages(event: Mapping[str, Any]) -> list[Message]:
    """Take the messages out of what SQS hands to a function; raises EventError otherwise."""
    try:
        records = _QueueEvent.model_validate(event).records
    except ValidationError as error:
        told = wrong_fields(error, "event")
        raise EventError(f"not an event of an SQS queue: {told}") from None
    return [
        Message(
            message_id=record.message_id,
            body=record.body,
            sent_at=_EPOCH + timedelta(milliseconds=record.sent_ms),
        )
        for record in records
    ]
