"""Spells: a loss that no warning announced makes the next likely, and a heavy one more heavy ones.

Recorded GPU markets lose in spells: docs/backtest.md has the shares.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import AvailabilityPolicy

# AWS takes instances of one pool some seconds apart: what goes within so long goes at once.
TOGETHER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """So many spot instances went at once without a warning, the first of them seen at `at`."""

    at: datetime
    count: int


def in_spell(policy: AvailabilityPolicy, last_surprise: datetime | None, now: datetime) -> bool:
    """Say whether a loss without warning was so recent that another is likely."""
    return last_surprise is not None and now - last_surprise < timedelta(seconds=policy.spell_s)


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


def spell_settle_s(policy: AvailabilityPolicy, heavy: int, *, spell: bool) -> int:
    """Say how long spot must have served before backfill goes.

    Longer in a spell, and so many times as long as there were heavy losses within the window: the
    more there were, the sooner the next one is due.
    """
    if not policy.spell_s or not (spell or heavy):
        return policy.settle_s
    return min(longest_settle_s(policy), max(1, heavy) * policy.spell_settle_s)


def longest_settle_s(policy: AvailabilityPolicy) -> int:
    """Say how far back it must be known how many instances served."""
    if policy.on_demand_warm:
        return policy.warm_settle_s
    return max(policy.settle_s, policy.spell_settle_s, policy.spell_window_s)
