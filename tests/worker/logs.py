"""Search logs as workers write them."""

import json
from typing import Any

from spotkeeper_worker.logs.intake import Origin
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.times import as_text, read_time

AWS = Origin("aws", "i-0123456789abcdef0", "ocr")
AT = read_time("2025-11-20T10:00:00.120Z")


def a_log(number: int = 0, **changed: object) -> dict[str, Any]:
    """A log as a worker writes it."""
    return {
        "request_id": f"r-{number}",
        "worker_id": "gpu-7",
        "enqueued_at": as_text(AT + number),
        "started_at": as_text(AT + number + 1),
        "finished_at": as_text(AT + number + 3.5),
        "status": "ok",
        **changed,
    }


def lines(first: int, count: int) -> list[str]:
    """Lines of a journal."""
    return [json.dumps({"request_id": f"r-{n}"}) for n in range(first, first + count)]


def kept(journal: Journal) -> list[str]:
    """What a journal would send, in order."""
    journal.seal()
    found: list[str] = []
    while segment := journal.oldest():
        found += segment.lines
        journal.done(segment)
    return found
