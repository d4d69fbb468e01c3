"""The risk is elevated after a loss that no warning announced, and for longer after heavy ones.

In recorded GPU markets losses cluster: docs/backtest.md has the shares.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.risk_memory import Loss
from spotkeeper.domain.settings.availability import AvailabilityPolicy

# AWS takes instances of one pool some seconds apart: what goes within so long goes at once.
TOGETHER = timedelta(seconds=60)
# Two turns of the schedule, a minute apart, see an instance serve, whatever events come between.
TWO_TURNS_S = 30
# For so much of that time must spot have served before backfill goes; recorded markets chose it.
SETTLE_SHARE = 1 / 3
# Heavy losses come an hour or two apart in the worst times.
HEAVY_TIMES = 4


def is_elevated(policy: AvailabilityPolicy, last_surprise: datetime | None, now: datetime) -> bool:
    """Say whether a loss without warning was so recent that another is likely."""
    return last_surprise is not None and now - last_surprise < timedelta(
        seconds=policy.elevated_risk_s
    )


def add_losses(
    losses: tuple[Loss, ...], count: int, window_s: int, now: datetime
) -> tuple[Loss, ...]:
    """Add what was lost without a warning, and forget what was lost before the window."""
    kept = tuple(loss for loss in losses if now - loss.at < timedelta(seconds=window_s))
    if count <= 0:
        return kept
    if kept and now - kept[-1].at < TOGETHER:
        return (*kept[:-1], replace(kept[-1], count=kept[-1].count + count))
    return (*kept, Loss(at=now, count=count))


def heavy_losses(losses: tuple[Loss, ...], need: int, spares: int) -> int:
    """Count the losses of half of the need or more at once that `spares` did not cover."""
    return sum(loss.count > spares and 2 * loss.count >= need for loss in losses)


def settle_s(policy: AvailabilityPolicy, heavy: int, *, elevated: bool) -> int:
    """Say how long spot must have served before backfill goes; a warm group is soon back.

    Longer while the risk is elevated, and so many times as long as there were heavy losses of late:
    the more there were, the sooner the next one is due. With 30 minutes of elevated risk: 10
    minutes, 20 after two heavy losses within two hours, and never more than two hours.
    """
    if policy.on_demand_warm:
        return 0
    if not policy.elevated_risk_s or not (elevated or heavy):
        return TWO_TURNS_S
    return min(
        longest_settle_s(policy), max(1, heavy) * round(SETTLE_SHARE * policy.elevated_risk_s)
    )


def heavy_window_s(policy: AvailabilityPolicy) -> int:
    """Say for how long heavy losses count."""
    return HEAVY_TIMES * policy.elevated_risk_s


def longest_settle_s(policy: AvailabilityPolicy) -> int:
    """Say how far back it must be known how many instances served."""
    return 0 if policy.on_demand_warm else max(TWO_TURNS_S, heavy_window_s(policy))
