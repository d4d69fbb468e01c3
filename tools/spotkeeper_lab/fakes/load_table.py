"""The fake of the load table: digests in memory."""

from collections.abc import Sequence
from datetime import datetime

from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.slots import slot_begins, slot_of


class FakeLoadTable:
    """Load digests in memory, by fleet and key."""

    def __init__(self) -> None:
        """Begin empty."""
        self.items: dict[tuple[str, str], LoadDigest] = {}

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Store digests; all of them always can be."""
        self.items |= {(digest.fleet, digest.key): digest for digest in digests}
        return ()

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read a fleet's digests from the slot of an instant on, oldest first."""
        first = sent_iso(slot_begins(slot_of(since)))
        keys = sorted(key for name, key in self.items if name == fleet and key >= first)
        return tuple(self.items[fleet, key] for key in keys)
