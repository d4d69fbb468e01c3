"""How release 0.2 read the table: excerpts of its adapters, for state of later releases.

Each reader takes an item as DynamoDB returns it, and raises where that release failed.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

type Item = Mapping[str, Any]

CONTROLLERS = ("availability", "health")


def history(item: Item) -> None:
    """LoadHistoryTable.read, and the arithmetic on the steps that each health turn does."""
    next_step, *values = json.loads(zlib.decompress(bytes(item["history"]["B"])))
    work_ms, requests, late, roughness, *_added = map(tuple, values)
    assert next_step >= 0 <= sum([*work_ms, *requests, *late, *roughness])


def state(item: Item) -> None:
    """FleetStateTable.acquire, after its update has added the notes."""
    for controller in CONTROLLERS:
        if (written := item.get(f"{controller}_written")) is not None:
            _instant(written["S"])
        if (memory := item.get(f"{controller}_memory")) is not None:
            json.loads(memory["S"])
        for note in item.get(f"{controller}_notes", {"L": []})["L"]:
            json.loads(note["S"])


def record(item: Item) -> None:
    """DecisionRecords: one that it cannot read is counted, and shown as such."""
    json.loads(item["record"]["S"])


def control(item: Item) -> None:
    """ControlTable.of."""
    read = json.loads(item["control"]["S"])
    assert read.get("mode") in {None, "act", "observe"}
    if pause := read.get("pause"):
        _instant(pause["until"])
        _instant(pause["at"])
        assert isinstance(pause["why"] + pause["by"], str)


def ledger(item: Item) -> None:
    """LedgerTable.open_items and ended."""
    read = json.loads(item["item"]["S"])
    assert read["option"] in {"spot", "on-demand"}
    assert read.get("ended_by", "") in {"", "aws", "us", "unknown"}
    assert all(isinstance(read[name], str) for name in ("fleet", "instance_id", "pool"))
    _instant(read["since"])


def load(item: Item) -> None:
    """LoadDigestTable.since."""
    if "digests" in item:
        for key, *values in json.loads(zlib.decompress(item["digests"]["B"])):
            _digest(key, values)
    else:
        _digest(item["sk"]["S"], json.loads(zlib.decompress(item["digest"]["B"])))


def _digest(key: str, values: Sequence[Any]) -> None:
    _count, _late, _skewed, arrivals, waits, service, workers, *newer = values
    work_ms, _newest_start, _newest_wait_ms = newer or ((), None, 0)
    _instant(key[: len("2026-01-01T00:00:00.000Z")])
    assert len(arrivals) == 2 * len(work_ms)
    for _total_ms, _squares, counts in (waits, service):
        dict(zip(counts[::2], counts[1::2], strict=True))
    for _worker, _instance, _ok, _error, _timeout, _last_ms, busy_ms in workers:
        dict(zip(busy_ms[::2], busy_ms[1::2], strict=True))


def _instant(text: str) -> None:
    assert datetime.fromisoformat(text).tzinfo


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
