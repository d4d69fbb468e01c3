"""The way of events from the cloud to the rules, which can be bad for a while."""

import random
from collections.abc import Callable

from spotkeeper_lab.endpoint.faults.values import Delivery, Events
from spotkeeper_lab.local_aws.events import Event


class Deliveries:
    """Passes events on; `seconds` is the lab's clock."""

    def __init__(self, seconds: Callable[[], float], seed: int = 0) -> None:
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._ordered: Events | None = None
        self._until_s = 0.0
        self._held: list[tuple[float, Event]] = []

    def order(self, fault: Events) -> None:
        """Let the way be bad from now on."""
        self._ordered = fault
        self._until_s = self._seconds() + fault.for_s

    def on_their_way(self, events: list[Event]) -> list[Event]:
        """What arrives now, of these and of those that were held before."""
        now_s = self._seconds()
        arrived = [event for due_s, event in self._held if due_s <= now_s]
        self._held = [(due_s, event) for due_s, event in self._held if due_s > now_s]
        bad = self._ordered if now_s < self._until_s else None
        for event in events:
            arrived.extend(self._passed(event, bad, now_s))
        return arrived

    def _passed(self, event: Event, bad: Events | None, now_s: float) -> list[Event]:
        match bad:
            case None:
                return [event]
            case Events(delivery=Delivery.NEVER):
                return []
            case Events(delivery=Delivery.TWICE):
                return [event, event]
            case Events(delivery=Delivery.LATE):
                self._held.append((now_s + bad.late_s, event))
            case Events(delivery=Delivery.SHUFFLED):
                self._held.append((now_s + self._chance.uniform(0.0, bad.late_s), event))
        return []
