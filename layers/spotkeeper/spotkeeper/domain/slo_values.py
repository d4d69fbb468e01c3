"""What sizing to a promise about waiting is given, and what it answers (`slo_sizing`)."""

from dataclasses import dataclass

from spotkeeper.domain.fleet import SizingPolicy as DocumentPolicy

# What waits is cleared within this of the first new worker's start.
DRAIN_S = 300.0
STALE_S = float(DocumentPolicy().stale_after_s)
QUIET_AFTER_S = float(DocumentPolicy().quiet_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What the search logs say, all of it from finished requests.

    `arrivals` and `work_s` (their service times) are per slot of `slot_s` by `enqueued_at`, oldest
    first; the last slot ends now, fewer slots than the longest window means a young fleet.
    The newest start is the log with the latest `started_at`. `past_loads` are mean offered loads
    in erlangs per `past_step_s`, oldest first, up to the last full step; `recent_loads` those of
    the last day per `recent_step_s`, up to the same instant. Not from logs: `queued` requests wait
    in the request queue, None when that is not known, and for `quiet_s` the queue was seen empty
    and no request was logged, 0 when that is not known either.
    """

    arrivals: tuple[int, ...]
    work_s: tuple[float, ...]
    service_mean_s: float
    service_second_moment_s2: float
    newest_start_age_s: float
    newest_wait_s: float
    newest_log_age_s: float
    peakedness: float = 1.0
    queued: int | None = None
    quiet_s: float = 0.0
    requests_last_day: int = 0
    late_last_day: int = 0
    past_loads: tuple[float, ...] = ()
    past_step_s: float = 300.0
    recent_loads: tuple[float, ...] = ()
    recent_step_s: float = 60.0
    slot_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy:
    """The promise, the bounds in workers, and the times that the fleet was measured to need."""

    wait_s: float
    share: float
    min_workers: int
    max_workers: int
    start_up_s: float
    stabilisation_s: float = 120.0
    drain_s: float = DRAIN_S
    stale_s: float = STALE_S
    quiet_after_s: float = QUIET_AFTER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PastNeed:
    """What an earlier turn found the load to need, `age_s` ago; `held` when logs were missing."""

    age_s: float
    workers: int
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Workers to have, booting ones included; `missing` is what the promise needs beyond the bound.

    Later turns remember `load_workers` and `held` (logs were missing) as a PastNeed.
    """

    workers: int
    reason: str
    load_workers: int
    missing: int = 0
    held: bool = False
