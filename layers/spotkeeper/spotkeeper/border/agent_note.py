"""What the agent of a machine reports beside the search logs: the field `agent` of one of them.

It counts the logs that the machine lost, clamped or refused since its last message, and may carry a
look at a request queue that only the machine reaches. Where there was no log to send, a message may
be such a note alone: {"version": 1, "agent": {...}}.
"""

from datetime import datetime, timedelta
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from spotkeeper.domain.load.request_queue import RABBITMQ, REDIS, QueueLength, QueueLook

_STRICT = ConfigDict(strict=True, extra="ignore")
_Count = Annotated[int, Field(ge=0, le=10**9)]
# An older look is not used; one without a time has that of the calendar's first day.
_OLD = timedelta(days=1)
_Name = Annotated[str, Field(min_length=1, max_length=255)]


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _Queue:
    """A look at a queue: its ready messages, and those that workers have received.

    The `vhost` of a queue in Redis is the number of its database.
    """

    kind: Literal["rabbitmq", "redis"] = "rabbitmq"
    vhost: _Name
    name: _Name
    ready: _Count
    unacknowledged: _Count
    at: AwareDatetime


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class AgentNote:
    """Logs that a machine lost, clamped and refused since its last message, and its look."""

    lost: _Count = 0
    clamped: _Count = 0
    refused: _Count = 0
    queue: _Queue | None = None

    def look(self, sent_at: datetime) -> QueueLook | None:
        """Return the look unless it is old; a time after `sent_at` is replaced by `sent_at`."""
        found = self.queue
        if found is None or sent_at - found.at > _OLD:
            return None
        scheme = REDIS if found.kind == "redis" else RABBITMQ
        url = f"{scheme}{quote(found.vhost, safe='')}/{quote(found.name, safe='')}"
        return QueueLook(
            url=url,
            length=QueueLength(
                waiting=found.ready,
                in_flight=found.unacknowledged,
                seen_at=min(found.at, sent_at),
            ),
        )


@checked_dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class _Alone:
    """A message without a log."""

    version: Annotated[int, Field(ge=1, le=1)]
    agent: AgentNote


_ALONE = TypeAdapter(Annotated[list[_Alone], Field(min_length=1)])


def read_alone(listed: bytes) -> tuple[AgentNote, ...]:
    """Read notes without any log; return nothing if the list holds anything else."""
    if b'"request_id"' in listed:
        return ()
    try:
        return tuple(each.agent for each in _ALONE.validate_json(listed))
    except ValidationError:
        return ()
