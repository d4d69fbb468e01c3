"""The history of a fleet's load: one DynamoDB item a fleet, packed.

    pk fleet#NAME  sk history#minutes  history <packed>  expires_at <epoch s>

Releases before kept it under the key `history`, 0.2 as a list. What those cannot read must not
stand there, because each turn of theirs would fail after a rollback. The newer of both counts.

The minutes of a day and the scores of the shadow fleets pack into about 5 KB. It is written once
in five minutes and read once a turn: at public prices (us-east-1, 2025) about 0.06 USD a month.
"""

import json
import zlib
from datetime import datetime, timedelta

from pydantic import TypeAdapter

from spotkeeper.adapters.table import Item, Items, epoch
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.ports import Unreadable

LIFETIME = timedelta(days=15)
_HISTORY = TypeAdapter(LoadHistory)
_KEY, _EARLIER = "history#minutes", "history"


class LoadHistoryTable(Items):
    """The histories port on a DynamoDB table."""

    def read(self, fleet: str) -> LoadHistory:
        """Read a fleet's history; an empty one when there is none.

        Raises `Unreadable` for one that no release of this format wrote.
        """
        items = self._query(
            f"reading the load history of fleet {fleet}", f"fleet#{fleet}", _EARLIER, _KEY
        )
        histories: list[LoadHistory] = []
        unreadable: Unreadable | None = None
        for item in items:
            try:
                histories.append(_unpack(item))
            except (KeyError, TypeError, ValueError, zlib.error) as error:
                key = item["sk"]["S"]
                message = f"the load history of fleet {fleet} (sk {key}) cannot be read: {error!r}"
                unreadable = Unreadable(message)
        if unreadable and not histories:
            raise unreadable
        return max(histories, key=lambda one: one.next_step, default=LoadHistory())

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Keep a fleet's history for `LIFETIME`, instead of what was kept before."""
        self._put(
            f"writing the load history of fleet {fleet}",
            f"fleet#{fleet}",
            _KEY,
            history=zlib.compress(_HISTORY.dump_json(history)),
            expires_at=epoch(now + LIFETIME),
        )


def _unpack(item: Item) -> LoadHistory:
    stored = json.loads(zlib.decompress(bytes(item["history"]["B"])))
    if isinstance(stored, list):
        return _of_steps(*stored)
    own = {name: stored[name] for name in ("next_step", "work_ms", "requests", "scores")}
    # Earlier releases wrote no sums of sharing.
    sums = stored.get("sharing_sums", LoadHistory().sharing_sums)
    return _HISTORY.validate_python({**own, "sharing_sums": sums})


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
