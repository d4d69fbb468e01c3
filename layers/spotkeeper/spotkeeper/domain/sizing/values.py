"""What sizing to a promise about waiting is given, and what it answers (`objective`)."""

from dataclasses import dataclass

from spotkeeper.domain.settings.sizing import SizingPolicy

# What waits is cleared within this of the first new worker's start.
DRAIN_S = 300.0
QUIET_AFTER_S = float(SizingPolicy().quiet_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePolicy:
    """The promise, the bounds in workers, and the times that the fleet was measured to need.

    `onprem` workers are always there, beside at least `min_workers` of the cloud, which come
    `per_instance` at a time; `max_workers` are those on premises and of the cloud together. A
    worker that serves `slots` requests at once counts as that many, here and wherever workers are
    found for this policy.
    """

    wait_s: float
    share: float
    min_workers: int
    max_workers: int
    start_up_s: float
    onprem: int = 0
    per_instance: int = 1
    slots: int = 1
    drain_s: float = DRAIN_S
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
