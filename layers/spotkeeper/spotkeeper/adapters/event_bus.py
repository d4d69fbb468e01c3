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
        with aws_errors("sending events"):
            entries = [self._entry(each) for each in announcements]
            answer = self._events().put_events(Entries=entries)
        if answer["FailedEntryCount"]:
            failed = (e for e in answer["Entries"] if e.get("ErrorCode"))
            told = "; ".join(f"{e.get('ErrorCode')}: {e.get('ErrorMessage', '')}" for e in failed)
            raise Unavailable(f"sending events: {told}")

    def _entry(self, announcement: Announcement) -> "PutEventsRequestEntryTypeDef":
        detail = {
            "version": VERSION,
            "id": announcement.id,
            "stack": self._stack,
            "fleet": announcement.fleet,
            "state": announcement.state,
            "at": announcement.at.isoformat(),
            "reason": announcement.reason,
            "permission": announcement.permission,
        }
        return {
            "EventBusName": self._bus,
            "Source": SOURCE,
            "DetailType": announcement.state,
            "Time": announcement.at,
            "Detail": json.dumps(detail),
        }
