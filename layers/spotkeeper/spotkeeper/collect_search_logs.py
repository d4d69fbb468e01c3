"""The collecting turn: queue messages become digests in the load table.

Each message stands alone: one that cannot be read fails by itself, and one that is delivered
again, in the same batch or another, counts once.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spotkeeper.domain.digest import NotDigestible, digest
from spotkeeper.domain.load import LoadDigest
from spotkeeper.ports import FleetError, LoadTable
from spotkeeper.search_log import Message, MessageRefused, read


class NotStored(Exception):
    """A message whose digest the load table did not take; it is worth another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """What came in for one fleet and was stored.

    `late` and `skewed` count logs, `duplicates` messages that repeat another one of the batch.
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
    """A digest and the messages of the batch that carry its logs."""

    digest: LoadDigest
    message_ids: tuple[str, ...]


def collect(
    messages: Sequence[Message],
    table: LoadTable,
    known_fleets: Collection[str],
    default_fleet: str,
) -> CollectReport:
    """Read, sum up and store a batch; logs that name no fleet belong to `default_fleet`."""
    refused: dict[str, str] = {}
    sent: dict[tuple[str, str], _Sent] = {}
    for message in messages:
        try:
            digests = _digests(message, known_fleets, default_fleet)
        except (MessageRefused, NotDigestible) as error:
            refused[message.message_id] = str(error)
        else:
            for each in digests:
                _join(sent, each, message.message_id)
    unstored = _store(list(sent.values()), table)
    stored = [each for each in sent.values() if not unstored.keys() & set(each.message_ids)]
    return CollectReport(refused=refused, unstored=unstored, fleets=_counts(stored))


def _digests(
    message: Message, known_fleets: Collection[str], default_fleet: str
) -> list[LoadDigest]:
    digests = digest(read(message.body), message.sent_at, default_fleet)
    for each in digests:
        if each.fleet not in known_fleets:
            raise MessageRefused(
                f"fleet: {each.fleet} has no fleet document; known are "
                f"{', '.join(sorted(known_fleets)) or 'none'}"
            )
    return digests


def _join(sent: dict[tuple[str, str], _Sent], new: LoadDigest, message_id: str) -> None:
    """Keep one digest of equal logs, the first sent, so that the batch's order does not matter."""
    other = sent.get((new.fleet, new.content))
    first = min(new, other.digest, key=lambda each: each.key) if other else new
    message_ids = (*other.message_ids, message_id) if other else (message_id,)
    sent[new.fleet, new.content] = _Sent(first, message_ids)


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
            duplicates=sum(len(each.message_ids) - 1 for each in mine),
        )
        for fleet, mine in fleets.items()
    }
