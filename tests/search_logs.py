"""Short ways to write search logs and messages, as dictionaries and as they are sent."""

import base64
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from spotkeeper.border.events import Message
from spotkeeper.domain.load.digest import SearchLog, Status, merge
from spotkeeper.domain.load.load import (
    Cluster,
    Histogram,
    LoadDigest,
    WorkerDigest,
    WorkerLoad,
    slot_of,
    unique,
)
from spotkeeper_lab.fakes import digest

SENT = datetime(2026, 11, 20, 12, tzinfo=UTC)
FLEET = "ocr"


def before(seconds: float) -> datetime:
    """The instant this many seconds before the message is sent."""
    return SENT - timedelta(seconds=seconds)


def sent_log(number: int = 0, **changed: object) -> dict[str, Any]:
    """A log as a worker sends it: 30 s old, waited 0.5 s, served in 2 s."""
    return {
        "version": 1,
        "request_id": f"r-{number}",
        "worker_id": "gpu-0",
        "cluster": "aws",
        "instance_id": "i-0123456789abcdef0",
        "enqueued_at": before(32.5).isoformat(),
        "started_at": before(32).isoformat(),
        "finished_at": before(30).isoformat(),
        "status": "ok",
    } | changed


def log(
    began: float, ended: float, *, waited: float = 0.0, worker: str = "gpu-0", **changed: Any
) -> SearchLog:
    """A log of an on-premises worker; `began` and `ended` are in seconds before sending."""
    fields: dict[str, Any] = {
        "request_id": f"{worker} {began} {ended}",
        "worker_id": worker,
        "cluster": Cluster.ONPREM,
        "enqueued_at": before(began + waited),
        "started_at": before(began),
        "finished_at": before(ended),
        "status": Status.OK,
    }
    return SearchLog(**fields | changed)


def served(who: str, ended: datetime, service_s: float, waited_s: float = 1.0) -> SearchLog:
    """A log of an instance, or of a worker on premises that is not named like one."""
    began, in_cloud = ended - timedelta(seconds=service_s), who.startswith("i-")
    return SearchLog(
        request_id=f"{who} {ended.timestamp():.3f}",
        worker_id=f"gpu-{who}",
        cluster=Cluster.AWS if in_cloud else Cluster.ONPREM,
        instance_id=who if in_cloud else "",
        enqueued_at=began - timedelta(seconds=waited_s),
        started_at=began,
        finished_at=ended,
        status=Status.OK,
    )


def as_sent(log: SearchLog) -> dict[str, Any]:
    """A log as its worker sends it."""
    told = {f.name: value for f in fields(log) if (value := getattr(log, f.name)) != ""}
    times = {name: at.isoformat() for name, at in told.items() if isinstance(at, datetime)}
    return {"version": 1} | told | times


def digest_of(logs: Sequence[SearchLog], sent_at: datetime = SENT) -> LoadDigest:
    """The digest of a message whose logs name no fleet."""
    [only] = digest(logs, sent_at, FLEET)
    return only


def worker(name: str, instance_id: str = "", **seen: Any) -> WorkerLoad:
    """A worker of an instance, or on premises, that finished something just now."""
    cluster = Cluster.AWS if instance_id else Cluster.ONPREM
    told: Any = {"last_finished": SENT} | seen
    return WorkerLoad(worker_id=name, cluster=cluster, instance_id=instance_id, **told)


def shipped(sent_at: datetime, count: int, last: Mapping[str, datetime]) -> LoadDigest:
    """A digest of `count` requests, with only the newest log of each worker."""
    workers = [
        WorkerDigest(
            worker_id=name, cluster=Cluster.AWS, instance_id=name, ok=1, failed=0,
            last_finished=at, busy_ms={},
        )
        for name, at in last.items()
    ]  # fmt: skip
    return LoadDigest(
        fleet=FLEET, key=str(sent_at), sent_at=sent_at, count=count, late=0, skewed=0,
        workers=tuple(workers), arrivals={}, waits=Histogram(), service=Histogram(),
    )  # fmt: skip


def by_slot(digests: Iterable[LoadDigest]) -> tuple[LoadDigest, ...]:
    """Add digests up by the slot in which they were sent, oldest first; equal logs count once."""
    each = sorted(unique(digests), key=_sent)
    return tuple(merge(list(some)) for _, some in groupby(each, key=_sent))


def _sent(one: LoadDigest) -> int:
    return slot_of(one.sent_at)


def packed(text: str, mtime: int = 0) -> str:
    """A body as gzip in base64."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=mtime)).decode()


def lines(logs: Sequence[object]) -> str:
    return "\n".join(map(json.dumps, logs))


def message(body: object, message_id: str = "m", sent_at: datetime = SENT) -> Message:
    """A message of a body, given as text or as what JSON makes of it."""
    text = body if isinstance(body, str) else json.dumps(body)
    return Message(message_id=message_id, body=text, sent_at=sent_at)
