"""How much on-demand replaces missing spot: filled at once, released late (rules 3, 5, 6, 7)."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.availability.count import Assessment, of_gap
from spotkeeper.domain.availability.memory import Adoption, settled, within
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Action, Awaited, Awaiting, Request, RequestKind
from spotkeeper.domain.failure import Remedy, remedy
from spotkeeper.domain.release import ReleasePlan, plan_release


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The requests to the on-demand group, the rule that bound them, and why.

    `release_due` is since when a release waits for busy instances, `awaited` what is waited for.
    """

    action: Action
    rule: str
    why: str
    requests: tuple[Request, ...] = ()
    release_due: datetime | None = None
    awaited: Awaited | None = None


def size_backfill(seen: Assessment) -> Size:
    """Fill what is missing first; release only when nothing is missing any more."""
    if not (group := seen.snapshot.groups.on_demand).exists:
        why = f"{group.name} does not exist: create it, or correct the fleet document"
        return _hold("no on-demand group", why)
    wanted, rule = _wanted(seen)
    if wanted > seen.on_demand.target:
        return _fill(seen, wanted, rule)
    excess = seen.on_demand.target - max(wanted, _still_needed(seen))
    if excess <= 0:
        return _at_target(seen)
    return _release(seen, excess)


def _wanted(seen: Assessment) -> tuple[int, str]:
    """Clamp the shortfall to what the failure class, the operator and the group allow."""
    group, bounds = seen.snapshot.groups.on_demand, seen.snapshot.fleet.bounds
    shortfall = seen.short_now
    need, rule = shortfall + (seen.on_demand.at_risk if shortfall else 0), "backfill"
    cap = _cap(seen, need)
    if need > cap:
        need, rule = max(cap, min(need, group.desired)), "configuration cap"
    most = min(bounds.on_demand_max, group.maximum)
    if share := seen.snapshot.share:
        most = min(most, share.on_demand_max)
    if need > most:
        need, rule = most, "on-demand maximum"
    return max(need, min(group.minimum, most)), rule


def _cap(seen: Assessment, need: int) -> int:
    """Return the most backfill if the cause of the gap is not missing capacity.

    Late instances cap their own backfill, and a launch that fails by configuration caps all of it.
    Where capacity is missing, only those count as late that were not taken before they served. What
    was put off when nothing had failed yet, until warned instances are gone, is not capped.
    """
    memory = seen.memory
    failed = of_gap(seen.spot_failures, memory.gap_since and memory.explained_from)
    remedies = {remedy(failure.failure_class) for failure in failed}
    if Remedy.BACKFILL_CAPPED in remedies and Remedy.BACKFILL not in remedies:
        first = min(failure.at for failure in failed) + timedelta(seconds=seen.policy.notice_s)
        put_off = any([at <= first for at in seen.memory.risk.deferral.gone_at.values()])
        return need if put_off else seen.policy.configuration_cap
    late = seen.spot.stuck if Remedy.BACKFILL in remedies else seen.spot.late
    return max(0, need - late) + seen.policy.configuration_cap


def _fill(seen: Assessment, wanted: int, rule: str) -> Size:
    retry_at, before = seen.memory.retry_at, seen.on_demand.target
    if retry_at is not None and seen.now < retry_at:
        why = f"both groups are short: the next attempt is at {retry_at:%H:%M:%S}"
        retry = Awaited(what=Awaiting.NEXT_ATTEMPT, until=retry_at)
        return _hold("both-short", why, retry, seen.memory.release_due)
    why = f"on-demand {before} -> {wanted}"
    group = seen.snapshot.fleet.on_demand_group
    fill = Request(kind=RequestKind.BACKFILL, group=group, desired=wanted, count=wanted - before)
    return Size(action=Action.BACKFILL, rule=rule, why=why, requests=(fill,))


def _still_needed(seen: Assessment) -> int:
    """Return how much on-demand is not replaced by settled spot yet: make before break.

    On-demand that still launches stays too: the spot instance that would replace it may be lost
    before it serves.
    """
    steady = settled(seen.memory.levels, seen.now, seen.risk.settle_s)
    return max(seen.snapshot.groups.on_demand.minimum, seen.target_serving - steady)


def _at_target(seen: Assessment) -> Size:
    until = seen.risk.deferral.until
    if seen.deferred and until:
        wait_s = (until - seen.now).total_seconds()
        why = f"warned instances still serve: backfill for them starts in {wait_s:.0f} s"
        return _hold("just in time", why, Awaited(what=Awaiting.BACKFILL_DUE, until=until))
    if seen.both_short:
        lost = seen.on_demand.missing
        missing = f"{lost} on-demand instance{' is' if lost == 1 else 's are'} missing"
        why = f"both groups are short: {missing}, and AWS retries the launch"
        return _hold("both-short", why, Awaited(what=Awaiting.NEXT_ATTEMPT))
    if seen.on_demand.target:
        settled_spot = Awaited(what=Awaiting.SPOT_SETTLED)
        return _hold("make before break", "the backfill is still needed", settled_spot)
    return _hold("at target", "nothing is missing")


def _release(seen: Assessment, excess: int) -> Size:
    """Release what spot has made unnecessary: never launched first, busy last."""
    memory, now, policy = seen.memory, seen.now, seen.policy
    if memory.adoption is not None:
        return _adopting(seen, memory.adoption)
    due = memory.release_due or now
    busy_too = not within(due, now, policy.busy_patience_s)
    group = seen.snapshot.groups.on_demand
    shares, bad = seen.snapshot.busy_shares, {*seen.snapshot.silent, *seen.snapshot.unreported}
    plan = plan_release(group, excess, shares, busy_too=busy_too, suspects=bad)
    starting = seen.on_demand.launching + seen.on_demand.unproven
    if starting and plan.ends and seen.spot.serving + seen.on_demand.serving < seen.spot.target:
        # One of those that are ended may serve already, while the others do not yet.
        why = f"{excess} on demand will be released once {seen.spot.target} serve"
        return _hold("launching", why, Awaited(what=Awaiting.LAUNCH), memory.release_due)
    if plan.ends or plan.desired != group.desired:
        return _released(seen, plan, due)
    if plan.launching:
        why = f"{excess} on demand will be released once launched"
        return _hold("launching", why, Awaited(what=Awaiting.LAUNCH), memory.release_due)
    why = f"{excess} on demand will be released once their requests have finished"
    until = due + timedelta(seconds=policy.busy_patience_s)
    return _hold("busy", why, Awaited(what=Awaiting.REQUESTS_DONE, until=until), due)


def _adopting(seen: Assessment, adoption: Adoption) -> Size:
    snapshot, at = seen.snapshot, None
    what, until = Awaiting.SPOT_SETTLED, "spot serves that many: raise the spot group"
    if snapshot.health_lost:
        what = Awaiting.HEALTH_TURN
        until = "the health controller runs and can read its memory"
    elif snapshot.fleet.sizing.enabled and not snapshot.load_known:
        what, missing, at = _missing(snapshot)
        until = missing
    elif snapshot.size_limited:
        what, until = Awaiting.SPOT_GROWN, "the spot group has grown to what the load needs"
    many = f"{adoption.holds} on-demand instance{'s' * (adoption.holds > 1)}"
    why = f"keeping {many} until {until}, or lower on-demand"
    return _hold("adopting", why, Awaited(what=what, until=at))


def _missing(snapshot: Snapshot) -> tuple[Awaiting, str, datetime | None]:
    """Say what is missing until search logs show the load, and when it will be there."""
    known, window = snapshot.logs_known_for, timedelta(seconds=snapshot.fleet.sizing.window_s)
    if not snapshot.logged:
        return Awaiting.SEARCH_LOGS, "workers send their search logs", None
    if snapshot.logs_missing:
        why = "workers send their search logs again"
        return Awaiting.SEARCH_LOGS, why, None
    if known >= window:
        why = "the health controller's next turn has sized the fleet"
        return Awaiting.HEALTH_TURN, why, None
    whole, so_far = window / timedelta(minutes=1), known // timedelta(minutes=1)
    at = snapshot.now + window - known
    why = f"there are {whole:g} minutes of logs without a gap ({so_far} so far"
    return Awaiting.SEARCH_LOGS, f"{why}; {at:%H:%M:%S} at the earliest)", at


def _released(seen: Assessment, plan: ReleasePlan, due: datetime) -> Size:
    before, group = seen.on_demand.target, seen.snapshot.groups.on_demand.name
    why = f"spot has settled: on-demand {before} -> {plan.desired - len(plan.ends)}"
    requests = [Request(kind=RequestKind.END, instances=(i,)) for i in plan.ends]
    if unlaunched := before - plan.desired:
        kind, desired = RequestKind.CANCEL_BACKFILL, plan.desired
        requests.insert(0, Request(kind=kind, group=group, desired=desired, count=unlaunched))
    return Size(
        action=Action.RELEASE, rule="release", why=why, requests=tuple(requests), release_due=due
    )


def _hold(
    rule: str, why: str, awaited: Awaited | None = None, release_due: datetime | None = None
) -> Size:
    return Size(action=Action.HOLD, rule=rule, why=why, awaited=awaited, release_due=release_due)
