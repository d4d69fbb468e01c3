"""The optional policy of elevated risk, for spot whose losses are not announced; off by default.

In recorded GPU markets losses cluster. After one without a warning another is likely, and an
instance launched after it serves too late. For `elevated_risk_s`, spares are therefore requested
from the spot group, spares that it does not launch are backfilled, and backfill stays until spot
has served for longer. Nothing here runs unless `elevated_risk_s` is set, or earlier spares are left
(docs/decisions/0016-elevated-risk-is-optional.md).
"""

import math
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.actions import EndSpare, RequestSpot
from spotkeeper.domain.availability.count import Assessment, Count, in_service
from spotkeeper.domain.availability.memory import AvailabilityMemory, Loss, within
from spotkeeper.domain.availability.risk import TWO_TURNS_S, Risk
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.release import plan_release
from spotkeeper.domain.settings.availability import AvailabilityPolicy

# AWS takes instances of one pool some seconds apart: losses within this time count as one.
TOGETHER_S = 60
# The part of the elevated risk that spot must have served before backfill goes.
SETTLE_SHARE = 1 / 3
# Heavy losses are an hour or two apart in the worst times.
HEAVY_TIMES = 4


def elevate(
    risk: Risk, snapshot: Snapshot, before: AvailabilityMemory, spot: Count, risky: Set[str]
) -> Risk:
    """Add what is held against losses without a warning; warm on-demand is back soon enough."""
    policy, now = snapshot.fleet.availability, snapshot.now
    if policy.on_demand_warm:
        return risk
    old, need, fleet, group = before.risk, spot.target, snapshot.fleet, snapshot.seen.spot
    surprise = _unannounced(snapshot, before, risky)
    starts_unwarned = before.spot_seen is None and not policy.notice_s
    memory = replace(
        risk.memory,
        held_since=_remember_pools(old.held_since, group, risky, now),
        losses=add_losses(old.losses, surprise, HEAVY_TIMES * policy.elevated_risk_s, now),
        last_surprise=now if surprise or starts_unwarned else old.last_surprise,
    )
    elevated = within(memory.last_surprise, now, policy.elevated_risk_s)
    most = most_spares(fleet, group, need)
    spares = most if elevated else kept_spares(fleet, group, need, memory.held_since, now)
    heavy = heavy_losses(memory.losses, need, most)
    # On-demand replaces requested spares that spot does not launch.
    extra = min(spares, max(0, group.desired - need)) if elevated else 0
    return replace(
        risk,
        spares=spares,
        extra=max(risk.extra, extra),
        settle_s=settle_s(policy, heavy, elevated=elevated),
        reach_s=max(TWO_TURNS_S, HEAVY_TIMES * policy.elevated_risk_s),
        memory=memory,
    )


def ask_for_spares(seen: Assessment) -> list[RequestSpot | EndSpare]:
    """Request the spares that the risk wants from the spot group, or release those in excess."""
    group, need = seen.snapshot.seen.spot, seen.spot.target
    held, wanted = group.desired - need, seen.risk.spares
    if wanted == held:
        return []
    if wanted > held:
        return [_ask(seen, need + wanted)]
    plan = plan_release(
        group,
        held - wanted,
        seen.snapshot.busy_shares,
        busy_too=True,
        held_since=seen.risk.memory.held_since,
    )
    lowered = [_ask(seen, plan.desired)] if plan.desired != group.desired else []
    return [*lowered, *[EndSpare(instance_id=i) for i in plan.ends]]


def _ask(seen: Assessment, desired: int) -> RequestSpot:
    """Return a request that names the current one too: the group shows that until the call."""
    group, need = seen.snapshot.seen.spot, seen.spot.target
    requests = tuple(
        [
            CapacityRequest(at=seen.now, need=need, spare=spare)
            for spare in (group.desired - need, seen.risk.spares)
        ]
    )
    return RequestSpot(group=group.name, desired=desired, requests=requests)


# --- losses ---------------------------------------------------------------------------------------


def _unannounced(snapshot: Snapshot, before: AvailabilityMemory, risky: Set[str]) -> int:
    """Count the losses without a warning that neither a smaller group nor a request explains."""
    group = snapshot.seen.spot
    lost = before.in_service - in_service(group, risky | snapshot.taken)
    if before.spot_seen is None or lost <= 0:
        return 0
    there = {i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE}
    explained = (
        len(risky - set(before.risky))
        + max(0, before.spot_seen - group.desired)
        + len(snapshot.silent.union(before.silent) - there)
        + len(snapshot.let_go - risky)
    )
    return max(0, lost - explained)


def add_losses(
    losses: tuple[Loss, ...], count: int, window_s: int, now: datetime
) -> tuple[Loss, ...]:
    """Add what was lost without a warning, and forget what was lost before the window."""
    kept = tuple([loss for loss in losses if within(loss.at, now, window_s)])
    if count <= 0:
        return kept
    if kept and within(kept[-1].at, now, TOGETHER_S):
        return (*kept[:-1], replace(kept[-1], count=kept[-1].count + count))
    return (*kept, Loss(at=now, count=count))


def heavy_losses(losses: tuple[Loss, ...], need: int, spares: int) -> int:
    """Count the losses of at least half of the need at once that `spares` did not cover."""
    return sum(loss.count > spares and 2 * loss.count >= need for loss in losses)


def settle_s(policy: AvailabilityPolicy, heavy: int, *, elevated: bool) -> int:
    """Say how long spot must have served before backfill is released.

    Longer while the risk is elevated, and multiplied by the number of recent heavy losses. With 30
    minutes of elevated risk: 10 minutes, 20 after two heavy losses within two hours, and never more
    than two hours.
    """
    if not policy.elevated_risk_s or not (elevated or heavy):
        return TWO_TURNS_S
    return min(
        max(TWO_TURNS_S, HEAVY_TIMES * policy.elevated_risk_s),
        max(1, heavy) * round(SETTLE_SHARE * policy.elevated_risk_s),
    )


# --- spares ---------------------------------------------------------------------------------------


def most_spares(fleet: Fleet, spot: Group, need: int) -> int:
    """Return the spares of elevated risk, within the fleet's and the group's maximum."""
    most = max(0, min(fleet.bounds.spot_max, spot.maximum) - need)
    share = fleet.availability.spare_share if fleet.availability.elevated_risk_s else 0
    return min(most, math.ceil(share * need))


def kept_spares(
    fleet: Fleet, spot: Group, need: int, held_since: Mapping[str, datetime], now: datetime
) -> int:
    """Return how many of the spares held stay after the elevated risk.

    They stay until as many instances as needed are in pools that have held the fleet for long. That
    takes longer the more of the pools the spares cover: a spare beside instances that are all lost
    at once saves nothing (docs/decisions/0008-a-spare-stays-where-it-covers.md).
    """
    kept = min(most_spares(fleet, spot, need), spot.desired - need)
    if kept <= 0:
        return 0
    serving = Counter([i.pool for i in spot.instances if i.phase is Phase.IN_SERVICE])
    covered = sum([count <= kept for count in serving.values()]) / len(serving) if serving else 0.0
    before = now - timedelta(seconds=covered * fleet.availability.proven_after_s)
    long = {pool for pool, since in held_since.items() if since <= before}
    proven = sum([count for pool, count in serving.items() if pool in long])
    return kept if proven < need else 0


def _remember_pools(
    held_since: Mapping[str, datetime], spot: Group, risky: Set[str], now: datetime
) -> dict[str, datetime]:
    """Note since when each pool has held a serving instance; a pool that lost all forgets."""
    held = {
        i.pool for i in spot.instances if i.phase is Phase.IN_SERVICE and i.instance_id not in risky
    }
    return {pool: held_since.get(pool, now) for pool in sorted(held)}
