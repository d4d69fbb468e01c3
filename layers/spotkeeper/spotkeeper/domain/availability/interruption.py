"""What becomes of instances at risk, and of those that were taken out of the group (rule 4)."""

from datetime import datetime, timedelta

from spotkeeper.domain.availability.actions import Drain, ReplaceEarly, Terminate
from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory, within
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.fleet import Group, Phase

# A warned instance that is still in service so long after was not taken: it counts again.
WARNING_LIFETIME = timedelta(minutes=15)


def at_risk(snapshot: Snapshot, memory: AvailabilityMemory) -> dict[str, datetime]:
    """Merge old and new warnings of instances still in a group; a repeated one changes nothing."""
    now, seen = snapshot.now, snapshot.seen
    if not memory.at_risk and not snapshot.warned:
        return {}
    present = {i.instance_id for g in (seen.spot, seen.on_demand) for i in g.instances}
    merged = {**snapshot.warned, **memory.at_risk}
    return {k: at for k, at in merged.items() if k in present and now - at < WARNING_LIFETIME}


def drains(seen: Assessment) -> list[Drain]:
    """Mark who is at risk and is not marked yet with when the first of them will be gone."""
    unmarked = sorted(seen.risky.difference(seen.memory.drained))
    if not unmarked:
        return []
    first = min(seen.memory.at_risk[i] for i in unmarked)
    gone_at = first + timedelta(seconds=seen.policy.notice_s)
    return [Drain(instance_id=i, gone_at=gone_at, reason="it is at risk") for i in unmarked]


def early_replacements(seen: Assessment) -> list[ReplaceEarly]:
    """Have the instances at risk replaced before AWS takes them."""
    if not seen.policy.early_replacement or seen.both_short or not seen.risky:
        return []
    group = seen.snapshot.seen.spot
    return [
        ReplaceEarly(group=group.name, instance_id=i.instance_id, reason="it is at risk")
        for i in group.instances
        if i.phase is Phase.IN_SERVICE and i.instance_id in seen.risky
    ]


def still_outside(memory: AvailabilityMemory, snapshot: Snapshot) -> dict[str, datetime]:
    """Forget the detached instances that are back in the group: they never left it."""
    inside = _serving_ids(snapshot.seen.spot)
    return {i: at for i, at in memory.detached.items() if i not in inside}


def left_running(seen: Assessment) -> list[Terminate]:
    """End the detached instances past their deadline: whatever AWS leaves, nobody else ends."""
    deadline_s = seen.policy.launch_deadline_s
    over = (i for i, at in seen.memory.detached.items() if not within(at, seen.now, deadline_s))
    return [Terminate(instance_id=i, reason="AWS left it running") for i in sorted(over)]


def _serving_ids(group: Group) -> set[str]:
    return {i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE}
