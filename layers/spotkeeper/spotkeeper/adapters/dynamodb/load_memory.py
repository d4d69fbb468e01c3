"""What a warm function remembers of one fleet's load: the digests that it read, added up by slot.

It is worth as much as a new reading (decision 6); nothing here outlives the function, and nothing
is kept longer than the requested window.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

from spotkeeper.domain.load.digest import merge
from spotkeeper.domain.load.load import LoadDigest, slot_of


class OutOfOrder(Exception):
    """Logs arrived that were sent before an equal copy that is counted; read everything anew."""


class LoadMemory:
    """The digests that were sent in the slot `first` or later, each once.

    Of equal logs the first sent counts; later copies wait until it is no longer in the window.
    """

    def __init__(self, first: int) -> None:
        """Begin empty."""
        self.first = first
        self._items: defaultdict[int, set[str]] = defaultdict(set)
        self._keys: defaultdict[int, set[str]] = defaultdict(set)
        self._sums: dict[int, LoadDigest] = {}
        self._counted: dict[str, str] = {}
        self._waiting: list[LoadDigest] = []

    def sums(self) -> tuple[LoadDigest, ...]:
        """Return the digests added up by slot, oldest first."""
        return tuple(self._sums[slot] for slot in sorted(self._sums))

    def newest(self) -> int:
        """Return the slot of the newest digest; `first` without any."""
        return max(self._items, default=self.first)

    def count_before(self, slot: int) -> int:
        """Count the items that were sent before a slot."""
        return sum(len(items) for at, items in self._items.items() if at < slot)

    def digests_before(self, slot: int) -> int:
        """Count the digests that were sent before a slot."""
        return sum(len(keys) for at, keys in self._keys.items() if at < slot)

    def items_since(self, slot: int) -> set[str]:
        """Return the keys of the items that were sent in a slot or later."""
        return set[str]().union(*(items for at, items in self._items.items() if at >= slot))

    def add(self, items: Iterable[tuple[str, Sequence[LoadDigest]]]) -> None:
        """Add items that are not known, each the digests of one slot, in the order of their keys.

        Raises OutOfOrder, after which this memory is of no use.
        """
        for slot, sent in groupby(items, lambda item: slot_of(item[1][0].sent_at)):
            digests: list[LoadDigest] = []
            for key, some in sent:
                self._items[slot].add(key)
                digests += some
            self._add(slot, digests)

    def _add(self, slot: int, digests: Iterable[LoadDigest]) -> None:
        """Add digests of a slot, each key once: a message delivered twice is in two items."""
        once = {one.key: one for one in digests if one.key not in self._keys[slot]}
        new = [once[key] for key in sorted(once) if self._counts(once[key], slot)]
        if new:
            known = [self._sums[slot]] if slot in self._sums else []
            self._sums[slot] = merge([*known, *new])

    def _counts(self, one: LoadDigest, slot: int) -> bool:
        """Remember a digest's key; returns whether its logs are new."""
        self._keys[slot].add(one.key)
        first = self._counted.setdefault(one.content, one.key)
        if first > one.key:
            raise OutOfOrder
        if first < one.key:
            self._waiting.append(one)
        return first == one.key

    def forget_before(self, slot: int) -> None:
        """Move the window's beginning; copies of what goes count from now on."""
        self.first = slot
        gone = [at for at in self._items if at < slot]
        for at in gone:
            del self._items[at]
            keys = self._keys.pop(at, set())
            self._sums.pop(at, None)
            for content in (key.rpartition("#")[2] for key in keys):
                if self._counted.get(content) in keys:
                    del self._counted[content]
        if gone and self._waiting:
            waiting = [one for one in self._waiting if slot_of(one.sent_at) >= slot]
            self._waiting = []
            for one in waiting:
                self._keys[slot_of(one.sent_at)].discard(one.key)
            for at in sorted({slot_of(one.sent_at) for one in waiting}):
                self._add(at, [one for one in waiting if slot_of(one.sent_at) == at])
