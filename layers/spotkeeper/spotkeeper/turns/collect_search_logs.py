"""The collecting turn: queue messages become digests in the load table.

Each message stands alone: one that cannot be read fails by itself, and one that is delivered
again, in the same batch or another, counts once. So does a log that several messages of a batch
have.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.border.queue_messages import Message
from spotkeeper.border.search_log import Body, MessageRefused, read, unpacked_bytes, without_future
from spotkeeper.domain.load.digest import (
    FleetBatch,
    NotDigestible,
    SearchLog,
    build_digest,
    fleet_batches,
)
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.request_queue import QueueLook
from spotkeeper.ports import FleetError, LoadTable, QueueLooks

# A batch has up to 100 messages of `MAX_LOGS` each, and the function 512 MB of memory.
BATCH_LOGS = 100_000
TOO_MANY = f"the batch holds over {BATCH_LOGS} logs; the largest messages are delivered again"


class NotStored(Exception):
    """A message whose digest the load table did not take; it is worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """What became of a batch: why messages failed, by message id, and the counts by fleet.

    `left_out` has, by message id, why single logs of messages that were read do not count.
    `looks_unkept` says why agents' looks were not kept, whose messages count all the same.
    """

    refused: Mapping[str, str]
    unstored: Mapping[str, str]
    counts: Mapping[str, Mapping[str, int]]
    left_out: Mapping[str, tuple[str, ...]]
    looks_unkept: str = ""

    def settle(self, message_id: str) -> None:
        """Return if the message is done with; raises MessageRefused or NotStored if not."""
        if message_id in self.refused:
            raise MessageRefused(self.refused[message_id])
        if message_id in self.unstored:
            raise NotStored(self.unstored[message_id])


@dataclass(frozen=True, slots=True)
class _Sent:
    """A digest, the messages of the batch that carry its logs, and whether it repeats others'."""

    digest: LoadDigest
    message_ids: tuple[str, ...]
    repeats: bool

    @property
    def duplicates(self) -> int:
        return len(self.message_ids) - 1 + self.repeats


def collect(
    messages: Sequence[Message],
    table: LoadTable,
    known_fleets: Collection[str],
    default_fleet: str,
    looks: QueueLooks | None = None,
) -> CollectReport:
    """Read, sum up and store a batch; logs that name no fleet belong to `default_fleet`.

    A log counts once, in whichever messages of the batch it is. The largest messages of a batch
    that holds over `BATCH_LOGS` are delivered again. `looks` is where agents' looks at request
    queues are kept.
    """
    refused: dict[str, str] = {}
    too_many: dict[str, str] = {}
    left = BATCH_LOGS
    left_out: dict[str, tuple[str, ...]] = {}
    noted: dict[str, tuple[Message, Body]] = {}
    read_well: defaultdict[tuple[str, str], list[tuple[FleetBatch, str]]] = defaultdict(list)
    for message in sorted(messages, key=lambda message: unpacked_bytes(message.body)):
        if left <= 0:
            too_many[message.message_id] = TOO_MANY
            continue
        try:
            body = without_future(read(message.body), message.sent_at)
            found = _batches(body.logs, message.sent_at, known_fleets, default_fleet)
        except (MessageRefused, NotDigestible) as error:
            refused[message.message_id] = str(error)
        else:
            left -= len(body.logs)
            if left < 0:
                too_many[message.message_id] = TOO_MANY
                continue
            if body.left_out:
                left_out[message.message_id] = body.left_out
            if body.notes:
                noted.setdefault(message.body, (message, body))
            for each in found:
                read_well[each.fleet, each.content].append((each, message.message_id))
    sent = _digests(read_well.values())
    unstored = too_many | _store(sent, table)
    stored = [each for each in sent if not unstored.keys() & set(each.message_ids)]
    done = {message_id: why for message_id, why in left_out.items() if message_id not in unstored}
    told = [each for each in noted.values() if each[0].message_id not in unstored]
    return CollectReport(
        refused=refused,
        unstored=unstored,
        counts=_counts(stored, told, len(refused), sum(map(len, done.values())), default_fleet),
        left_out=done,
        looks_unkept=_keep_looks(told, looks) if looks is not None else "",
    )


def _keep_looks(told: Sequence[tuple[Message, Body]], looks: QueueLooks) -> str:
    """Keep the newest look at each queue; answers why that did not work."""
    found = [
        look
        for message, body in told
        for _, note in body.notes
        if (look := note.look(message.sent_at)) is not None
    ]
    newest: dict[str, QueueLook] = {look.url: look for look in sorted(found, key=_seen_at)}
    try:
        if newest:
            looks.keep(list(newest.values()))
    except FleetError as error:
        return str(error)
    return ""


def _seen_at(look: QueueLook) -> datetime:
    assert look.length.seen_at is not None
    return look.length.seen_at


def _batches(
    logs: Sequence[SearchLog],
    sent_at: datetime,
    known_fleets: Collection[str],
    default_fleet: str,
) -> Sequence[FleetBatch]:
    found = fleet_batches(logs, sent_at, default_fleet) if logs else []
    for each in found:
        if each.fleet not in known_fleets:
            raise MessageRefused(
                f"fleet: {each.fleet} has no fleet document; known are "
                f"{', '.join(sorted(known_fleets)) or 'none'}"
            )
    return found


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


def _store(sent: Sequence[_Sent], table: LoadTable) -> dict[str, str]:
    """Store digests; answers why, by message id, for those that could not be stored."""
    try:
        left = set(table.add([each.digest for each in sent])) if sent else set()
    except FleetError as error:
        return {message_id: str(error) for each in sent for message_id in each.message_ids}
    why = "the load table did not take it after several tries; it will be delivered again"
    return {
        message_id: why
        for each in sent
        if each.digest.key in left
        for message_id in each.message_ids
    }


def _counts(
    stored: Sequence[_Sent],
    told: Sequence[tuple[Message, Body]],
    refused: int,
    left_out: int,
    default_fleet: str,
) -> dict[str, Counter[str]]:
    """Count logs and messages by fleet; refused messages count for the default fleet.

    Lost logs are those that the load lacks: agents dropped them, they arrived too late to matter,
    or they were left out.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    more: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in stored:
        found = each.digest
        counts[found.fleet].update({
            "SearchLogs": found.count + found.late,
            "LateSearchLogs": found.late,
            "ClockSkewed": found.skewed,
            "DuplicateMessages": each.duplicates,
        })  # fmt: skip
        more[found.fleet]["SearchLogsLost"] += found.late
    for _, body in told:
        for fleet, note in body.notes:
            more[fleet or default_fleet]["SearchLogsLost"] += note.lost + note.refused
            more[fleet or default_fleet]["SearchLogsClamped"] += note.clamped
    more[default_fleet]["MessagesRefused"] += refused
    more[default_fleet]["SearchLogsRefused"] += left_out
    more[default_fleet]["SearchLogsLost"] += left_out
    for fleet, others in more.items():
        if any(others.values()):
            counts[fleet].update(+others)
    return dict(counts)
