"""Processes of the groups: zones are not evened out, and what AWS suspended goes on."""

from spotkeeper.domain.availability.actions import ResumeLaunch, SuspendAzRebalance
from spotkeeper.domain.availability.assessing.failures import LAUNCH
from spotkeeper.domain.availability.assessment import Assessment

AZ_REBALANCE = "AZRebalance"


def suspensions(seen: Assessment) -> list[SuspendAzRebalance]:
    """Suspend AZRebalance where the policy says so."""
    if not seen.policy.suspend_az_rebalance:
        return []
    groups = (seen.snapshot.seen.spot, seen.snapshot.seen.on_demand)
    why = "zones are evened out by ending busy instances"
    return [
        SuspendAzRebalance(group=group.name, reason=why)
        for group in groups
        if AZ_REBALANCE not in group.suspended
    ]


def resumptions(seen: Assessment) -> list[ResumeLaunch]:
    """Resume the launches that AWS suspended by itself, once an hour at most."""
    groups = (seen.snapshot.seen.spot, seen.snapshot.seen.on_demand)
    why = "AWS suspended it after a day of failed launches"
    return [
        ResumeLaunch(group=group.name, reason=why)
        for group in groups
        if LAUNCH in group.suspended_by_aws and group.name not in seen.memory.resumed
    ]
