"""Events out: changes of a fleet's state on an EventBridge bus (docs/events.md)."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.availability.announcements import Announcement
from spotkeeper.ports import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_events.type_defs import PutEventsRequestEntryTypeDef

SOURCE = "spotkeeper"
VERSION = 1


class EventBus:
    """The announcements port on an event bus."""

    def __init__(self, events: "Callable[[], EventBridgeClient]", bus: str, stack: str) -> None:
        """Take what makes a typed client, as most turns need none; the bus and the stack's name."""
        self._events = events
        self._bus = bus
        self._stack = stack

    def send(self, announcements: Sequence[Announcement]) -> None:
        """Put up to ten events on the bus in one call; raises unless it has them all."""
        entries: list[PutEventsRequestEntryTypeDef] = []
        for each in announcements:
            detail = {
                "version": VERSION,
                "id": each.id,
                "stack": self._stack,
                "fleet": each.fleet,
                "state": each.state,
                "at": each.at.isoformat(),
                "reason": each.reason,
                "permission": each.permission,
                **({"region": each.region} if each.region else {}),
            }
            entries.append({
                "EventBusName": self._bus, "Source": SOURCE, "DetailType": each.state,
                "Time": each.at, "Detail": json.dumps(detail),
            })  # fmt: skip
        with aws_errors("sending events"):
            answer = self._events().put_events(Entries=entries)
        if answer["FailedEntryCount"]:
            failed = (e for e in answer["Entries"] if e.get("ErrorCode"))
            why = "; ".join(f"{e.get('ErrorCode')}: {e.get('ErrorMessage', '')}" for e in failed)
            raise Unavailable(f"sending events: {why}")
