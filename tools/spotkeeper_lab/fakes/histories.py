"""The fake of the histories port, beside the others in `fakes`."""

from datetime import datetime

from spotkeeper.domain.load.history import LoadHistory


class FakeLoadHistories:
    """Load histories in memory, by fleet."""

    def __init__(self) -> None:
        """Begin empty."""
        self.items: dict[str, LoadHistory] = {}

    def read(self, fleet: str) -> LoadHistory:
        """Read a fleet's history; an empty one when there is none."""
        return self.items.get(fleet, LoadHistory())

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Keep a fleet's history."""
        del now
        self.items[fleet] = history
