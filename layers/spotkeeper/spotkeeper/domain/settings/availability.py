"""How the gap in the spot group is filled and given back."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from spotkeeper.domain.settings.setting import Setting, instances, seconds


class RebalanceMeaning(StrEnum):
    """What a rebalance recommendation means; thrashes below five minutes, so ignored by default."""

    IGNORE = "ignore"
    AT_RISK = "at_risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityPolicy:
    """How the gap in the spot group is filled and given back."""

    launch_deadline_s: Annotated[
        int,
        seconds(
            "a launched instance counts as launching so long, then as failed to start",
            "workers take longer to load their model",
        ),
    ] = 600
    request_grace_s: Annotated[
        int,
        seconds(
            "an increase of desired counts as launching so long without a launch",
        ),
    ] = 120
    configuration_cap: Annotated[
        int,
        instances(
            "most backfill while spot fails for a reason that capacity does not cure",
            "outages of your own making must not be served",
        ),
    ] = 2
    busy_patience_s: Annotated[
        int,
        seconds(
            "a busy backfill instance is waited for so long, then left to its terminate hook",
            "requests run for longer than the hook allows",
        ),
    ] = 120
    notice_s: Annotated[
        int,
        seconds(
            "AWS warns so long before it takes an instance; 0: no warning reaches this fleet, "
            "so it begins with elevated risk",
            "interruption events are not delivered (0)",
            most=3600,
        ),
    ] = 120
    elevated_risk_s: Annotated[
        int,
        seconds(
            "for so long after a loss without warning another is likely: spares are held, and "
            "on-demand stays until spot has served for a third of it; for longer after heavy "
            "losses",
            "on-demand is dear (shorter), losses come with warning all the same (0: never)",
        ),
    ] = 1800
    spare_share: Annotated[
        float,
        Setting(
            "extra spot held while the risk is elevated, of the need, rounded up",
            "a lost worker costs more than a spare one",
            least=0,
            most=1,
        ),
    ] = 0.05
    proven_after_s: Annotated[
        int,
        seconds(
            "once the risk is no longer elevated, spares stay until the need stands in pools that "
            "have held the fleet for so long, times the share of the pools that hold no more "
            "instances than there are spares "
            "([why](decisions/0008-a-spare-stays-where-it-covers.md))",
            "a spare is dear (shorter; 0: gone with the elevated risk)",
        ),
    ] = 28_800
    early_replacement: Annotated[
        bool,
        Setting(
            "detach a warned instance at once, so that its group replaces it before it is gone",
            "something else handles the warning",
        ),
    ] = True
    rebalance: Annotated[
        RebalanceMeaning,
        Setting(
            "what a rebalance recommendation means: `ignore`, or `at_risk` like a warning",
            "it has proved right in your pools",
        ),
    ] = RebalanceMeaning.IGNORE
    suspend_az_rebalance: Annotated[
        bool,
        Setting(
            "suspend AZRebalance on both groups "
            "([why](decisions/0001-zones-are-not-rebalanced.md))",
            "zones must stay even",
        ),
    ] = True
    lost_notice_share: Annotated[
        float,
        Setting(
            "while instances of a pool are warned, backfill this share of them more, rounded "
            "up, for warnings that are lost; only where on-demand is warm; 0 trusts every "
            "warning",
            "your workers count more or fewer losses without warning",
            least=0,
            most=1,
        ),
    ] = 0.15
    on_demand_warm: Annotated[
        bool,
        Setting(
            "the on-demand group has a warm pool and serves sooner than spot that is "
            "launching; set by the stack's `WarmPoolSize`",
            "an adopted group has one",
        ),
    ] = False
    deferral_margin_s: Annotated[
        int,
        seconds(
            "where on-demand is warm: a warned instance is backfilled so long, and the longest"
            " of the last five warm starts, before it is gone "
            "([why](decisions/0007-backfill-just-in-time.md)); 120 and more: at once",
            "workers stop taking requests sooner before they go (longer)",
        ),
    ] = 15
