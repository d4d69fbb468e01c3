"""Processes of the groups: zones are not evened out, and a suspended launch is told."""

from spotkeeper.domain.availability.actions import SuspendAzRebalance
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
