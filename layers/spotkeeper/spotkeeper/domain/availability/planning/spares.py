"""The spot group's desired capacity: the need, which others set, and the spares on top of it."""

from spotkeeper.domain.availability.actions import EndSpare, RequestSpot
from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.release import plan_release


def ask_for_spares(seen: Assessment) -> list[RequestSpot | EndSpare]:
    """Ask the spot group for the spares that the risk wants, or give back what it wants no more."""
    group, need = seen.snapshot.seen.spot, seen.spot.target
    held, wanted = group.desired - need, seen.risk.spares
    if wanted == held:
        return []
    if wanted > held:
        return [_ask(seen, need + wanted, f"{wanted} spares for losses to come")]
    why = f"{held - wanted} spares are needed no more"
    plan = plan_release(
        group,
        held - wanted,
        seen.snapshot.busy_shares,
        busy_too=True,
        held_since=seen.risk.held_since,
    )
    lowered = [_ask(seen, plan.desired, why)] if plan.desired != group.desired else []
    return [*lowered, *(EndSpare(instance_id=i, reason=why) for i in plan.ends)]


def _ask(seen: Assessment, desired: int, why: str) -> RequestSpot:
    """Name both requests: until the call is done, the group still shows the one before."""
    group, need = seen.snapshot.seen.spot, seen.spot.target
    requests = tuple(
        CapacityRequest(at=seen.now, need=need, spare=spare)
        for spare in (group.desired - need, seen.risk.spares)
    )
    return RequestSpot(group=group.name, desired=desired, requests=requests, reason=why)
