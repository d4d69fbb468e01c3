"""The history of a fleet's load: one DynamoDB item a fleet, packed.

    pk fleet#NAME  sk history  history <packed>  expires_at <epoch s>

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


class LoadHistoryTable(Items):
    """The histories port on a DynamoDB table."""

    def read(self, fleet: str) -> LoadHistory:
        """Read a fleet's history; an empty one when there is none.

        Raises `Unreadable` for one that no release of this format wrote.
        """
        doing = f"reading the load history of fleet {fleet}"
        item = self._get(doing, f"fleet#{fleet}", "history")
        try:
            return _unpack(item) if item else LoadHistory()
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            message = f"the load history of fleet {fleet} (sk history) cannot be read: {error!r}"
            raise Unreadable(message) from error

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        """Keep a fleet's history for `LIFETIME`, instead of what was kept before."""
        self._put(
            f"writing the load history of fleet {fleet}",
            f"fleet#{fleet}",
            "history",
            history=zlib.compress(_HISTORY.dump_json(history)),
            expires_at=epoch(now + LIFETIME),
        )


def _unpack(item: Item) -> LoadHistory:
    stored = json.loads(zlib.decompress(bytes(item["history"]["B"])))
    if isinstance(stored, list):
        return _of_steps(*stored)
    own = {name: stored[name] for name in ("next_step", "work_ms", "requests", "scores")}
    # A release before slots wrote no sharing.
    sharing = stored.get("sharing") or {}
    return _HISTORY.validate_python({**own, "sharing": sharing})


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
