"""What is remembered of past losses and warnings, to tell what may be lost next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """So many spot instances went at once without a warning, the first of them seen at `at`."""

    at: datetime
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningBurst:
    """So many instances of a pool were seen warned at once, the first of them at `since`."""

    since: datetime
    pool: str
    warned: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """An on-demand instance's start: not there yet at `began`, in service at `served`."""

    instance_id: str
    began: datetime
    served: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferralMemory:
    """What is remembered to defer backfill; empty where on-demand is not warm.

    `seen_at` is when the on-demand instances `known` were seen, `gone_at` when each warned
    instance that still serves will be gone.
    """

    seen_at: datetime | None = None
    known: tuple[str, ...] = ()
    starts: tuple[Start, ...] = ()
    gone_at: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskMemory:
    """The part of the availability controller's memory that only the risk reads.

    `held_since` is from when on each pool has held an instance that serves, `losses` are those that
    no warning announced and `last_surprise` the newest of them, `warning_bursts` are warnings that
    came together, `deferral` says how long warm starts take and who is gone when.
    """

    held_since: Mapping[str, datetime] = field(default_factory=dict)
    losses: tuple[Loss, ...] = ()
    last_surprise: datetime | None = None
    warning_bursts: tuple[WarningBurst, ...] = ()
    deferral: DeferralMemory = field(default_factory=DeferralMemory)
