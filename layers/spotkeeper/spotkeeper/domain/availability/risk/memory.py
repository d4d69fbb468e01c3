"""What is remembered of past losses and warnings, to tell what may be lost next."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from spotkeeper.domain.availability.risk.deferral import DeferralMemory
from spotkeeper.domain.availability.risk.elevated import Loss
from spotkeeper.domain.availability.risk.warning_burst import WarningBurst


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
