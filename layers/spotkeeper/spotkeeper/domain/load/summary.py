"""What the search logs of a fleet say, as sizing looks at it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """What the search logs say, all of it from finished requests.

    `arrivals` and `work_s` (their service times) are per slot of `slot_s` by `enqueued_at`, oldest
    first; the last slot ends now, fewer slots than the longest window means a young fleet.
    The newest start is the log with the latest `started_at`. `past_loads` are mean offered loads
    in erlangs per `past_step_s`, oldest first, up to the last full step; `recent_loads` those of
    the last day per `recent_step_s`, up to the same instant. `late_error` is the standard error of
    `late_last_day`, since late requests come together, and `running_last_day_s` is E[S^2]/E[S]
    of the last day's service times, 0 while it is not known. Not from logs: `queued` requests wait
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
    late_error: float = 0.0
    running_last_day_s: float = 0.0
    past_loads: tuple[float, ...] = ()
    past_step_s: float = 300.0
    recent_loads: tuple[float, ...] = ()
    recent_step_s: float = 60.0
    slot_s: float = 10.0
