"""The same availability turn, now: for the fleets that an event concerns."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.interruption import (
    Interruption,
    InterruptionAction,
    InterruptionKind,
    action_for,
)
from spotkeeper.ports import AtRiskNote, FleetError, Ports
from spotkeeper.turns.check_availability import check_availability
from spotkeeper.turns.turn import TurnReport

# A scheduled change is announced days ahead; the instance counts as at risk this long before it.
SCHEDULED_LEAD = timedelta(minutes=15)


def handle_interruption(
    interruption: Interruption, fleets: Sequence[Fleet], ports: Ports, now: datetime
) -> TurnReport:
    """Run a turn for the fleets that the event names; a foreign or ignored event does nothing."""
    notes: dict[str, AtRiskNote] = {}
    concerned: list[Fleet] = []
    for fleet, instance_ids in _concerned(interruption, fleets, ports):
        action = action_for(interruption.kind, fleet.availability.rebalance)
        if action is InterruptionAction.IGNORE:
            continue
        concerned.append(fleet)
        if action is InterruptionAction.MARK_AT_RISK:
            notes[fleet.name] = AtRiskNote(instance_ids=instance_ids, at=_from(interruption, now))
        elif interruption.kind is InterruptionKind.LAUNCH_SUCCESSFUL:
            at = min(interruption.at, now)
            notes[fleet.name] = AtRiskNote(instance_ids=(), at=at, served=instance_ids)
    if not concerned:
        return TurnReport()
    return check_availability(concerned, ports, now, notes)


def _concerned(
    interruption: Interruption, fleets: Sequence[Fleet], ports: Ports
) -> list[tuple[Fleet, tuple[str, ...]]]:
    """Pair each fleet that the event names with its own instances among those named.

    When it is not known whose an instance is, every fleet is told: foreign ones are ignored, and a
    warning is lost by nobody.
    """
    if interruption.group:
        groups = dict.fromkeys(interruption.instance_ids or ("",), interruption.group)
    elif interruption.instance_ids:
        try:
            groups = dict(ports.groups.groups_of(interruption.instance_ids))
        except FleetError:
            return [(fleet, interruption.instance_ids) for fleet in fleets]
    else:
        return []
    pairs = (
        (
            fleet,
            tuple(i for i, g in groups.items() if g in (fleet.spot_group, fleet.on_demand_group)),
        )
        for fleet in fleets
    )
    return [(fleet, ids) for fleet, ids in pairs if ids]


def _from(interruption: Interruption, now: datetime) -> datetime:
    """Say when the risk begins; never later than now for a warning, whatever clock stamped it."""
    if interruption.due is None:
        return min(interruption.at, now)
    return interruption.due - SCHEDULED_LEAD
