"""The load table: one DynamoDB item for the messages of a batch that were sent in one slot.

    pk load#FLEET  sk SENT_ISO_MS#HASH       digest <packed>   expires_at <epoch s>
    pk load#FLEET  sk SENT_ISO_MS*HASH_OF_KEYS  digests <packed>  expires_at <epoch s>

The first form has one message's digest (its key may read SENT_ISO_MS!HASH_OF_THE_REST#HASH,
without logs that another message of its batch has), the second those of several, each with its key.
Nothing is read to write; a message that is delivered again with others is in two items and has one
key, and the reader takes each key once. What was read is remembered, and read again only where the
table counts otherwise (decision 6). Cost at public prices (us-east-1, 2025: SQS 0.40 USD per
million requests; Lambda arm64 0.0000133334 USD/GB-s and 0.20 per million calls; DynamoDB on demand
0.625 USD per million writes of up to 1 KB): 500 logs of a worker pack into one write, and so do the
20 logs of each of ten workers.
"""

import json
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from spotkeeper.adapters.dynamodb.load_memory import LoadMemory, OutOfOrder
from spotkeeper.adapters.table import LAST, Item, Items, encoded, epoch, key
from spotkeeper.domain.load.digest import sent_at, sent_iso
from spotkeeper.domain.load.load import (
    Cluster,
    Histogram,
    LoadDigest,
    WorkerDigest,
    instant,
    milliseconds,
    slot_begins,
    slot_of,
)
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# The longest window, of requests that take an hour, is 2 h 15 min.
DIGEST_LIFETIME = timedelta(hours=3)
# DynamoDB's items have 400 KB at most; a worker's logs in a message, packed, 2 KB at the very most,
# where it was busy in 90 slots.
_WORKERS_AN_ITEM, _SLOTS_A_WORKER = 150, 90
# Seconds between tries to write what DynamoDB left unprocessed.
_PAUSES_S = (0.05, 0.1, 0.2)
# Read anew each time: messages of the last slots may still be on their way to the table.
_RECENT_SLOTS = 3
# From this many digests on, counting is cheaper than reading.
_WORTH_COUNTING = 1_000


class LoadDigestTable(Items):
    """The load port on a DynamoDB table."""

    def __init__(
        self,
        dynamodb: "DynamoDBClient",
        table: str,
        sleep: Callable[[float], None] = time.sleep,
        worth_counting: int = _WORTH_COUNTING,
    ) -> None:
        """Take a typed client and the table's name; nothing is called yet.

        Fewer digests than `worth_counting` are read anew each time, and what is new is added.
        """
        super().__init__(dynamodb, table)
        self._sleep = sleep
        self._worth_counting = worth_counting
        self._memories: dict[str, LoadMemory] = {}

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        """Store digests, idempotently by key; returns the keys that could not be stored."""
        once = {(digest.fleet, digest.key): digest for digest in digests}
        items = [(pack(*some), some) for some in by_item(once.values())]
        puts: list[Any] = [{"PutRequest": {"Item": item}} for item, _ in items]
        for pause_s in (0.0, *_PAUSES_S):
            if pause_s and puts:
                self._sleep(pause_s)
            puts = self._write_some("writing to the load table", puts)
        left = {_key(put["PutRequest"]["Item"]) for put in puts}
        return [digest.key for item, some in items if _key(item) in left for digest in some]

    def since(self, fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read a fleet's digests from the slot of an instant on, added up by slot, oldest first.

        What an earlier call read is not read again, as long as the table still counts as many.
        Raises `Unreadable` for an item that no release of this format wrote.
        """
        first = slot_of(since)
        # Out of its place until it is whole: an error on the way must not leave half of it.
        memory = self._memories.pop(fleet, None)
        if memory is None or not self._caught_up(fleet, memory, first):
            memory = LoadMemory(first)
            memory.add(self._digests(fleet, self._items(fleet, first)))
        self._memories[fleet] = memory
        return memory.sums()

    def _caught_up(self, fleet: str, memory: LoadMemory, first: int) -> bool:
        """Add what is new to a memory; False where it is not what is in the table."""
        if memory.first > first:
            return False
        memory.forget_before(first)
        recent = memory.newest() - _RECENT_SLOTS
        counted = memory.digests_before(recent) >= self._worth_counting
        begin = recent if counted else first
        items = {_key(item): item for item in self._items(fleet, begin)}
        if counted and self._count(fleet, first, recent) != memory.count_before(recent):
            # Something arrived late; the keys alone do not show what.
            return False
        known = memory.items_since(begin)
        try:
            memory.add(self._digests(fleet, (i for key, i in items.items() if key not in known)))
        except OutOfOrder:
            return False
        return known <= items.keys()

    def _digests(
        self, fleet: str, items: Iterable[Item]
    ) -> Iterator[tuple[str, Sequence[LoadDigest]]]:
        """Read what is in items, each with the item's key."""
        for item in items:
            try:
                yield _key(item), unpack(fleet, item)
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                message = f"the load item {_key(item)} cannot be read ({error}): delete it, or wait"
                raise Unreadable(f"{message} three hours") from error

    def _items(self, fleet: str, first: int) -> Iterator[Item]:
        """Read the items from a slot on, in the order of their keys."""
        return self._query(
            *_load_of(fleet),
            _beginning(first),
            LAST,
            # What else is in an item costs as much time to parse as these two.
            ProjectionExpression="sk, #digest, #digests",
            ExpressionAttributeNames={"#digest": "digest", "#digests": "digests"},
        )

    def _count(self, fleet: str, first: int, stop: int) -> int:
        """Count the items from a slot on and before another; no key equals a slot's beginning."""
        between = (_beginning(first), _beginning(stop))
        pages = self._pages(*_load_of(fleet), *between, Select="COUNT")
        return sum(page["Count"] for page in pages)


def _load_of(fleet: str) -> tuple[str, str]:
    return f"reading the load of fleet {fleet}", f"load#{fleet}"


def _key(item: Item) -> str:
    return str(item["sk"]["S"])


def by_item(
    digests: Iterable[LoadDigest], workers: int = _WORKERS_AN_ITEM
) -> Iterator[Sequence[LoadDigest]]:
    """Put together what one item holds: one fleet and slot, and so few workers that they fit."""
    slots: defaultdict[tuple[str, int], list[LoadDigest]] = defaultdict(list)
    for digest in digests:
        slots[digest.fleet, slot_of(digest.sent_at)].append(digest)
    for some in slots.values():
        some.sort(key=lambda digest: digest.key)
        sums = accumulate(map(_size, some))
        for _, same in groupby(zip(some, sums, strict=True), lambda each: each[1] // workers):
            yield [digest for digest, _ in same]


def _size(digest: LoadDigest) -> int:
    """Return the workers of 90 slots that are as large as a digest."""
    return sum(max(1, -(-len(one.busy_ms) // _SLOTS_A_WORKER)) for one in digest.workers)


def _beginning(slot: int) -> str:
    return sent_iso(slot_begins(slot))


# --- an item: the digests of one message, or of several of one slot, packed -----------------------


def pack(*digests: LoadDigest) -> Item:
    """Make the item of digests of one fleet and slot, in the order of their keys; at least one.

    500 logs of one worker stay below 1 KB, the unit of writing, as do 20 logs of each of ten.
    """
    first = digests[0]
    name, sk, values = "digest", first.key, _flat_digest(first)
    if len(digests) > 1:
        keys = "\0".join(digest.key for digest in digests)
        sk = f"{sent_iso(first.sent_at)}*{sha256(keys.encode()).hexdigest()[:16]}"
        name, values = "digests", [[digest.key, *_flat_digest(digest)] for digest in digests]
    packed = zlib.compress(json.dumps(values, separators=(",", ":")).encode())
    expires_at = epoch(max(digest.sent_at for digest in digests) + DIGEST_LIFETIME)
    return key(f"load#{first.fleet}", sk) | encoded({name: packed, "expires_at": expires_at})


def _flat_digest(digest: LoadDigest) -> list[Any]:
    waits, service = (
        [histogram.total_ms, histogram.squares, _flat(histogram.counts)]
        for histogram in (digest.waits, digest.service)
    )
    workers = [
        [
            worker.worker_id,
            worker.instance_id,
            worker.ok,
            worker.failed,
            0,  # Earlier releases count timeouts apart.
            milliseconds(worker.last_finished),
            _flat(worker.busy_ms),
        ]
        for worker in digest.workers
    ]
    # In the order of `arrivals`, which has the same slots.
    work_ms = [digest.work_ms[slot] for slot in sorted(digest.work_ms)]
    start = None if digest.newest_start is None else milliseconds(digest.newest_start)
    sums = [digest.count, digest.late, digest.skewed, _flat(digest.arrivals), waits, service]
    return [*sums, workers, work_ms, start, digest.newest_wait_ms]


def unpack(fleet: str, item: Item) -> Sequence[LoadDigest]:
    """Read a fleet's digests from their item."""
    if "digests" in item:
        several = from_json(zlib.decompress(item["digests"]["B"]))
        return [_digest(fleet, key, values) for key, *values in several]
    return [_digest(fleet, item["sk"]["S"], from_json(zlib.decompress(item["digest"]["B"])))]


def _digest(fleet: str, key: str, values: Sequence[Any]) -> LoadDigest:
    count, late, skewed, arrivals, waits, service, workers, *newer = values
    # What was stored before a release that added these lives on for two hours.
    work_ms, newest_start, newest_wait_ms = newer or ((), None, 0)
    counts = _mapping(arrivals)
    return LoadDigest(
        fleet=fleet,
        key=key,
        sent_at=sent_at(key),
        count=count,
        late=late,
        skewed=skewed,
        arrivals=counts,
        waits=_histogram(*waits),
        service=_histogram(*service),
        workers=tuple(
            WorkerDigest(
                worker_id=worker_id,
                cluster=Cluster.AWS if instance_id else Cluster.ONPREM,
                instance_id=instance_id,
                ok=ok,
                failed=error + timeout,
                last_finished=instant(last_ms),
                busy_ms=_mapping(busy_ms),
            )
            for worker_id, instance_id, ok, error, timeout, last_ms, busy_ms in workers
        ),
        work_ms=dict(zip(counts, work_ms, strict=False)),
        newest_start=None if newest_start is None else instant(newest_start),
        newest_wait_ms=newest_wait_ms,
    )


def _flat(counts: Mapping[int, int]) -> list[int]:
    """Keys as steps from one to the next, each followed by its value: small numbers pack well."""
    keys = sorted(counts)
    steps = [after - before for before, after in pairwise([0, *keys])]
    return [number for step, key in zip(steps, keys, strict=True) for number in (step, counts[key])]


def _mapping(flat: Sequence[int]) -> dict[int, int]:
    return dict(zip(accumulate(flat[::2]), flat[1::2], strict=True))


def _histogram(total_ms: int, squares: int, counts: Sequence[int]) -> Histogram:
    return Histogram(counts=_mapping(counts), total_ms=total_ms, squares=squares)
