"""What a search log must be before the agent takes it: one that is wrong would cost 499 others.

The collector refuses a message as a whole (docs/search-logs.md); so each log is checked
here against the same limits, and refused by itself.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from spotkeeper_worker.logs.pace import MOST_BYTES, MOST_WORKERS
from spotkeeper_worker.times import as_text, read_time

if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_ID = 128
MOST_HOURS = 24
# Of a wait: SQS keeps a message no longer.
MOST_DAYS = 14
STATUSES = ("ok", "error", "timeout")
_CANONICAL = len("2026-01-01T00:00:00.000Z")
# Half of a character that JSON writes as two: no UTF-8, and so no JSON to the collector.
_HALF = re.compile("[\ud800-\udfff]")
_DAY_S = MOST_HOURS * 3600.0
# A worker's clock may run ahead of the queue's by so much.
_AHEAD_S = 300.0


class LogRefused(Exception):
    """A search log that the collector would refuse; names the field."""


class Origin(NamedTuple):
    """What the machine adds to every log: where the worker runs, and for which fleet."""

    cluster: str = "aws"
    instance_id: str = ""
    fleet: str = ""


class Taken(NamedTuple):
    """A log as it will be sent, one line of JSON."""

    line: str
    worker_id: str
    wait_s: float
    clamped: bool
    failed: bool = False


@lru_cache(maxsize=8)
def as_fields(origin: Origin) -> str:
    """Write what the machine adds, each with a comma after it."""
    named = origin._asdict().items()
    return "".join(f'"{name}":{json.dumps(text)},' for name, text in named if text)


def take(log: object, origin: Origin, clamp_s: float, now: float = math.inf) -> Taken:
    """Check a log and put it in its final form; raises LogRefused.

    An inversion of up to `clamp_s` between two machines' clocks is taken out: `enqueued_at` was
    written by another than `started_at`. With `now` a log from the future is refused.
    """
    if not isinstance(log, dict):
        raise LogRefused(f"a search log is a JSON object, not {str(log)[:40]!r}")
    for name in ("request_id", "worker_id"):
        value = log.get(name)
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_ID or _HALF.search(value):
            shown = "is missing" if value is None else f"{str(value)[:40]!r}"
            raise LogRefused(f"{name}: {shown}; should be a text of 1 to {LONGEST_ID} characters")
    status = log.get("status", "ok")
    if status not in STATUSES:
        raise LogRefused(f"status: {str(status)[:40]!r} is none of {', '.join(STATUSES)}")
    texts: list[str] = []
    seconds: list[float] = []
    for name in ("enqueued_at", "started_at", "finished_at"):
        text = str(log.get(name, ""))
        try:
            seconds.append(read_time(text))
            canonical = len(text) == _CANONICAL and text[10] == "T" and text[-1] == "Z"
            texts.append(text if canonical else as_text(seconds[-1]))
        except ValueError as error:
            raise LogRefused(f"{name}: {error}") from None
    enqueued, started, finished = seconds
    behind = max(enqueued - started, started - finished)
    if behind > clamp_s:
        first = enqueued - started > started - finished
        late, early = ("started_at", "enqueued_at") if first else ("finished_at", "started_at")
        raise LogRefused(
            f"{late}: lies {behind:.3f} s before {early}; is a clock wrong? (chronyc tracking)"
        )
    if behind > 0:
        enqueued, finished = min(enqueued, started), max(started, finished)
        texts = [as_text(moment) for moment in (enqueued, started, finished)]
    if finished - started > _DAY_S:
        raise LogRefused(f"finished_at: lies more than {MOST_HOURS} hours after started_at")
    if finished - enqueued > MOST_DAYS * _DAY_S:
        raise LogRefused(f"finished_at: lies more than {MOST_DAYS} days after enqueued_at")
    if finished - now > _AHEAD_S:
        ahead = f"lies {finished - now:.0f} s in the future"
        raise LogRefused(f"finished_at: {ahead}; is a clock wrong, or local time called UTC?")
    worker_id = log["worker_id"]
    line = (
        f'{{"version":1,"request_id":{json.dumps(log["request_id"])},'
        f'"worker_id":{json.dumps(worker_id)},{as_fields(origin)}"enqueued_at":"{texts[0]}",'
        f'"started_at":"{texts[1]}","finished_at":"{texts[2]}","status":"{status}"}}'
    )
    return Taken(line, worker_id, started - enqueued, behind > 0, status != "ok")


def parts(taken: Iterable[Taken]) -> list[list[Taken]]:
    """Cut a batch into parts of which each fits into a message; a batch of none is one part."""
    parts: list[list[Taken]] = [[]]
    workers: set[str] = set()
    size = 0
    for each in taken:
        another = each.worker_id not in workers and len(workers) == MOST_WORKERS
        if parts[-1] and (another or size + len(each.line) > MOST_BYTES):
            parts.append([])
            workers, size = set(), 0
        parts[-1].append(each)
        workers.add(each.worker_id)
        size += len(each.line)
    return parts
