"""What happens to instances at risk, and to those that were taken out of the group (rule 4)."""

from datetime import datetime, timedelta

from spotkeeper.domain.availability.count import Assessment, overdue
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Request, RequestKind
from spotkeeper.domain.fleet import Phase
from spotkeeper.domain.interruption import at_risk_since
from spotkeeper.domain.settings.availability import RebalanceMeaning

# A warned instance that is still in service after this time was not taken: it counts again.
WARNING_LIFETIME = timedelta(minutes=15)


def at_risk(snapshot: Snapshot, memory: AvailabilityMemory) -> dict[str, datetime]:
    """Merge old and new warnings of instances that are still in a group."""
    now, groups = snapshot.now, snapshot.groups
    present = {i.instance_id for g in (groups.spot, groups.on_demand) for i in g.instances}
    notice = timedelta(seconds=snapshot.fleet.availability.notice_s)
    merged = {i: at for i, at in memory.at_risk.items() if i in present}
    for i, warned_at in snapshot.warned.items():
        if i in present and (known := merged.get(i)) != warned_at:
            merged[i] = at_risk_since(known, warned_at, now, notice)
    begin = now - WARNING_LIFETIME
    return {i: at for i, at in merged.items() if at > begin}


def lapsed(
    snapshot: Snapshot, memory: AvailabilityMemory, risky: frozenset[str]
) -> tuple[str, ...]:
    """Name the marked instances no longer at risk: with the mark, their workers refuse work."""
    groups = (snapshot.groups.spot, snapshot.groups.on_demand)
    there = {i.instance_id for g in groups for i in g.instances if i.phase is Phase.IN_SERVICE}
    return tuple([i for i in memory.drained if i in there and i not in risky])


def marks(assessment: Assessment) -> list[Request]:
    """Mark the instances at risk, all with the time when AWS takes the first of them.

    The mark is removed from instances that AWS did not take.
    """
    lapsed, requests = assessment.unmark, list[Request]()
    unmarked = assessment.risky.difference(assessment.memory.drained, assessment.snapshot.taken)
    first = min([assessment.memory.at_risk[i] for i in unmarked], default=assessment.now)
    gone_at = first + timedelta(seconds=assessment.policy.notice_s)
    for group in (assessment.snapshot.groups.spot, assessment.snapshot.groups.on_demand):
        if warned := tuple(sorted(unmarked & {i.instance_id for i in group.instances})):
            kind = RequestKind.DRAIN
            requests.append(Request(kind=kind, group=group.name, instances=warned, at=gone_at))
    if lapsed:
        requests.append(Request(kind=RequestKind.STOP_DRAINING, instances=lapsed))
    return requests


def early_replacements(assessment: Assessment) -> list[Request]:
    """Replace instances that AWS takes, or has taken while the group still lists them.

    Not in a turn that sees a canary's launch first: until its refresh is cancelled, all that the
    group launches has the new version.
    Where rebalance recommendations count, no more instances run outside of the group than its
    desired capacity. AWS may leave such an instance running, and recommend its replacement next.
    """
    taken = assessment.snapshot.taken
    if not assessment.policy.early_replacement or assessment.both_short:
        return []
    fleet, now = assessment.snapshot.fleet, assessment.now
    canary = assessment.spot.tried and now in assessment.launching.since.values()
    if canary or (fleet.maintenance and fleet.maintenance_until(now)):
        return []
    group = assessment.snapshot.groups.spot
    there = [i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE]
    room = len(there)
    if assessment.policy.rebalance is RebalanceMeaning.AT_RISK:
        room = max(0, group.desired - len(assessment.memory.detached))
    early = {*[i for i in there if i in assessment.risky and i not in taken][:room]}
    gone = tuple([i for i in there if i in taken or i in early])
    kind = RequestKind.REPLACE_EARLY
    return [Request(kind=kind, group=group.name, instances=gone)] if gone else []


def left_running(assessment: Assessment) -> list[Request]:
    """End the detached instances past their deadline that were seen to run.

    AWS refuses to end an instance that has ended. Only what the memory names is ended.
    """
    sweep = assessment.snapshot.sweep
    running = (assessment.snapshot.running or frozenset()).union(sweep.detached if sweep else ())
    over = overdue(assessment.memory, assessment.policy, assessment.now) & running
    return [Request(kind=RequestKind.TERMINATE, instances=(i,)) for i in sorted(over)]
