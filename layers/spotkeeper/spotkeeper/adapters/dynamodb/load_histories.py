"""The history of a fleet's load: one DynamoDB item a fleet, packed.

    pk fleet#NAME  sk history  history <packed>  expires_at <epoch s>

The minutes of a day and the scores of the shadow fleets pack into about 5 KB. It is written once
in five minutes and read once a turn: at public prices (us-east-1, 2025) about 0.06 USD a month.
"""

import json
import zlib
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.load.history import LoadHistory, Scores, Sharing
from spotkeeper.ports import Unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

COLUMNS = ("late", "squares", "hours")
LIFETIME = timedelta(days=15)


class LoadHistoryTable:
    """The histories port on a DynamoDB table."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table

    def read(self, fleet: str) -> LoadHistory:
        """Read a fleet's history; an empty one when there is none.

        Raises `Unreadable` for one that no release of this format wrote.
        """
        with aws_errors(f"reading the load history of fleet {fleet}"):
            answer = self._dynamodb.get_item(TableName=self._table, Key=_key(fleet))
        try:
            return _unpack(answer["Item"]) if "Item" in answer else LoadHistory()
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            message = f"the load history of fleet {fleet} (sk history) cannot be read: {error!r}"
            raise Unreadable(message) from error

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Keep a fleet's history for `LIFETIME`, instead of what was kept before."""
        text = json.dumps(asdict(history), separators=(",", ":"))
        item: dict[str, Any] = _key(fleet) | {
            "history": {"B": zlib.compress(text.encode())},
            "expires_at": {"N": str(int((now + LIFETIME).timestamp()))},
        }
        with aws_errors(f"writing the load history of fleet {fleet}"):
            self._dynamodb.put_item(TableName=self._table, Item=item)


def _key(fleet: str) -> dict[str, Any]:
    return {"pk": {"S": f"fleet#{fleet}"}, "sk": {"S": "history"}}


def _unpack(item: "Mapping[str, Any]") -> LoadHistory:
    stored = json.loads(zlib.decompress(bytes(item["history"]["B"])))
    if isinstance(stored, list):
        return _of_steps(*stored)
    scores: dict[str, Any] = dict(stored["scores"])
    scores.update({name: tuple(scores[name]) for name in COLUMNS})
    return LoadHistory(
        next_step=stored["next_step"],
        work_ms=tuple(stored["work_ms"]),
        requests=tuple(stored["requests"]),
        sharing=_sharing(**stored.get("sharing") or {}),
        scores=Scores(**scores),
    )


def _sharing(
    rows: "Sequence[tuple[float, float, float, float]]" = (), slots: int = 0, full: float = 0.0
) -> Sharing:
    return Sharing(rows=tuple((a, b, c, d) for a, b, c, d in rows), slots=slots, full=full)


def _of_steps(
    next_step: int, _: list[int], requests: list[int], *columns: list[int]
) -> LoadHistory:
    """Read what releases before 2.0 wrote: the work of each minute, and requests by five of them.

    What they kept of late requests, and of the weeks before, is not read any more.
    """
    work_ms = columns[2] if len(columns) > 2 else []  # noqa: PLR2004
    each = [count // 5 + (at < count % 5) for count in requests for at in range(5)]
    known = min(len(each), len(work_ms))
    return LoadHistory(
        next_step=next_step,
        work_ms=tuple(work_ms[len(work_ms) - known :]),
        requests=tuple(each[len(each) - known :]),
    )
