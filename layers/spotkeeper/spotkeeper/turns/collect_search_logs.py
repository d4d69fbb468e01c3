"""The collecting turn: queue messages become digests in the load table.

Each message stands alone: one that cannot be read fails by itself, and one that is delivered
again, in the same batch or another, counts once. So does a log that several messages of a batch
have.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from spotkeeper.border.events import Message
from spotkeeper.border.search_log import Body, MessageRefused, read, unpacked_bytes, without_future
from spotkeeper.domain.availability.announcements import UNSENT_AT_MOST, Announcement, State
from spotkeeper.domain.load.digest import FleetBatch, NotDigestible, build_digest, fleet_batches
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.ports import FleetError, LoadTable, QueueLooks

type Add = Callable[[Sequence[LoadDigest]], Sequence[str]]
"""Stores or sends digests; returns the keys of those that were not taken."""

# A batch has up to 100 messages of `MAX_LOGS` each, and the function 512 MB of memory.
BATCH_LOGS = 100_000
TOO_MANY = f"the batch holds over {BATCH_LOGS} logs; the largest messages are delivered again"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """The result of a batch: why messages failed, by message id, and the counts by fleet.

    `left_out` has, by message id, why single logs of messages that were read do not count.
    `looks_unkept` says why agents' looks were not kept, whose messages count all the same.
    """

    refused: Mapping[str, str]
    unstored: Mapping[str, str]
    counts: Mapping[str, Mapping[str, int]]
    left_out: Mapping[str, tuple[str, ...]]
    looks_unkept: str = ""
    troubles: tuple[Announcement, ...] = ()
    """What agents tell operators."""

    @property
    def failed(self) -> dict[str, str]:
        """Why messages must be delivered again, by message id."""
        return {**self.refused, **self.unstored}


@dataclass(frozen=True, slots=True)
class _Sent:
    """A digest, the messages of the batch that carry its logs, and whether it repeats others'."""

    digest: LoadDigest
    message_ids: tuple[str, ...]
    repeats: bool


def collect(
    messages: Sequence[Message],
    table: LoadTable,
    known_fleets: Collection[str],
    default_fleet: str,
    looks: QueueLooks | None = None,
    home: Add | None = None,
) -> CollectReport:
    """Read, sum up and store a batch; logs that name no fleet belong to `default_fleet`.

    A log counts once, in whichever messages of the batch it is. The largest messages of a batch
    that holds over `BATCH_LOGS` are delivered again. `looks` is where agents' looks at request
    queues are kept, `home` where a region sends what it has stored.
    """
    refused: dict[str, str] = {}
    unstored: dict[str, str] = {}
    left_out: dict[str, tuple[str, ...]] = {}
    noted: dict[str, tuple[Message, Body]] = {}
    equal: defaultdict[tuple[str, str], list[tuple[FleetBatch, str]]] = defaultdict(list)
    left = BATCH_LOGS
    for message in sorted(messages, key=lambda message: unpacked_bytes(message.body)):
        if left <= 0:
            unstored[message.message_id] = TOO_MANY
            continue
        try:
            body = without_future(read(message.body), message.sent_at)
            batches = fleet_batches(body.logs, message.sent_at, default_fleet) if body.logs else []
            for each in batches:
                if each.fleet not in known_fleets:
                    known = ", ".join(sorted(known_fleets)) or "none"
                    why = f"fleet: {each.fleet} has no fleet document; known are {known}"
                    raise MessageRefused(why)
        except (MessageRefused, NotDigestible) as error:
            refused[message.message_id] = str(error)
            continue
        left -= len(body.logs)
        if left < 0:
            unstored[message.message_id] = TOO_MANY
            continue
        if body.left_out:
            left_out[message.message_id] = body.left_out
        if body.notes:
            noted.setdefault(message.body, (message, body))
        for each in batches:
            equal[each.fleet, each.content].append((each, message.message_id))
    sent = _digests(equal.values())
    unstored |= _store(sent, table.add, "the load table")
    if home:
        new = [each for each in sent if unstored.keys().isdisjoint(each.message_ids)]
        unstored |= _store(new, home, "its home's queue")
    left_out = {i: why for i, why in left_out.items() if i not in unstored}
    stored_messages = [each for each in noted.values() if each[0].message_id not in unstored]
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for stored in sent:
        if unstored.keys().isdisjoint(stored.message_ids):
            digest = stored.digest
            counts[digest.fleet].update({
                "SearchLogs": digest.count + digest.late,
                "LateSearchLogs": digest.late,
                "ClockSkewed": digest.skewed,
                "DuplicateMessages": len(stored.message_ids) - 1 + stored.repeats,
            })  # fmt: skip
            # Logs that are not in the load count as lost.
            _add(counts, digest.fleet, SearchLogsLost=digest.late)
    troubles: list[Announcement] = []
    for message, body in stored_messages:
        for named, note in body.notes:
            fleet = named if named in known_fleets else default_fleet
            if note.trouble:
                troubles.append(
                    Announcement(
                        fleet=fleet,
                        state=State.COMMAND_FAILED,
                        at=message.sent_at,
                        reason=note.trouble,
                    )
                )
            lost = note.lost + note.refused
            _add(counts, fleet, SearchLogsLost=lost, SearchLogsClamped=note.clamped)
    wrong = sum(map(len, left_out.values()))
    _add(counts, default_fleet, SearchLogsRefused=wrong, SearchLogsLost=wrong)
    _add(counts, default_fleet, MessagesRefused=len(refused))
    return CollectReport(
        refused=refused,
        unstored=unstored,
        counts=counts,
        left_out=left_out,
        looks_unkept=_keep_looks(stored_messages, looks) if looks is not None else "",
        troubles=tuple(troubles[:UNSENT_AT_MOST]),
    )


def receive(
    messages: Sequence[Message], table: LoadTable, unpacked: Callable[[str], Sequence[LoadDigest]]
) -> CollectReport:
    """Store what collectors of other regions have counted: at home it stays apart by region."""
    sent, refused = list[_Sent](), dict[str, str]()
    for message in messages:
        try:
            digests = unpacked(message.body)
        except FleetError as error:
            refused[message.message_id] = str(error)
        else:
            sent += [_Sent(digest, (message.message_id,), repeats=False) for digest in digests]
    unstored = _store(sent, table.add, "the load table")
    return CollectReport(refused=refused, unstored=unstored, counts={}, left_out={})


def _add(counts: defaultdict[str, Counter[str]], fleet: str, **more: int) -> None:
    """Count for a fleet what is not zero."""
    for name, count in more.items():
        if count:
            counts[fleet][name] += count


def _keep_looks(stored_messages: Sequence[tuple[Message, Body]], looks: QueueLooks) -> str:
    """Store the newest length of each queue; return the error, or an empty text."""
    notes = [(note, message) for message, body in stored_messages for _, note in body.notes]
    seen = [look for note, message in notes if (look := note.look(message.sent_at))]
    try:
        if seen:
            looks.keep({url: length for url, length, _ in sorted(seen, key=itemgetter(2))})
    except FleetError as error:
        return str(error)
    return ""


def _digests(equal: Iterable[Sequence[tuple[FleetBatch, str]]]) -> list[_Sent]:
    """Build digests of the first sent of equal batches, each without what one sent earlier has.

    So neither the batch's order nor repeated logs matter.
    """
    counted: defaultdict[str, set[str]] = defaultdict(set)
    firsts = [
        (min((each for each, _ in same), key=_order), tuple(message_id for _, message_id in same))
        for same in equal
    ]
    sent: list[_Sent] = []
    for batch, message_ids in sorted(firsts, key=lambda each: _order(each[0])):
        before = counted[batch.fleet]
        repeats = not before.isdisjoint(batch.spans)
        sent.append(_Sent(build_digest(batch, before), message_ids, repeats))
        before.update(batch.spans)
    return sent


def _order(batch: FleetBatch) -> tuple[datetime, str]:
    return batch.sent_at, batch.content


def _store(sent: Sequence[_Sent], add: Add, what: str) -> dict[str, str]:
    """Store or send digests; returns why, by message id, for those that could not be."""
    why = f"{what} did not take it after several tries; it will be delivered again"
    try:
        left = set(add([each.digest for each in sent])) if sent else set[str]()
    except FleetError as error:
        left, why = {each.digest.key for each in sent}, str(error)
    return {i: why for each in sent if each.digest.key in left for i in each.message_ids}
