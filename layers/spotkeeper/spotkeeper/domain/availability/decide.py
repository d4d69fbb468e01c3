"""A turn of the availability controller: assess -> plan -> (act) -> apply.

Each is a pure function. AWS is called between the last two.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.at_risk import (
    at_risk,
    early_replacements,
    lapsed,
    left_running,
    marks,
)
from spotkeeper.domain.availability.backfill import Size, size_backfill
from spotkeeper.domain.availability.count import (
    GAP_SLACK,
    LAUNCH,
    Assessment,
    count_groups,
    explain_gaps,
    explaining,
    find_launching,
    of_gap,
    pending_increases,
    restore_size,
    still_outside,
    unexplained,
)
from spotkeeper.domain.availability.memory import (
    Adoption,
    AvailabilityMemory,
    Unsure,
    add_level,
    back_off,
    refused_again,
    settled,
    within,
)
from spotkeeper.domain.availability.risk import risk_of
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Alarm, Answer, Awaited, Awaiting, Request, RequestKind
from spotkeeper.domain.failure import LaunchFailure, needs_operator

# Turns run within two minutes of each other, unless the fleet is paused or only observed.
LOOKED_AFTER_S = 600
# AWS may suspend again what was resumed while there is still no capacity: it is resumed this often.
RESUME_AGAIN_S = 900
AZ_REBALANCE = "AZRebalance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision of one turn; `memory` holds what was seen, and nothing that was only requested.

    `size` is what happens to the on-demand group, and why. `wake_up` is requested before everything
    else: when that fails, nothing may be deferred.
    """

    size: Size
    wake_up: Request | None
    requests: tuple[Request, ...]
    assessment: Assessment
    memory: AvailabilityMemory


# --- assess ---------------------------------------------------------------------------------------


def assess(snapshot: Snapshot, memory: AvailabilityMemory) -> Assessment:
    """Count both groups, update the memory, and estimate the losses to expect."""
    memory = still_known(memory, snapshot)
    memory = replace(memory, unexplained=unexplained(memory, snapshot))
    used = memory.on_demand_since or snapshot.on_demand_launched or snapshot.now
    snapshot = replace(
        snapshot, on_demand_failures=of_gap(snapshot.on_demand_failures, used - GAP_SLACK)
    )
    asked_for = snapshot.groups.spot.desired
    snapshot = restore_size(snapshot, memory) if memory.spot_missing else snapshot
    explained = explain_gaps(snapshot, memory)
    warned = at_risk(explained, memory)
    risky = frozenset([i for i, at in warned.items() if at <= snapshot.now])
    unmark = lapsed(explained, memory, risky)
    launching = find_launching(memory, explained)
    spot, on_demand = count_groups(explained, launching, risky.union(unmark))
    risk = risk_of(explained, memory, warned, risky)
    assessment = Assessment(
        snapshot=snapshot,
        now=snapshot.now,
        policy=snapshot.fleet.availability,
        memory=memory,
        spot=spot,
        on_demand=on_demand,
        risk=risk,
        risky=risky,
        newly_risky=risky.difference(memory.risky),
        unmark=unmark,
        launching=launching,
        spot_failures=explained.spot_failures,
        on_demand_failures=explained.on_demand_failures,
        moved=on_demand.target - memory.unsure.before if memory.unsure else 0,
        restored=snapshot.groups.spot.desired - asked_for,
    )
    return replace(assessment, memory=remember_seen(assessment, warned))


def still_known(memory: AvailabilityMemory, snapshot: Snapshot) -> AvailabilityMemory:
    """Return the part of the memory that is about today's groups and about now.

    Of other groups only the detached instances are kept, because nothing else ends them.
    """
    groups = (snapshot.groups.spot.name, snapshot.groups.on_demand.name)
    if memory.groups not in ((), groups):
        memory = AvailabilityMemory(detached=memory.detached, announced=memory.announced)
    if snapshot.sweep:
        # An instance that was marked in its group before the memory was lost still refuses work.
        drained = tuple(sorted({*memory.drained, *snapshot.sweep.inside}))
        memory = replace(memory, drained=drained)
    if memory.seen_at is None or within(memory.seen_at, snapshot.now, LOOKED_AFTER_S):
        return memory
    # It is unknown when instances that arrived meanwhile began to start, and how starts ended.
    starts = tuple([start for start in memory.risk.deferral.starts if start.served])
    deferral = replace(memory.risk.deferral, seen_at=None, starts=starts)
    return replace(
        memory,
        levels=(),
        release_due=None,
        risk=replace(memory.risk, deferral=deferral),
        spot_launching=(),
        unserved=(),
        pending_increases=(),
    )


def remember_seen(assessment: Assessment, at_risk: Mapping[str, datetime]) -> AvailabilityMemory:
    """Update the memory with what was read; it does not depend on later requests or answers."""
    old, snapshot, spot, now = (
        assessment.memory,
        assessment.snapshot,
        assessment.spot,
        assessment.now,
    )
    policy, group, launching = assessment.policy, snapshot.groups.spot, assessment.launching
    back, sweep = snapshot.groups.on_demand, snapshot.sweep
    since = (old.gap_since or now) if spot.missing else None
    began = since - GAP_SLACK if since else now if old.gap_since else old.explained_from
    failures = (
        of_gap(explaining(old.spot_failures, snapshot.spot_failures, group), began),
        explaining(old.on_demand_failures, snapshot.on_demand_failures, back),
    )
    # The newest of each class is enough to remember, and of those unknown.
    by_time = [sorted(each, key=lambda f: f.at) for each in failures]
    newest = [tuple({(f.failure_class, f.known): f for f in each}.values()) for each in by_time]
    memory = replace(
        old,
        groups=(group.name, back.name),
        seen_at=now,
        need=spot.target,
        spot_seen=group.desired,
        risky=tuple(sorted(assessment.risky)),
        gap_since=since,
        explained_from=began,
        pending_increases=pending_increases(
            old,
            spot,
            launching,
            assessment.spot_failures,
            policy,
            now,
        ),
        launching_since=launching.since,
        heirs=launching.heirs,
        spot_launching=launching.spot,
        unserved=launching.unserved if spot.serving < spot.target else (),
        spot_failures=newest[0],
        on_demand_failures=newest[1],
        at_risk=at_risk,
        levels=add_level(old.levels, now, spot.lasting, assessment.risk.settle_s),
        risk=assessment.risk.memory,
        drained=tuple([i for i in old.drained if i in assessment.risky or i in assessment.unmark]),
        detached=still_outside(old, snapshot) if old.detached or sweep else {},
        swept_at=now if sweep else old.swept_at,
        unproven_marks=sweep.unproven_marks if sweep else old.unproven_marks,
        wake_ups=tuple([at for at in old.wake_ups if at > now]),
        resumed={g: at for g, at in old.resumed.items() if within(at, now, RESUME_AGAIN_S)},
        spot_missing=not group.exists or assessment.restored > 0,
        left=tuple(snapshot.left),
        on_demand_since=(old.on_demand_since or snapshot.on_demand_launched or now)
        if assessment.on_demand.target
        else None,
        unsure=None,
    )
    memory = replace(memory, adoption=adopt(old, memory, assessment))
    return back_off(memory, now, both_short=assessment.both_short)


def adopt(
    before: AvailabilityMemory, memory: AvailabilityMemory, assessment: Assessment
) -> Adoption | None:
    """Take over a fleet as it is: a new one, or one whose memory is lost or old (rule 12).

    On-demand may be all that serves, or a part of what the load needs. Nothing is released until
    the load is known, and either it has sized the spot group since or spot has served as many. Less
    is adopted if an operator lowers on-demand.
    """
    target, now = assessment.on_demand.target, assessment.now
    adopted = before.adoption if within(before.seen_at, now, LOOKED_AFTER_S) else None
    if adopted is not None:
        adopted = replace(adopted, holds=min(adopted.holds, target))
    elif assessment.snapshot.health_lost or not within(before.seen_at, now, LOOKED_AFTER_S):
        adopted = Adoption(since=now, holds=target)
    else:
        return None
    if not adopted.holds:
        return None
    known = not assessment.snapshot.health_lost
    return None if known and _spot_is_enough(adopted, memory, assessment) else adopted


def _spot_is_enough(adopted: Adoption, memory: AvailabilityMemory, assessment: Assessment) -> bool:
    """Tell whether the operator or the load has requested enough from the spot group.

    If no search log has arrived in ten minutes, none are sent: an operator sizes the group.
    """
    snapshot = assessment.snapshot
    served = settled(memory.levels, assessment.now, assessment.risk.settle_s) >= adopted.holds
    if snapshot.load_known:
        return served or snapshot.size_limited is False
    never_logged = not snapshot.logged and not within(adopted.since, assessment.now, LOOKED_AFTER_S)
    return served and (never_logged or not snapshot.fleet.sizing.enabled)


# --- plan, apply ----------------------------------------------------------------------------------


def plan(assessment: Assessment) -> Plan:
    """Decide one turn; the same assessment always gives the same plan.

    The requests that restore service are first: backfill, then replacements, then the rest.
    """
    size = size_backfill(assessment)
    requests = [*size.requests, *marks(assessment), *early_replacements(assessment)]
    spot, until = assessment.snapshot.groups.spot, assessment.risk.deferral.until
    if assessment.restored:
        kind = RequestKind.RESTORE_SPOT
        requests.append(Request(kind=kind, group=spot.name, desired=spot.desired))
    requests += [*left_running(assessment), *_groups(assessment)]
    # A turn for when the deferred backfill is due is requested once for each instant.
    known = assessment.memory.wake_ups
    wake_at = until if until and assessment.deferred and until not in known else None
    return Plan(
        size=size,
        wake_up=Request(kind=RequestKind.LOOK_AGAIN, at=wake_at) if wake_at else None,
        requests=tuple(requests),
        assessment=assessment,
        memory=replace(assessment.memory, release_due=size.release_due),
    )


def apply(
    memory: AvailabilityMemory,
    assessment: Assessment,
    answers: Iterable[tuple[Request, Answer]],
) -> AvailabilityMemory:
    """Remember the outcome of each request (rule 11): a refused one is due again next turn.

    A detachment whose answer was lost counts as done: nothing would find that instance again, so
    it would never be ended. What AWS has taken needs no end.
    """
    drained, detached, now = dict.fromkeys(memory.drained), dict(memory.detached), assessment.now
    for request, answer in answers:
        if answer not in (Answer.DONE, Answer.LOST):
            continue
        ids, done = request.instances, answer is Answer.DONE
        match request.kind:
            case RequestKind.REPLACE_EARLY:
                detached |= {i: now for i in ids if i not in assessment.snapshot.taken}
            case RequestKind.BACKFILL | RequestKind.CANCEL_BACKFILL | RequestKind.END if not done:
                unsure = memory.unsure or Unsure(at=now, before=assessment.on_demand.target)
                memory = replace(memory, unsure=unsure)
            case _ if not done:
                pass
            case RequestKind.BACKFILL:
                memory = refused_again(memory, now)
            case RequestKind.DRAIN:
                drained |= dict.fromkeys(ids)
            case RequestKind.STOP_DRAINING:
                drained = {i: None for i in drained if i not in ids}
            case RequestKind.TERMINATE:
                detached = {i: at for i, at in detached.items() if i not in ids}
            case RequestKind.RESUME_LAUNCH:
                memory = replace(memory, resumed={**memory.resumed, request.group: now})
            case RequestKind.LOOK_AGAIN if request.at:
                memory = replace(memory, wake_ups=(*memory.wake_ups, request.at))
            case _:
                pass
    return replace(memory, drained=tuple(drained), detached=detached)


def _groups(assessment: Assessment) -> list[Request]:
    """Claim the groups, and suspend AZRebalance where the policy says so.

    What AWS suspended is resumed, and again after a while if it is suspended again.
    """
    snapshot, kinds = assessment.snapshot, list[tuple[RequestKind, str]]()
    for group in (snapshot.groups.spot, snapshot.groups.on_demand):
        if not group.exists:
            continue
        if snapshot.claims and not group.owner:
            kinds.append((RequestKind.CLAIM, group.name))
        if assessment.policy.suspend_az_rebalance and AZ_REBALANCE not in group.suspended:
            # Balancing the zones ends busy instances.
            kinds.append((RequestKind.SUSPEND_AZ_REBALANCE, group.name))
        if LAUNCH in group.suspended_by_aws and group.name not in assessment.memory.resumed:
            # AWS suspended it after a day of failed launches.
            kinds.append((RequestKind.RESUME_LAUNCH, group.name))
    return [Request(kind=kind, group=name) for kind, name in kinds]


# --- what the record says -------------------------------------------------------------------------


def reason_of(wanted: Plan) -> str:
    """Describe both groups in one line, and say why the plan is as it is."""
    assessment = wanted.assessment
    spot, on_demand = assessment.spot, assessment.on_demand
    parts = [f"spot {spot.serving} of {spot.target} serving"]
    counts = (
        (spot.launching, "launching"),
        (spot.unproven, "not proven yet"),
        (spot.late, "past the launch deadline"),
        (spot.at_risk, "at risk"),
        (assessment.shortfall, "short"),
    )
    parts += [f"{number} {word}" for number, word in counts if number]
    if on_demand.target:
        parts.append(f"on-demand {on_demand.serving} of {on_demand.target} serving")
    return f"{', '.join(parts)}; {wanted.size.why}{_explanation(assessment)}"


def awaited_of(wanted: Plan) -> tuple[Awaited, ...]:
    """Name what the fleet waits for, and until when."""
    assessment = wanted.assessment
    waits = [wanted.size.awaited] if wanted.size.awaited else []
    if assessment.spot.launching or assessment.on_demand.launching:
        # The last of them is to serve by its deadline.
        last = max(assessment.launching.since.values(), default=assessment.now)
        until = last + timedelta(seconds=assessment.policy.launch_deadline_s)
        waits.append(Awaited(what=Awaiting.LAUNCH, until=until))
    return tuple(waits)


def _explanation(assessment: Assessment) -> str:
    """Quote the newest failure while spot is short; name what the operator has to do.

    Where on-demand fails too, the failures of both groups are quoted: the operator can act on one.
    """
    text, marked = "", assessment.memory.unproven_marks
    failures = (*assessment.spot_failures, *assessment.on_demand_failures)
    if failures and assessment.spot.serving < assessment.spot.target:
        if assessment.both_short and assessment.spot_failures and assessment.on_demand_failures:
            both = (
                ("spot", assessment.spot_failures),
                ("on-demand", assessment.on_demand_failures),
            )
            text = f" ({'; '.join(f'{name}, {_newest(failed)}' for name, failed in both)})"
        else:
            text = f" ({_newest(failures)})"
    for name, count in assessment.snapshot.left.items():
        many = "instances" if count is None else f"{count} instance{'s' * (count > 1)}"
        text += (
            f"; {name}, which an earlier document named, still has {many}: lower its "
            "desired capacity to 0, or remove its tag spotkeeper:owner if they are to stay"
        )
    if marked:
        text += (
            f"; {', '.join(marked)} have Spotkeeper's tags, but the history of their group does "
            "not show that Spotkeeper detached them, or were detached by an earlier release, "
            "without the tag spotkeeper:nonce: end them, or remove the tags"
        )
    return text


def _newest(failures: Sequence[LaunchFailure]) -> str:
    """Quote the newest failure, or the newest that nobody knows once it needs an operator."""
    newest = max(failures, key=lambda f: (needs_operator(f.failure_class) > f.known, f.at))
    unknown = "" if newest.known else "unknown text, handled as "
    return f"{unknown}{newest.failure_class}: {newest.text}"


def alarms_of(assessment: Assessment, after: AvailabilityMemory) -> tuple[Alarm, ...]:
    """Name the alarms for the operator; `after` is the memory at the end of the turn."""
    named = {Alarm(f.failure_class) for f in assessment.failures if needs_operator(f.failure_class)}
    if assessment.spot.late or assessment.on_demand.late:
        named.add(Alarm.BOOTSTRAP)
    if assessment.both_short:
        named.add(Alarm.BOTH_SHORT)
    if after.unproven_marks:
        named.add(Alarm.UNPROVEN_MARKS)
    if not (assessment.snapshot.groups.spot.exists and assessment.snapshot.groups.on_demand.exists):
        named.add(Alarm.GROUP_MISSING)
    if after.left:
        named.add(Alarm.GROUP_LEFT)
    adopted, deadline_s = after.adoption, assessment.policy.launch_deadline_s
    more = assessment.spot.serving + assessment.on_demand.target > assessment.spot.target
    if adopted is not None and more and not within(adopted.since, assessment.now, deadline_s):
        named.add(Alarm.ADOPTING)
    return tuple(sorted(named))
