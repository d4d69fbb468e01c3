"""Desired against serving: how much backfill a fleet needs, and when it goes back.

`decide` is the whole availability half as one pure function; design rules 3 to 7 are one small
function each.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability_memory import (
    AvailabilityMemory,
    Level,
    add_level,
    settled,
)
from spotkeeper.domain.counting import Count, count, live_asks, remember_coming
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import (
    FailureClass,
    LaunchFailure,
    Remedy,
    needs_operator,
    remedy,
)
from spotkeeper.domain.fleet import Activity, AvailabilityPolicy, Fleet, Group, Observation, Phase
from spotkeeper.domain.release import ReleasePlan, plan_release

# A warned instance that is still in service so long after was not taken: it counts again.
WARNING_LIFETIME = timedelta(minutes=15)
BACKOFF_FIRST_S = 60
BACKOFF_LONGEST_S = 900
AZ_REBALANCE = "AZRebalance"
LAUNCH = "Launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a turn of the availability half knows; failures are the recent ones only.

    `warned` maps instances named by events or spot requests to when they begin to be at risk.
    """

    fleet: Fleet
    seen: Observation
    memory: AvailabilityMemory = field(default_factory=AvailabilityMemory)
    spot_failures: tuple[LaunchFailure, ...] = ()
    on_demand_failures: tuple[LaunchFailure, ...] = ()
    warned: Mapping[str, datetime] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    activity: Activity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityDecision:
    """What the availability half wants: sizes, single instances, alarms, and why.

    `on_demand_desired` is set before `ends` are ended, each of which lowers it by one.
    """

    action: Action
    rule: str
    reason: str
    on_demand_desired: int
    ends: tuple[str, ...]
    drain: tuple[str, ...]
    detach: tuple[str, ...]
    terminate: tuple[str, ...]
    suspend: tuple[str, ...]
    alarms: tuple[str, ...]
    spot: Count
    on_demand: Count
    shortfall: int
    memory: AvailabilityMemory

    @property
    def unfilled(self) -> int:
        """Instances that neither group serves at this moment."""
        return max(0, self.spot.desired - self.spot.serving - self.on_demand.serving)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """An intermediate answer: the size wanted, the rule that bound it, the memory after."""

    action: Action
    rule: str
    why: str
    desired: int
    ends: tuple[str, ...] = ()
    memory: AvailabilityMemory


def decide(situation: Situation) -> AvailabilityDecision:
    """Decide one turn; the same situation always gives the same decision."""
    fleet, seen, now = situation.fleet, situation.seen, situation.seen.seen_at
    policy = fleet.availability
    at_risk = _at_risk(situation)
    risky = _begun(at_risk, now)
    memory, spot, on_demand = _look(situation, risky)
    shortfall = max(
        0, spot.desired - spot.serving - spot.coming - sum(ask.count for ask in memory.asks)
    )
    both_short = _both_short(situation, spot, on_demand)
    memory = _back_off(memory, now, both_short=both_short)
    size = _size(situation, memory, spot, on_demand, shortfall)
    detach = _early_replacements(seen.spot, risky, policy, both_short=both_short)
    memory = _remember_detached(
        replace(size.memory, at_risk=at_risk, drained=tuple(sorted(risky))), detach, policy, now
    )
    return AvailabilityDecision(
        action=size.action,
        rule=size.rule,
        reason=f"{_tell(spot, on_demand, shortfall)}; {size.why}{_explain(situation, spot)}",
        on_demand_desired=size.desired,
        ends=size.ends,
        drain=tuple(sorted(risky.difference(situation.memory.drained))),
        detach=detach,
        terminate=tuple(sorted(situation.memory.detached.keys() - memory.detached.keys())),
        suspend=_to_suspend(seen, policy),
        alarms=_alarms(situation, memory, spot, on_demand, both_short=both_short),
        spot=spot,
        on_demand=on_demand,
        shortfall=shortfall,
        memory=memory,
    )


def _at_risk(situation: Situation) -> dict[str, datetime]:
    """Merge old and new warnings of instances still in a group; a repeated one changes nothing."""
    now, seen = situation.seen.seen_at, situation.seen
    old, warned = situation.memory.at_risk, situation.warned
    if not old and not warned:
        return {}
    present = {i.instance_id for g in (seen.spot, seen.on_demand) for i in g.instances}
    merged = {**warned, **old}
    return {k: at for k, at in merged.items() if k in present and now - at < WARNING_LIFETIME}


def _begun(at_risk: Mapping[str, datetime], now: datetime) -> set[str]:
    return {instance_id for instance_id, at in at_risk.items() if at <= now}


def _look(situation: Situation, risky: set[str]) -> tuple[AvailabilityMemory, Count, Count]:
    """Count both groups and bring the memory's timers up to now."""
    seen, now, old = situation.seen, situation.seen.seen_at, situation.memory
    policy = situation.fleet.availability
    coming_since = remember_coming(old, (seen.spot, seen.on_demand), now)
    deadline = now - timedelta(seconds=policy.launch_deadline_s)
    spot = count(seen.spot, coming_since, risky, situation.silent, deadline)
    on_demand = count(seen.on_demand, coming_since, risky, situation.silent, deadline)
    newest = max(
        (coming_since[i.instance_id] for i in seen.spot.instances if i.phase is Phase.COMING),
        default=None,
    )
    failures = (*situation.spot_failures, *_suspended_launches(seen.spot, now))
    asks = live_asks(old, spot.desired, spot.missing, failures, newest, policy, now)
    memory = replace(
        old,
        spot_desired=spot.desired,
        asks=asks,
        first_seen_coming=coming_since,
        levels=_levels(old.levels, now, spot, policy),
        flaps=tuple(f for f in old.flaps if _within(f, now, policy.breaker_window_s)),
    )
    return memory, spot, on_demand


def _levels(
    levels: tuple[Level, ...], now: datetime, spot: Count, policy: AvailabilityPolicy
) -> tuple[Level, ...]:
    return add_level(levels, now, spot.serving, policy.settle_s)


def _size(
    situation: Situation, memory: AvailabilityMemory, spot: Count, on_demand: Count, shortfall: int
) -> _Size:
    """Backfill first (rule 3), release only when nothing is missing any more (rule 5)."""
    wanted, rule = _wanted(situation, spot, on_demand, shortfall)
    if wanted > on_demand.desired:
        return _backfill(situation, memory, on_demand, wanted, rule)
    return _release(situation, memory, spot, on_demand, wanted)


def _wanted(situation: Situation, spot: Count, on_demand: Count, shortfall: int) -> tuple[int, str]:
    """Clamp the shortfall to what the failure class, the operator and the group allow."""
    group, bounds = situation.seen.on_demand, situation.fleet.bounds
    need = shortfall + on_demand.at_risk if shortfall else 0
    rule = "backfill"
    cap = situation.fleet.availability.configuration_cap
    if _only_capped(situation, spot) and need > cap:
        need, rule = max(cap, min(need, group.desired)), "configuration cap"
    most = min(bounds.on_demand_max, group.maximum)
    if need > most:
        need, rule = most, "on-demand maximum"
    return max(need, min(group.minimum, most)), rule


def _only_capped(situation: Situation, spot: Count) -> bool:
    """Say whether all that is known of the gap is a reason that more instances will not cure."""
    remedies = {remedy(f.failure_class) for f in situation.spot_failures}
    if _suspended_launches(situation.seen.spot, situation.seen.seen_at) or spot.late:
        remedies.add(Remedy.BACKFILL_CAPPED)
    return Remedy.BACKFILL_CAPPED in remedies and Remedy.BACKFILL not in remedies


def _backfill(
    situation: Situation, memory: AvailabilityMemory, on_demand: Count, wanted: int, rule: str
) -> _Size:
    now, policy = situation.seen.seen_at, situation.fleet.availability
    if memory.retry_at is not None and now < memory.retry_at:
        until = _clock(memory.retry_at)
        why = f"both groups are short: on-demand stays {on_demand.desired} until {until}"
        return _Size(
            action=Action.HOLD, rule="both short", why=why, desired=on_demand.desired, memory=memory
        )
    after = replace(memory, last_backfill=now, release_due=None)
    if memory.last_release and _within(memory.last_release, now, policy.breaker_window_s):
        after = _trip(after, policy, now)
    why = f"on-demand {on_demand.desired} -> {wanted}"
    return _Size(action=Action.BACKFILL, rule=rule, why=why, desired=wanted, memory=after)


def _trip(
    memory: AvailabilityMemory, policy: AvailabilityPolicy, now: datetime
) -> AvailabilityMemory:
    """Count a backfill soon after a release as a flap; enough of them open the breaker."""
    flaps = (*memory.flaps, now)
    if len(flaps) < policy.breaker_count:
        return replace(memory, flaps=flaps)
    until = now + timedelta(seconds=policy.breaker_recovery_s)
    return replace(memory, flaps=(), breaker_until=until)


def _release(
    situation: Situation, memory: AvailabilityMemory, spot: Count, on_demand: Count, wanted: int
) -> _Size:
    """Give back what settled spot instances make needless, a step at a time (rule 5)."""
    seen, policy, now = situation.seen, situation.fleet.availability, situation.seen.seen_at
    steady = min(settled(memory.levels, now, policy.settle_s), spot.serving)
    keep = max(wanted, spot.desired - steady, seen.on_demand.minimum)
    excess = on_demand.desired - keep

    def hold(rule: str, why: str, kept: AvailabilityMemory) -> _Size:
        return _Size(action=Action.HOLD, rule=rule, why=why, desired=on_demand.desired, memory=kept)

    if excess <= 0:
        why = "nothing is missing" if not on_demand.desired else f"backfill of {keep} still needed"
        return hold(
            "at target" if not on_demand.desired else "make before break",
            why,
            replace(memory, release_due=None),
        )
    if memory.breaker_until and now < memory.breaker_until:
        return hold(
            "breaker", f"spot flaps: no release until {_clock(memory.breaker_until)}", memory
        )
    if memory.last_backfill and _within(memory.last_backfill, now, policy.quiet_s):
        return hold("quiet time", f"{excess} to release after the quiet time", memory)
    due = memory.release_due or now
    busy_too = not _within(due, now, policy.busy_patience_s)
    step = min(excess, max(1, math.ceil(policy.release_step * on_demand.desired)))
    plan = plan_release(seen.on_demand, step, situation.activity, busy_too=busy_too)
    if not plan.ends and plan.desired == on_demand.desired:
        return hold(
            "busy", f"{excess} to release when they have finished", replace(memory, release_due=due)
        )
    return _released(plan, replace(memory, release_due=due, last_release=now), on_demand, steady)


def _released(
    plan: ReleasePlan, memory: AvailabilityMemory, on_demand: Count, steady: int
) -> _Size:
    after = plan.desired - len(plan.ends)
    why = f"{steady} spot settled: on-demand {on_demand.desired} -> {after}"
    return _Size(
        action=Action.RELEASE,
        rule="release",
        why=why,
        desired=plan.desired,
        ends=plan.ends,
        memory=memory,
    )


def _both_short(situation: Situation, spot: Count, on_demand: Count) -> bool:
    """Say whether on-demand was asked, does not come, and AWS says why (rule 7)."""
    refused = any(remedy(f.failure_class) is not Remedy.NONE for f in situation.on_demand_failures)
    gap = spot.desired - spot.serving - on_demand.serving
    return refused and gap > 0 and on_demand.missing > 0


def _back_off(memory: AvailabilityMemory, now: datetime, *, both_short: bool) -> AvailabilityMemory:
    if not both_short:
        return replace(memory, backoff_s=0, retry_at=None) if memory.backoff_s else memory
    if memory.retry_at is not None and now < memory.retry_at:
        return memory
    backoff = min(BACKOFF_LONGEST_S, max(BACKOFF_FIRST_S, 2 * memory.backoff_s))
    return replace(memory, backoff_s=backoff, retry_at=now + timedelta(seconds=backoff))


def _early_replacements(
    spot: Group, risky: set[str], policy: AvailabilityPolicy, *, both_short: bool
) -> tuple[str, ...]:
    """Name the instances at risk whose replacement is asked for before AWS takes them."""
    if not policy.early_replacement or both_short or not risky:
        return ()
    return tuple(
        i.instance_id
        for i in spot.instances
        if i.phase is Phase.IN_SERVICE and i.instance_id in risky
    )


def _remember_detached(
    memory: AvailabilityMemory, detach: tuple[str, ...], policy: AvailabilityPolicy, now: datetime
) -> AvailabilityMemory:
    """Keep detached instances until the launch deadline: what AWS leaves then, the turn ends."""
    kept = {
        k: at for k, at in memory.detached.items() if _within(at, now, policy.launch_deadline_s)
    }
    return replace(memory, detached={**kept, **dict.fromkeys(detach, now)})


def _suspended_launches(spot: Group, now: datetime) -> tuple[LaunchFailure, ...]:
    """Read a suspended Launch process as a configuration failure: nothing will come."""
    if LAUNCH not in spot.suspended:
        return ()
    message = f"the Launch process of {spot.name} is suspended: resume it"
    return (LaunchFailure(at=now, failure_class=FailureClass.CONFIGURATION, message=message),)


def _to_suspend(seen: Observation, policy: AvailabilityPolicy) -> tuple[str, ...]:
    if not policy.suspend_az_rebalance:
        return ()
    return tuple(g.name for g in (seen.spot, seen.on_demand) if AZ_REBALANCE not in g.suspended)


def _alarms(
    situation: Situation,
    memory: AvailabilityMemory,
    spot: Count,
    on_demand: Count,
    *,
    both_short: bool,
) -> tuple[str, ...]:
    failures = (
        *situation.spot_failures,
        *situation.on_demand_failures,
        *_suspended_launches(situation.seen.spot, situation.seen.seen_at),
    )
    named = {f.failure_class.value for f in failures if needs_operator(f.failure_class)}
    if spot.late or on_demand.late:
        named.add(FailureClass.BOOTSTRAP.value)
    if both_short:
        named.add("both_short")
    if memory.breaker_until and situation.seen.seen_at < memory.breaker_until:
        named.add("breaker")
    return tuple(sorted(named))


def _tell(spot: Count, on_demand: Count, shortfall: int) -> str:
    parts = [f"spot {spot.serving} of {spot.desired} serving"]
    parts += [
        f"{n} {word}"
        for n, word in (
            (spot.coming, "coming"),
            (spot.late, "past the launch deadline"),
            (spot.at_risk, "at risk"),
            (shortfall, "short"),
        )
        if n
    ]
    if on_demand.desired:
        parts.append(f"on-demand {on_demand.serving} of {on_demand.desired} serving")
    return ", ".join(parts)


def _explain(situation: Situation, spot: Count) -> str:
    """Quote the newest failure while spot is not whole."""
    failures = (*situation.spot_failures, *situation.on_demand_failures)
    if not failures or spot.serving >= spot.desired:
        return ""
    newest = max(failures, key=lambda failure: failure.at)
    return f" ({newest.failure_class}: {newest.message})"


def _within(at: datetime, now: datetime, seconds: float) -> bool:
    return now - at < timedelta(seconds=seconds)


def _clock(at: datetime) -> str:
    return at.strftime("%H:%M:%S")
