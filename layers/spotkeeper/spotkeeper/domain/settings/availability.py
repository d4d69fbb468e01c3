"""How Spotkeeper fills a gap in the spot group with on-demand, and releases it again."""

from dataclasses import dataclass
from enum import StrEnum

from spotkeeper.domain.settings.setting import instances, seconds, setting


class RebalanceMeaning(StrEnum):
    """How to treat a rebalance recommendation.

    Ignored by default: recommendations less than five minutes apart make the fleet thrash.
    """

    IGNORE = "ignore"
    AT_RISK = "at_risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityPolicy:
    """How Spotkeeper fills a gap in the spot group with on-demand, and releases it again."""

    launch_deadline_s: int = seconds(
        "how long a launched instance counts as launching; then it counts as failed to start",
        "workers take longer to load their model",
        default=600,
    )
    request_grace_s: int = seconds(
        "how long a requested instance counts as launching before its launch begins", default=120
    )
    configuration_cap: int = instances(
        "most backfill for instances that are missing because of configuration, permissions or "
        "workers that do not start",
        "a broken release of yours must not cost on-demand (0)",
        default=2,
    )
    busy_patience_s: int = seconds(
        "how long to wait for a busy backfill instance before ending it; its terminate hook then "
        "waits for its requests",
        "requests run for longer than the hook allows",
        default=120,
    )
    notice_s: int = seconds(
        "how long AWS warns before it takes an instance; 0: this fleet receives no warnings",
        "interruption events are not delivered (0)",
        most=3600,
        default=120,
    )
    early_replacement: bool = setting(
        "detach a warned instance at once, so that its group replaces it before it is gone",
        "something else handles the warning",
        default=True,
    )
    rebalance: RebalanceMeaning = setting(
        "what a rebalance recommendation means: `ignore`, or `at_risk` like a warning",
        "recommendations have proved right in your pools",
        default=RebalanceMeaning.IGNORE,
    )
    suspend_az_rebalance: bool = setting(
        "suspend AZRebalance on both groups ([why](decisions/0001-zones-are-not-rebalanced.md))",
        "zones must stay even",
        default=True,
    )
    lost_notice_share: float = setting(
        "where on-demand is warm: while a pool has warnings, backfill grows by this share of the "
        "warned instances, rounded up, because some warnings are lost",
        "more or fewer instances of yours go without a warning",
        least=0,
        most=1,
        default=0.15,
    )
    on_demand_warm: bool = setting(
        "the on-demand group has a warm pool, and serves sooner than new spot instances; set by "
        "the stack's `WarmPoolSize`",
        "an adopted group has one",
        default=False,
    )
    deferral_margin_s: int = seconds(
        "where on-demand is warm: how long before a warned instance's end its backfill should "
        "serve ([why](decisions/0007-backfill-just-in-time.md)). 120 or more: request it at once",
        "workers stop accepting requests earlier (longer)",
        default=15,
    )
