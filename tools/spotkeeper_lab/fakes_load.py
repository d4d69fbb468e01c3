"""A load table in memory."""

from collections.abc import Sequence
from datetime import datetime

from spotkeeper.domain.digest import sent_iso
from spotkeeper.domain.load import LoadDigest


class FakeLoadTable:
    """The load port on a dictionary by fleet and key."""

    def __init__(self) -> None:
        """Begin empty."""
        self.items: dict[tuple[str, str], LoadDigest] = {}

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Store digests; all of them always can be."""
        self.items |= {(digest.fleet, digest.key): digest for digest in digests}
        return ()

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read a fleet's digests that were sent since an instant, oldest first."""
        first = sent_iso(since)
        keys = sorted(key for name, key in self.items if name == fleet and key >= first)
        return tuple(self.items[fleet, key] for key in keys)
