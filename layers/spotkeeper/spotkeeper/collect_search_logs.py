"""The collecting turn: queue messages become digests in the load table.

Each message stands alone: one that cannot be read fails by itself, and one that is delivered
again, in the same batch or another, counts once. So does a log that several messages of a batch
have.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.load.digest import NotDigestible, Parcel, parcels, summed_up
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.ports import FleetError, LoadTable
from spotkeeper.search_log import Message, MessageRefused, read


class NotStored(Exception):
    """A message whose digest the load table did not take; it is worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """What came in for one fleet and was stored.

    `late` and `skewed` count logs, `duplicates` messages that repeat logs of another of the batch.
    """

    logs: int
    late: int
    skewed: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectReport:
    """What became of a batch: why messages failed, by message id, and the counts by fleet."""

    refused: Mapping[str, str]
    unstored: Mapping[str, str]
    fleets: Mapping[str, FleetCounts]

    def metrics(self, default_fleet: str) -> dict[str, dict[str, float]]:
        """Give each fleet's metrics; a refused message counts with the default fleet."""
        metrics = {
            fleet: {
                "SearchLogs": float(counts.logs),
                "LateSearchLogs": float(counts.late),
                "ClockSkewed": float(counts.skewed),
                "DuplicateMessages": float(counts.duplicates),
            }
            for fleet, counts in self.fleets.items()
        }
        if self.refused:
            metrics.setdefault(default_fleet, {})["MessagesRefused"] = float(len(self.refused))
        return metrics

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
) -> CollectReport:
    """Read, sum up and store a batch; logs that name no fleet belong to `default_fleet`.

    A log counts once, in whichever messages of the batch it is.
    """
    refused: dict[str, str] = {}
    read_well: defaultdict[tuple[str, str], list[tuple[Parcel, str]]] = defaultdict(list)
    for message in messages:
        try:
            found = _parcels(message, known_fleets, default_fleet)
        except (MessageRefused, NotDigestible) as error:
            refused[message.message_id] = str(error)
        else:
            for each in found:
                read_well[each.fleet, each.content].append((each, message.message_id))
    sent = _summed_up(read_well.values())
    unstored = _store(sent, table)
    stored = [each for each in sent if not unstored.keys() & set(each.message_ids)]
    return CollectReport(refused=refused, unstored=unstored, fleets=_counts(stored))


def _parcels(
    message: Message, known_fleets: Collection[str], default_fleet: str
) -> Sequence[Parcel]:
    found = parcels(read(message.body), message.sent_at, default_fleet)
    for each in found:
        if each.fleet not in known_fleets:
            raise MessageRefused(
                f"fleet: {each.fleet} has no fleet document; known are "
                f"{', '.join(sorted(known_fleets)) or 'none'}"
            )
    return found


def _summed_up(equal: Iterable[Sequence[tuple[Parcel, str]]]) -> list[_Sent]:
    """Sum up the first sent of equal parcels, each without logs that one sent earlier has.

    So neither the batch's order nor repeated logs matter.
    """
    counted: defaultdict[str, set[str]] = defaultdict(set)
    firsts = [
        (min((each for each, _ in same), key=_order), tuple(message_id for _, message_id in same))
        for same in equal
    ]
    sent: list[_Sent] = []
    for parcel, message_ids in sorted(firsts, key=lambda each: _order(each[0])):
        before = counted[parcel.fleet]
        repeats = not before.isdisjoint(parcel.spans)
        sent.append(_Sent(summed_up(parcel, before), message_ids, repeats))
        before.update(parcel.spans)
    return sent


def _order(parcel: Parcel) -> tuple[datetime, str]:
    return parcel.sent_at, parcel.content


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


def _counts(stored: Sequence[_Sent]) -> dict[str, FleetCounts]:
    fleets: defaultdict[str, list[_Sent]] = defaultdict(list)
    for each in stored:
        fleets[each.digest.fleet].append(each)
    return {
        fleet: FleetCounts(
            logs=sum(each.digest.count + each.digest.late for each in mine),
            late=sum(each.digest.late for each in mine),
            skewed=sum(each.digest.skewed for each in mine),
            duplicates=sum(each.duplicates for each in mine),
        )
        for fleet, mine in fleets.items()
    }
