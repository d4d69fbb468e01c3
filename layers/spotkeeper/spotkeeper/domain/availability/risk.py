"""What warnings predict: when to backfill for a loss, and how many warnings were lost.

Both need warm on-demand: a cold start takes longer than the notice, so that backfill for a warned
instance is requested at once.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.memory import (
    AvailabilityMemory,
    DeferralMemory,
    RiskMemory,
    Start,
    WarningBurst,
)
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.settings.availability import AvailabilityPolicy

# Long enough for two scheduled turns to see an instance serve, with or without events between them.
TWO_TURNS_S = 30
# The number of recent starts that count.
STARTS = 5
# A turn that runs when a wake-up arrives repeats with its own time: what is due this soon is due.
SLACK = timedelta(seconds=5)
# Events are up to half a minute late, so a burst may last this long after its notice.
LATE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """How many instances of the shortfall can wait, the first of them until `until`."""

    instances: int = 0
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """What to hold against expected losses.

    `extra` is how many instances of either group should serve beyond the need. Backfill is released
    once spot has served for `settle_s`. `deferral` is the part of the shortfall that can wait.
    """

    extra: int
    settle_s: int
    deferral: Deferral
    memory: RiskMemory


def risk_of(
    snapshot: Snapshot, before: AvailabilityMemory, at_risk: Mapping[str, datetime], risky: Set[str]
) -> Risk:
    """Estimate the losses to expect; `before` is the memory of the previous turn."""
    policy = snapshot.fleet.availability
    if not policy.on_demand_warm:
        return Risk(
            extra=0,
            # With each move between regions a unit is held twice, for as short as can be.
            settle_s=0 if snapshot.share else TWO_TURNS_S,
            deferral=Deferral(),
            memory=RiskMemory(),
        )
    bursts = add_bursts(snapshot, before, at_risk, risky)
    memory = RiskMemory(
        warning_bursts=bursts, deferral=remember_deferral(snapshot, before, at_risk, risky)
    )
    share = policy.lost_notice_share
    return Risk(
        extra=lost_warnings(bursts, snapshot.groups.spot, risky, share),
        settle_s=0,
        deferral=deferral_of(snapshot, memory, risky),
        memory=memory,
    )


# --- warnings that are lost -----------------------------------------------------------------------


def add_bursts(
    snapshot: Snapshot, before: AvailabilityMemory, at_risk: Mapping[str, datetime], risky: Set[str]
) -> tuple[WarningBurst, ...]:
    """Add the new warnings, by pool, and forget the bursts that are over.

    Warnings arrive in bursts: AWS takes many instances of a pool at once.
    """
    pools: dict[str, list[datetime]] = {}
    for instance in snapshot.groups.spot.instances:
        this = instance.instance_id
        if this in risky and this not in before.risky:
            pools.setdefault(instance.pool, []).append(at_risk[this])
    lifetime = timedelta(seconds=snapshot.fleet.availability.notice_s) + LATE
    running = [b for b in before.risk.warning_bursts if snapshot.now - b.since < lifetime]
    added = [
        WarningBurst(since=min(since), pool=pool, warned=len(since))
        for pool, since in sorted(pools.items())
    ]
    return (*running, *added)


def lost_warnings(
    bursts: Sequence[WarningBurst], spot: Group, risky: Set[str], lost_notice_share: float
) -> int:
    """Estimate how many instances of the warned pools are lost without a warning, rounded up.

    While a burst lasts, some of the pool's other instances count as warned, too. How many follows
    from the warnings seen: if one in ten warnings is lost, nine warnings mean ten losses.
    """
    if not bursts:
        return 0
    warned: Counter[str] = Counter()
    for burst in bursts:
        warned[burst.pool] += burst.warned
    others = Counter(
        [
            i.pool
            for i in spot.instances
            if i.phase is Phase.IN_SERVICE and i.instance_id not in risky
        ]
    )
    return sum(
        [min(others[pool], math.ceil(lost_notice_share * count)) for pool, count in warned.items()]
    )


# --- backfill in time -----------------------------------------------------------------------------


def deferral_of(snapshot: Snapshot, memory: RiskMemory, risky: Set[str]) -> Deferral:
    """Count the warned instances that are gone no sooner than the lead from now.

    A warned instance serves until AWS takes it. Its backfill is deferred until the lead before
    that: the longest of the last starts of the on-demand group, and a margin. The allowance for
    lost warnings waits as long. Nothing is deferred when no turn would run in time, or when
    on-demand was refused and may need the time. Until `STARTS` starts were measured, no more are
    deferred than were: the warm pool may hold no others.
    """
    now, spot, policy = snapshot.now, snapshot.groups.spot, snapshot.fleet.availability
    lead = lead_of(memory.deferral, policy, now)
    if lead is None or not snapshot.can_defer or snapshot.on_demand_refused:
        return Deferral()
    soon = now + SLACK
    dues = [at - lead for at in memory.deferral.gone_at.values() if at - lead > soon]
    notice = timedelta(seconds=policy.notice_s)
    by_burst = [(burst, burst.since + notice - lead) for burst in memory.warning_bursts]
    ripe = [burst for burst, due in by_burst if due <= soon]
    whole, now_due = [
        lost_warnings(bursts, spot, risky, policy.lost_notice_share)
        for bursts in (memory.warning_bursts, ripe)
    ]
    allowance = whole - now_due
    instants = [*dues, *[due for _, due in by_burst if allowance and due > soon]]
    measured = len([start for start in memory.deferral.starts if start.served])
    most = measured if measured < STARTS else len(dues) + allowance
    return Deferral(instances=min(most, len(dues) + allowance), until=min(instants, default=None))


def lead_of(memory: DeferralMemory, policy: AvailabilityPolicy, now: datetime) -> timedelta | None:
    """Say how long before a loss on-demand is requested; None where that is at once.

    An instance that is launching for longer than others took shows that starts are slower now.
    """
    if not policy.on_demand_warm or not any(start.served for start in memory.starts):
        return None
    longest = max((start.served or now) - start.began for start in memory.starts)
    lead = longest + timedelta(seconds=policy.deferral_margin_s)
    return lead if lead < timedelta(seconds=policy.notice_s) else None


def remember_deferral(
    snapshot: Snapshot, before: AvailabilityMemory, at_risk: Mapping[str, datetime], risky: Set[str]
) -> DeferralMemory:
    """Update the measured starts, and when the warned instances that serve will be gone.

    Of those that have left their group, only detached ones still serve.
    """
    groups, now = snapshot.groups, snapshot.now
    memory = watch_starts(
        before.risk.deferral, groups.on_demand, snapshot.served, now, snapshot.on_demand_refused
    )
    notice = timedelta(seconds=snapshot.fleet.availability.notice_s)
    inside = {i.instance_id: i for i in groups.spot.instances}
    outside = before.detached.keys() - snapshot.taken - inside.keys()
    gone_at = {i: at for i, at in memory.gone_at.items() if i in outside}
    for i, instance in inside.items():
        serves = instance.phase is Phase.IN_SERVICE and instance.healthy
        if serves and i in risky and i not in snapshot.silent:
            gone_at[i] = at_risk[i] + notice
    return replace(memory, gone_at={i: at for i, at in gone_at.items() if at > now})


def watch_starts(
    memory: DeferralMemory,
    on_demand: Group,
    served: Mapping[str, datetime],
    now: datetime,
    refused: bool = False,
) -> DeferralMemory:
    """Measure how long on-demand takes to serve, from the last turn without the instance.

    Turns are late, so that a start may look longer than it was; `served` has the instants that
    events reported. After AWS refused a launch, the wait for the next attempt is in the time, so
    that nothing is measured.
    """
    present = {i.instance_id: i for i in on_demand.instances if i.phase is not Phase.LEAVING}
    starts = list(memory.starts)
    if memory.seen_at is not None and not refused:
        new = [i for i in present if i not in memory.known]
        starts += [Start(instance_id=i, began=memory.seen_at) for i in new]
    followed = [
        _followed(start, present[start.instance_id].phase is Phase.IN_SERVICE, served, now)
        if start.instance_id in present
        else start
        for start in starts
        if start.served or start.instance_id in present
    ]
    starting = [start for start in followed if not start.served]
    done = sorted([s for s in followed if s.served], key=lambda s: s.served or now)
    return replace(memory, seen_at=now, known=tuple(present), starts=(*done[-STARTS:], *starting))


def _followed(
    start: Start, in_service: bool, served: Mapping[str, datetime], now: datetime
) -> Start:
    known = [start.served] if start.served else []
    if in_service:
        known.append(now)
    if start.instance_id in served:
        known.append(max(served[start.instance_id], start.began))
    return replace(start, served=min(known)) if known else start
