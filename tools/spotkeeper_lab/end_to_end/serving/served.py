"""What became of one request: plain values, for who serves it, logs it and counts it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request that a worker finished; `instance_id` is empty on premises."""

    request: int
    worker_id: str
    instance_id: str
    enqueued_s: float
    started_s: float
    finished_s: float
