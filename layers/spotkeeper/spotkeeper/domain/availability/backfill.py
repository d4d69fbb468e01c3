"""How much on-demand stands in for spot: filled at once, given back slowly (rules 3, 5, 6, 7)."""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.memory import AvailabilityMemory, settled
from spotkeeper.domain.availability.situation import View, within
from spotkeeper.domain.availability.spare import spell_spares
from spotkeeper.domain.availability.spell import heavy_losses, spell_settle_s
from spotkeeper.domain.decision import Action
from spotkeeper.domain.failure import Remedy, remedy
from spotkeeper.domain.fleet import AvailabilityPolicy
from spotkeeper.domain.release import ReleasePlan, plan_release

# Every ended instance is an event that makes a turn: the steps go by time, not by turns.
STEP_EVERY_S = 60
# A launch may fail before a turn sees the gap that it was meant to fill.
GAP_SLACK = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The on-demand size wanted, the rule that bound it, why, and the memory after.

    `desired` is set before `ends` are ended, each of which lowers it by one.
    """

    action: Action
    rule: str
    why: str
    desired: int
    ends: tuple[str, ...] = ()
    memory: AvailabilityMemory


def size_backfill(view: View) -> Size:
    """Fill what is missing first; give back only when nothing is missing any more."""
    wanted, rule = _wanted(view)
    if wanted > view.on_demand.target:
        return _fill(view, wanted, rule)
    excess = view.on_demand.target - max(wanted, _still_needed(view))
    if excess <= 0:
        return _at_target(view)
    return _give_back(view, excess)


def _wanted(view: View) -> tuple[int, str]:
    """Clamp the shortfall to what the failure class, the operator and the group allow."""
    group, bounds = view.situation.seen.on_demand, view.situation.fleet.bounds
    shortfall = view.short_now
    need, rule = shortfall + (view.on_demand.at_risk if shortfall else 0), "backfill"
    if need > view.policy.configuration_cap and _only_capped(view):
        cap = view.policy.configuration_cap
        need, rule = max(cap, min(need, group.desired)), "configuration cap"
    most = min(bounds.on_demand_max, group.maximum)
    if need > most:
        need, rule = most, "on-demand maximum"
    return max(need, min(group.minimum, most)), rule


def _only_capped(view: View) -> bool:
    """Say whether all that is known of the gap is a reason that more instances will not cure.

    Failures of an earlier gap, which the group has filled since, tell nothing of this one.
    """
    since = view.memory.gap_since
    remedies = {
        remedy(failure.failure_class)
        for failure in view.spot_failures
        if since is None or failure.at >= since - GAP_SLACK
    }
    if view.spot.late:
        remedies.add(Remedy.BACKFILL_CAPPED)
    return Remedy.BACKFILL_CAPPED in remedies and Remedy.BACKFILL not in remedies


def _fill(view: View, wanted: int, rule: str) -> Size:
    memory, now, policy = view.memory, view.now, view.policy
    if memory.retry_at is not None and now < memory.retry_at:
        why = f"both groups are short: on-demand stays until {_clock(memory.retry_at)}"
        return _hold(view, "both short", why)
    after = replace(memory, last_backfill=now, release_due=None)
    if within(memory.last_release, now, policy.breaker_window_s):
        after = _trip(after, policy, now)
    why = f"on-demand {view.on_demand.target} -> {wanted}"
    return Size(action=Action.BACKFILL, rule=rule, why=why, desired=wanted, memory=after)


def _trip(
    memory: AvailabilityMemory, policy: AvailabilityPolicy, now: datetime
) -> AvailabilityMemory:
    """Count a backfill soon after a release as a flap; enough of them open the breaker."""
    flaps = (*memory.flaps, now)
    if len(flaps) < policy.breaker_count:
        return replace(memory, flaps=flaps)
    until = now + timedelta(seconds=policy.breaker_recovery_s)
    return replace(memory, flaps=(), breaker_until=until)


def _still_needed(view: View) -> int:
    """Keep what settled spot instances have not made needless: make before break.

    What is only coming stays too: the spot instance that would replace it may be lost before it
    serves.
    """
    steady = min(settled(view.memory.levels, view.now, _settle_s(view)), view.spot.serving)
    return max(view.situation.seen.on_demand.minimum, view.goal - steady)


def _settle_s(view: View) -> int:
    """Say how long spot must have served; a warm group that went too early is soon back."""
    policy = view.policy
    if policy.on_demand_warm:
        return policy.warm_settle_s
    need = view.spot.target
    spares = spell_spares(view.situation.fleet, view.situation.seen.spot, need)
    heavy = heavy_losses(view.memory.losses, need, spares)
    return spell_settle_s(policy, heavy, spell=view.spell)


def _at_target(view: View) -> Size:
    memory = view.memory
    if memory.release_due is not None:
        memory = replace(memory, release_due=None)
    if view.put_off and view.bridge.until:
        wait_s = (view.bridge.until - view.now).total_seconds()
        why = f"warned instances serve on: backfill for them in {wait_s:.0f} s"
        return _hold(view, "just in time", why, memory)
    if view.on_demand.target:
        return _hold(view, "make before break", "the backfill is still needed", memory)
    return _hold(view, "at target", "nothing is missing", memory)


def _give_back(view: View, excess: int) -> Size:
    """Release a step at a time, unless spot flaps: never launched first, busy last."""
    group = view.situation.seen.on_demand
    memory, now, policy = view.memory, view.now, view.policy
    if memory.breaker_until is not None and now < memory.breaker_until:
        return _hold(
            view, "breaker", f"spot flaps: no release until {_clock(memory.breaker_until)}"
        )
    if within(memory.last_backfill, now, policy.quiet_s):
        return _hold(view, "quiet time", f"{excess} to release after the quiet time")
    if policy.release_step < 1 and within(memory.last_release, now, STEP_EVERY_S):
        return _hold(view, "step", f"{excess} to release in the next step")
    memory = replace(memory, release_due=memory.release_due or now)
    busy_too = not within(memory.release_due, now, policy.busy_patience_s)
    step = min(excess, max(1, math.ceil(policy.release_step * group.desired)))
    plan = plan_release(group, step, view.situation.activity, busy_too=busy_too)
    if not plan.ends and plan.desired == group.desired:
        return _hold(view, "busy", f"{excess} to release when they have finished", memory)
    return _given_back(view, plan, replace(memory, last_release=now))


def _given_back(view: View, plan: ReleasePlan, memory: AvailabilityMemory) -> Size:
    after = plan.desired - len(plan.ends)
    why = f"spot has settled: on-demand {view.on_demand.target} -> {after}"
    return Size(
        action=Action.RELEASE,
        rule="release",
        why=why,
        desired=plan.desired,
        ends=plan.ends,
        memory=memory,
    )


def _hold(view: View, rule: str, why: str, memory: AvailabilityMemory | None = None) -> Size:
    desired = view.on_demand.target
    return Size(
        action=Action.HOLD, rule=rule, why=why, desired=desired, memory=memory or view.memory
    )


def _clock(at: datetime) -> str:
    return at.strftime("%H:%M:%S")
