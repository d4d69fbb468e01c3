"""A warned instance serves on until AWS takes it: warm on-demand is asked for just in time.

So it bridges its own loss until the lead before it is gone: the longest of the last starts of the
on-demand group, and a margin. Nothing is put off before a start was measured.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.bridge import Bridge, BridgeMemory, watch_starts, watch_warned
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.situation import Situation, View
from spotkeeper.domain.availability.wave import unwarned_losses
from spotkeeper.domain.fleet import AvailabilityPolicy

# A turn at work when a wake-up comes goes round again as of its own beginning: what is due this
# soon is due.
SLACK = timedelta(seconds=5)


def bridging(situation: Situation, at_risk: Mapping[str, datetime]) -> BridgeMemory:
    """Bring up to now what is remembered of warm starts and of warned instances that serve on."""
    seen, old = situation.seen, situation.memory
    if not situation.fleet.availability.on_demand_warm:
        return BridgeMemory()
    refused = situation.on_demand_refused
    memory = watch_starts(old.bridging, seen.on_demand, situation.served, seen.seen_at, refused)
    outside = old.detached.keys() - situation.taken
    notice = timedelta(seconds=situation.fleet.availability.notice_s)
    return watch_warned(memory, seen, at_risk, situation.silent, outside, notice)


def bridge_of(situation: Situation, memory: AvailabilityMemory, risky: Set[str]) -> Bridge:
    """Count the warned instances that are gone no sooner than the lead from now.

    The hedge against warnings that were lost with theirs waits as long. Nothing does when nobody
    would look again in time, or when on-demand may need the time because it was refused.
    """
    now, spot, policy = situation.seen.seen_at, situation.seen.spot, situation.fleet.availability
    lead = lead_of(memory.bridging, policy, now)
    if lead is None or not situation.may_wait or situation.on_demand_refused:
        return Bridge()
    soon = now + SLACK
    dues = [at - lead for at in memory.bridging.gone_at.values() if at - lead > soon]
    notice = timedelta(seconds=policy.notice_s)
    by_wave = [(wave, wave.since + notice - lead) for wave in memory.waves]
    ripe = tuple(wave for wave, due in by_wave if due <= soon)
    whole, now_due = (
        unwarned_losses(waves, spot, risky, policy.lost_notice_share)
        for waves in (memory.waves, ripe)
    )
    hedge = whole - now_due
    instants = [*dues, *(due for _, due in by_wave if hedge and due > soon)]
    return Bridge(instances=len(dues) + hedge, until=min(instants, default=None))


def lead_of(memory: BridgeMemory, policy: AvailabilityPolicy, now: datetime) -> timedelta | None:
    """Say how long before a loss on-demand is asked for; None where that is at once.

    What is coming for longer than others took tells of slower starts already.
    """
    if not policy.on_demand_warm or not any(start.served for start in memory.starts):
        return None
    longest = max((start.served or now) - start.began for start in memory.starts)
    lead = longest + timedelta(seconds=policy.bridge_margin_s)
    return lead if lead < timedelta(seconds=policy.notice_s) else None


def look_again(
    view: View, memory: AvailabilityMemory
) -> tuple[datetime | None, AvailabilityMemory]:
    """Say when a turn is due for what was put off, and remember it: once for each instant."""
    until, looks = view.bridge.until, memory.bridging.looks
    if until is None or not view.put_off or until in looks:
        return None, memory
    return until, replace(memory, bridging=replace(memory.bridging, looks=(*looks, until)))
