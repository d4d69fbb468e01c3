"""A warned instance serves on until AWS takes it: warm on-demand is asked for just in time.

So its backfill is deferred until the lead before it is gone: the longest of the last starts of the
on-demand group, and a margin. Nothing is deferred before a start was measured.
"""

from collections.abc import Mapping, Set
from datetime import datetime, timedelta

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.risk.deferral import Deferral, watch_starts, watch_warned
from spotkeeper.domain.availability.risk.warning_burst import lost_warnings
from spotkeeper.domain.availability.risk_memory import DeferralMemory, RiskMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.settings.availability import AvailabilityPolicy

# A turn at work when a wake-up comes goes round again as of its own beginning: what is due this
# soon is due.
SLACK = timedelta(seconds=5)


def remember_deferral(
    snapshot: Snapshot, before: AvailabilityMemory, at_risk: Mapping[str, datetime]
) -> DeferralMemory:
    """Bring up to now what is remembered of warm starts and of warned instances that serve on."""
    seen, policy = snapshot.seen, snapshot.fleet.availability
    if not policy.on_demand_warm:
        return DeferralMemory()
    memory = watch_starts(
        before.risk.deferral,
        seen.on_demand,
        snapshot.served,
        seen.seen_at,
        snapshot.on_demand_refused,
    )
    outside = before.detached.keys() - snapshot.taken
    notice = timedelta(seconds=policy.notice_s)
    return watch_warned(memory, seen, at_risk, snapshot.silent, outside, notice)


def deferral_of(snapshot: Snapshot, memory: RiskMemory, risky: Set[str]) -> Deferral:
    """Count the warned instances that are gone no sooner than the lead from now.

    The allowance for warnings that were lost with theirs waits as long. Nothing does when nobody
    would look again in time, or when on-demand may need the time because it was refused.
    """
    now, spot, policy = snapshot.now, snapshot.seen.spot, snapshot.fleet.availability
    lead = lead_of(memory.deferral, policy, now)
    if lead is None or not snapshot.can_defer or snapshot.on_demand_refused:
        return Deferral()
    soon = now + SLACK
    dues = [at - lead for at in memory.deferral.gone_at.values() if at - lead > soon]
    notice = timedelta(seconds=policy.notice_s)
    by_burst = [(burst, burst.since + notice - lead) for burst in memory.warning_bursts]
    ripe = tuple(burst for burst, due in by_burst if due <= soon)
    whole, now_due = (
        lost_warnings(bursts, spot, risky, policy.lost_notice_share)
        for bursts in (memory.warning_bursts, ripe)
    )
    allowance = whole - now_due
    instants = [*dues, *(due for _, due in by_burst if allowance and due > soon)]
    return Deferral(instances=len(dues) + allowance, until=min(instants, default=None))


def lead_of(memory: DeferralMemory, policy: AvailabilityPolicy, now: datetime) -> timedelta | None:
    """Say how long before a loss on-demand is asked for; None where that is at once.

    What is launching for longer than others took tells of slower starts already.
    """
    if not policy.on_demand_warm or not any(start.served for start in memory.starts):
        return None
    longest = max((start.served or now) - start.began for start in memory.starts)
    lead = longest + timedelta(seconds=policy.deferral_margin_s)
    return lead if lead < timedelta(seconds=policy.notice_s) else None
