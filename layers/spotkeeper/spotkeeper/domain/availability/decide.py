"""Desired against serving: what the availability half does in a turn, as one pure function.

`decide` counts (counting), sizes the backfill (backfill), holds spares (spare), and answers
interruptions (here).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.backfill import size_backfill
from spotkeeper.domain.availability.counting import Count, count, live_asks, remember_coming
from spotkeeper.domain.availability.just_in_time import bridge_of, bridging, look_again
from spotkeeper.domain.availability.memory import Ask, AvailabilityMemory, add_level
from spotkeeper.domain.availability.pools import remember_pools
from spotkeeper.domain.availability.situation import Situation, View, suspended_launches, within
from spotkeeper.domain.availability.spare import kept_spares, spell_spares
from spotkeeper.domain.availability.spell import add_losses, in_spell, longest_settle_s
from spotkeeper.domain.availability.wave import Wave, add_waves, unwarned_losses
from spotkeeper.domain.capacity_request import CapacityRequest, required_capacity
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import FailureClass, needs_operator
from spotkeeper.domain.fleet import AvailabilityPolicy, Group, Observation, Phase
from spotkeeper.domain.release import ReleasePlan, plan_release

# A warned instance that is still in service so long after was not taken: it counts again.
WARNING_LIFETIME = timedelta(minutes=15)
BACKOFF_FIRST_S = 60
BACKOFF_LONGEST_S = 900
AZ_REBALANCE = "AZRebalance"


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityDecision:
    """What the availability half wants: sizes, single instances, alarms, and why.

    `drain` are newly at risk, the first of them gone at `gone_at`.
    `on_demand_desired` is set before `ends` are ended, each of which lowers it by one; likewise
    `spot_desired` and `spot_ends`. `look_again_at` is when a turn is due for what was put off,
    unless one was asked for already.
    """

    action: Action
    rule: str
    reason: str
    on_demand_desired: int
    ends: tuple[str, ...]
    spot_desired: int
    spot_ends: tuple[str, ...]
    drain: tuple[str, ...]
    gone_at: datetime
    detach: tuple[str, ...]
    terminate: tuple[str, ...]
    suspend: tuple[str, ...]
    look_again_at: datetime | None
    alarms: tuple[str, ...]
    spot: Count
    on_demand: Count
    shortfall: int
    memory: AvailabilityMemory

    @property
    def unfilled(self) -> int:
        """Instances that neither group serves at this moment."""
        return max(0, self.spot.target - self.spot.serving - self.on_demand.serving)


def decide(situation: Situation) -> AvailabilityDecision:
    """Decide one turn; the same situation always gives the same decision."""
    view = look(situation)
    size = size_backfill(view)
    spares, memory = _spares(view, size.memory)
    detach = _early_replacements(view)
    memory = _remember_detached(memory, detach, view)
    look_again_at, memory = look_again(view, memory)
    return AvailabilityDecision(
        action=size.action,
        rule=size.rule,
        reason=f"{_tell(view)}; {size.why}{_explain(view)}",
        on_demand_desired=size.desired,
        ends=size.ends,
        spot_desired=spares.desired,
        spot_ends=spares.ends,
        drain=tuple(sorted(view.risky.difference(situation.memory.drained))),
        gone_at=_gone_at(view),
        detach=detach,
        terminate=_left_running(situation, memory),
        suspend=_to_suspend(situation.seen, view.policy),
        look_again_at=look_again_at,
        alarms=_alarms(view, memory),
        spot=view.spot,
        on_demand=view.on_demand,
        shortfall=view.shortfall,
        memory=memory,
    )


def look(situation: Situation) -> View:
    """Count both groups and bring the memory's timers up to now."""
    seen, now, old = situation.seen, situation.seen.seen_at, situation.memory
    policy = situation.fleet.availability
    at_risk = _at_risk(situation)
    risky = frozenset(i for i, at in at_risk.items() if at <= now)
    coming_since = remember_coming(old, (seen.spot, seen.on_demand), now)
    spot, on_demand = _count_both(situation, coming_since, risky)
    failures = (*situation.spot_failures, *suspended_launches(seen.spot, now))
    asks = live_asks(old, spot, failures, _newest_coming(seen, coming_since), policy, now)
    both_short = _both_short(situation, spot, on_demand)
    memory = _remember(situation, spot, at_risk, risky, coming_since, asks)
    spell = in_spell(policy, memory.last_surprise, now)
    return View(
        situation=situation,
        memory=_back_off(memory, now, both_short=both_short),
        spot=spot,
        on_demand=on_demand,
        spell=spell and not policy.on_demand_warm,
        spares=_spares_for(situation, memory, spell=spell),
        hedge=_hedge(memory.waves, seen.spot, risky, policy),
        bridge=bridge_of(situation, memory, risky),
        risky=risky,
        spot_failures=failures,
        both_short=both_short,
    )


def _count_both(
    situation: Situation, coming_since: Mapping[str, datetime], risky: frozenset[str]
) -> tuple[Count, Count]:
    """Count the spot group against the need in its desired capacity, on-demand against its own."""
    seen, silent = situation.seen, situation.silent
    deadline_s = situation.fleet.availability.launch_deadline_s
    deadline = seen.seen_at - timedelta(seconds=deadline_s)
    need = required_capacity(seen.spot.desired, (*situation.memory.spot_asks, situation.sized))
    back = seen.on_demand
    return (
        count(seen.spot, need, coming_since, risky, silent, deadline),
        count(back, back.desired, coming_since, risky, silent, deadline),
    )


def _remember(
    situation: Situation,
    spot: Count,
    at_risk: Mapping[str, datetime],
    risky: frozenset[str],
    coming_since: Mapping[str, datetime],
    asks: tuple[Ask, ...],
) -> AvailabilityMemory:
    """Bring up to now all that is remembered of the groups; what was done comes later."""
    old, group, now = situation.memory, situation.seen.spot, situation.seen.seen_at
    policy = situation.fleet.availability
    surprise = _unannounced(situation, risky)
    newly = {i: at_risk[i] for i in risky.difference(old.drained)}
    return replace(
        old,
        need=spot.target,
        spot_seen=group.desired,
        in_service=_in_service(group, risky),
        asks=asks,
        first_seen_coming=coming_since,
        at_risk=at_risk,
        bridging=bridging(situation, at_risk),
        silent=tuple(sorted(situation.silent)),
        held_since=remember_pools(old.held_since, group, risky, now),
        losses=add_losses(old.losses, surprise, policy.spell_window_s, now),
        last_surprise=now if surprise or _starts_unwarned(situation) else old.last_surprise,
        gap_since=(old.gap_since or now) if spot.missing else None,
        drained=tuple(sorted(risky)),
        waves=add_waves(old.waves, group, newly, policy.notice_s, now),
        levels=add_level(old.levels, now, spot.serving, longest_settle_s(policy)),
        flaps=tuple(f for f in old.flaps if within(f, now, policy.breaker_window_s)),
    )


def _hedge(
    waves: tuple[Wave, ...], spot: Group, risky: frozenset[str], policy: AvailabilityPolicy
) -> int:
    """Hedge against lost warnings where on-demand is warm: a cold one comes too late to help."""
    if not policy.on_demand_warm:
        return 0
    return unwarned_losses(waves, spot, risky, policy.lost_notice_share)


def _at_risk(situation: Situation) -> dict[str, datetime]:
    """Merge old and new warnings of instances still in a group; a repeated one changes nothing."""
    now, seen = situation.seen.seen_at, situation.seen
    old, warned = situation.memory.at_risk, situation.warned
    if not old and not warned:
        return {}
    present = {i.instance_id for g in (seen.spot, seen.on_demand) for i in g.instances}
    merged = {**warned, **old}
    return {k: at for k, at in merged.items() if k in present and now - at < WARNING_LIFETIME}


def _newest_coming(seen: Observation, coming_since: Mapping[str, datetime]) -> datetime | None:
    """Say when the newest of the coming spot instances was first seen."""
    coming = (i.instance_id for i in seen.spot.instances if i.phase is Phase.COMING)
    return max((coming_since[i] for i in coming), default=None)


def _in_service(group: Group, risky: frozenset[str]) -> int:
    return sum(i.phase is Phase.IN_SERVICE and i.instance_id not in risky for i in group.instances)


def _unannounced(situation: Situation, risky: frozenset[str]) -> int:
    """Count the losses that nothing explains: no warning, no smaller group, no hung worker."""
    old, group = situation.memory, situation.seen.spot
    lost = old.in_service - _in_service(group, risky)
    if old.spot_seen is None or lost <= 0:
        return 0
    present = _serving_ids(situation)
    explained = (
        len(risky.difference(old.drained))
        + max(0, old.spot_seen - group.desired)
        + len(situation.silent.union(old.silent) - present)
    )
    return max(0, lost - explained)


def _starts_unwarned(situation: Situation) -> bool:
    """Say whether a fleet begins where no warning comes: new instances go soonest."""
    return situation.memory.spot_seen is None and not situation.fleet.availability.notice_s


def _spares_for(situation: Situation, memory: AvailabilityMemory, *, spell: bool) -> int:
    """Size the spares; a warm group is back before the next loss is likely and needs none."""
    fleet, spot, need = situation.fleet, situation.seen.spot, memory.need or 0
    if fleet.availability.on_demand_warm:
        return 0
    if spell:
        return spell_spares(fleet, spot, need)
    return kept_spares(fleet, spot, need, memory.held_since, situation.seen.seen_at)


def _both_short(situation: Situation, spot: Count, on_demand: Count) -> bool:
    """Say whether on-demand was asked, does not come, and AWS says why (rule 7)."""
    gap = spot.target - spot.serving - on_demand.serving
    return situation.on_demand_refused and gap > 0 and on_demand.missing > 0


def _back_off(memory: AvailabilityMemory, now: datetime, *, both_short: bool) -> AvailabilityMemory:
    if not both_short:
        return replace(memory, backoff_s=0, retry_at=None) if memory.backoff_s else memory
    if memory.retry_at is not None and now < memory.retry_at:
        return memory
    backoff = min(BACKOFF_LONGEST_S, max(BACKOFF_FIRST_S, 2 * memory.backoff_s))
    return replace(memory, backoff_s=backoff, retry_at=now + timedelta(seconds=backoff))


def _spares(view: View, memory: AvailabilityMemory) -> tuple[ReleasePlan, AvailabilityMemory]:
    """Ask for spares in a spell of losses without warning, and give them back after it."""
    group, need, now, wanted = view.situation.seen.spot, view.spot.target, view.now, view.spares
    held = group.desired - need
    if wanted == held:
        return ReleasePlan(desired=group.desired), memory
    # Both are kept: until the call is done, the group still shows the one before.
    asks = (
        CapacityRequest(at=now, need=need, spare=held),
        CapacityRequest(at=now, need=need, spare=wanted),
    )
    memory = replace(memory, spot_asks=asks)
    if wanted > held:
        return ReleasePlan(desired=need + wanted), memory
    activity = view.situation.activity
    since = memory.held_since
    return plan_release(group, held - wanted, activity, busy_too=True, held_since=since), memory


def _early_replacements(view: View) -> tuple[str, ...]:
    """Name the instances at risk whose replacement is asked for before AWS takes them."""
    if not view.policy.early_replacement or view.both_short or not view.risky:
        return ()
    return tuple(
        i.instance_id
        for i in view.situation.seen.spot.instances
        if i.phase is Phase.IN_SERVICE and i.instance_id in view.risky
    )


def _gone_at(view: View) -> datetime:
    """Say when the first of the instances at risk will be gone; workers serve on until then."""
    newly = view.risky.difference(view.situation.memory.drained)
    first = min((view.memory.at_risk[i] for i in newly or view.risky), default=view.now)
    return first + timedelta(seconds=view.policy.notice_s)


def _remember_detached(
    memory: AvailabilityMemory, detach: tuple[str, ...], view: View
) -> AvailabilityMemory:
    """Keep detached instances until the launch deadline: what AWS leaves then, the turn ends."""
    if not memory.detached and not detach:
        return memory
    deadline_s = view.policy.launch_deadline_s
    stayed = _serving_ids(view.situation)
    kept = {
        instance_id: at
        for instance_id, at in memory.detached.items()
        if within(at, view.now, deadline_s) and instance_id not in stayed
    }
    return replace(memory, detached={**kept, **dict.fromkeys(detach, view.now)})


def _left_running(situation: Situation, memory: AvailabilityMemory) -> tuple[str, ...]:
    """Name the detached instances past their deadline; one that is in the group never left it."""
    over = situation.memory.detached.keys() - memory.detached.keys()
    return tuple(sorted(over - _serving_ids(situation)))


def _serving_ids(situation: Situation) -> set[str]:
    group = situation.seen.spot
    return {i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE}


def _to_suspend(seen: Observation, policy: AvailabilityPolicy) -> tuple[str, ...]:
    if not policy.suspend_az_rebalance:
        return ()
    return tuple(g.name for g in (seen.spot, seen.on_demand) if AZ_REBALANCE not in g.suspended)


def _alarms(view: View, memory: AvailabilityMemory) -> tuple[str, ...]:
    named = {f.failure_class.value for f in view.failures if needs_operator(f.failure_class)}
    if view.spot.late or view.on_demand.late:
        named.add(FailureClass.BOOTSTRAP.value)
    if view.both_short:
        named.add("both_short")
    if memory.breaker_until is not None and view.now < memory.breaker_until:
        named.add("breaker")
    return tuple(sorted(named))


def _tell(view: View) -> str:
    spot, on_demand = view.spot, view.on_demand
    parts = [f"spot {spot.serving} of {spot.target} serving"]
    counts = (
        (spot.coming, "coming"),
        (spot.late, "past the launch deadline"),
        (spot.at_risk, "at risk"),
        (view.shortfall, "short"),
    )
    parts += [f"{number} {word}" for number, word in counts if number]
    if on_demand.target:
        parts.append(f"on-demand {on_demand.serving} of {on_demand.target} serving")
    return ", ".join(parts)


def _explain(view: View) -> str:
    """Quote the newest failure while spot is not whole."""
    if not view.failures or view.spot.serving >= view.spot.target:
        return ""
    newest = max(view.failures, key=lambda failure: failure.at)
    return f" ({newest.failure_class}: {newest.message})"
