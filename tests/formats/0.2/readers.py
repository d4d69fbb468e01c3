"""How release 0.2 read the table: excerpts of its adapters, for state of later releases.

Each reader takes items as DynamoDB returns them, and raises where that release failed.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

from pydantic import AwareDatetime, TypeAdapter

type Item = Mapping[str, Any]


def history(item: Item) -> tuple[int, Sequence[tuple[int, ...]]]:
    """LoadHistoryTable.read, and the arithmetic on the steps that each health turn does."""
    next_step, *values = json.loads(zlib.decompress(bytes(item["history"]["B"])))
    work_ms, requests, late, roughness, *added = map(tuple, values)
    minute_work_ms, squares = (*added, (), ())[:2]
    return next_step + 0, [work_ms, requests, late, roughness, minute_work_ms, squares]


def state(item: Item) -> dict[str, Any]:
    """FleetStateTable.acquire, after its update has added the notes: memories, notes, times."""
    names = [f"{controller}_{name}" for controller in CONTROLLERS for name in ("memory", "written")]
    kept: dict[str, Any] = {name: item[name]["S"] for name in names if name in item}
    for controller in CONTROLLERS:
        if f"{controller}_memory" in kept:
            json.loads(kept[f"{controller}_memory"])
        if f"{controller}_written" in kept:
            assert datetime.fromisoformat(kept[f"{controller}_written"]).tzinfo
        for note in item.get(f"{controller}_notes", {"L": []})["L"]:
            json.loads(note["S"])
    return kept


CONTROLLERS = ("availability", "health")
_Permission = Literal["act", "observe", "paused"]


class _Outcome(TypedDict):
    asked: str
    error: NotRequired[str]
    would: NotRequired[bool]


class _Record(TypedDict):
    fleet: str
    controller: Literal["availability", "health"]
    at: AwareDatetime
    action: Literal["hold", "backfill", "release", "resize"]
    rule: str
    reason: str
    seen: dict[str, float]
    outcomes: NotRequired[tuple[_Outcome, ...]]
    alarms: NotRequired[tuple[str, ...]]
    failures: NotRequired[tuple[str, ...]]
    unknown_failures: NotRequired[tuple[str, ...]]
    permission: NotRequired[_Permission]
    unread: NotRequired[tuple[str, ...]]


class _Pause(TypedDict):
    until: AwareDatetime
    why: str
    by: str
    at: AwareDatetime


class _Control(TypedDict):
    mode: NotRequired[Literal["act", "observe"] | None]
    mode_by: NotRequired[str]
    mode_at: NotRequired[AwareDatetime | None]
    pause: NotRequired[_Pause | None]
    version: NotRequired[int]


class _LedgerItem(TypedDict):
    fleet: str
    instance_id: str
    pool: str
    option: Literal["spot", "on-demand"]
    since: AwareDatetime
    until: NotRequired[AwareDatetime | None]
    ended_by: NotRequired[Literal["", "aws", "us", "unknown"]]


def record(item: Item) -> _Record | None:
    """DecisionRecords, after the renaming of names of 0.1; what is none is counted."""
    try:
        return TypeAdapter(_Record).validate_json(item["record"]["S"])
    except ValueError:
        return None


def control(item: Item) -> _Control:
    """ControlTable.of."""
    return TypeAdapter(_Control).validate_json(item["control"]["S"])


def ledger(item: Item) -> _LedgerItem:
    """LedgerTable.open_items and ended."""
    return TypeAdapter(_LedgerItem).validate_json(item["item"]["S"])


def load(item: Item) -> list[tuple[str, int]]:
    """LoadDigestTable.since: each digest's key and count."""
    if "digests" in item:
        several = json.loads(zlib.decompress(item["digests"]["B"]))
        return [(key, _digest(key, values)) for key, *values in several]
    packed = item["digest"]["B"]
    return [(item["sk"]["S"], _digest(item["sk"]["S"], json.loads(zlib.decompress(packed))))]


def _digest(key: str, values: Sequence[Any]) -> int:
    count, _late, _skewed, arrivals, waits, service, workers, *newer = values
    work_ms, _newest_start, _newest_wait_ms = newer or ((), None, 0)
    assert datetime.fromisoformat(key[: len("2026-01-01T00:00:00.000Z")]).tzinfo
    assert len(arrivals) == 2 * len(work_ms)
    for _total_ms, _squares, counts in (waits, service):
        dict(zip(counts[::2], counts[1::2], strict=True))
    for _worker, _instance, _ok, _error, _timeout, _last_ms, busy_ms in workers:
        dict(zip(busy_ms[::2], busy_ms[1::2], strict=True))
    return int(count)


# Which keys it reads, both ends included, and how.
READS = (
    ("fleet#", "history", "history", history),
    ("fleet#", "state", "state", state),
    ("fleet#", "control", "control", control),
    ("fleet#", "decision#", "decision#\uffff", record),
    ("ledger#", "open#", "open#\uffff", ledger),
    ("ledger#", "closed#", "closed#\uffff", ledger),
    ("load#", "", "\uffff", load),
)
