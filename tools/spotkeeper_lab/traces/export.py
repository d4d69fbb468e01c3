"""Makes a market of what a running fleet left behind: its decision records and scaling activities.

A fleet sees its market only through what it asked for: capacity is at least what was held, and no
more than that where a launch failed for lack of it or an instance was taken. What lies above the
fleet's own size stays unknown, so an exported market suits fleets of that size or less.
"""

from collections.abc import Sequence
from datetime import datetime

from spotkeeper_lab.traces.market import Market, market_of
from spotkeeper_lab.traces.records import Change, Turn

WHOLE_POOL = "fleet/any"


def export_market(
    name: str, turns: Sequence[Turn], changes: Sequence[Change] = (), instance_type: str = "any"
) -> Market:
    """The market that a fleet saw between its first and its last turn.

    With activities it has a pool for each zone, without them one pool for the whole fleet.
    """
    start, end = turns[0].at, turns[-1].at
    pools = _by_zone(changes, start, end, instance_type) if changes else _as_a_whole(turns)
    return market_of(name, (end - start).total_seconds(), pools)


def _as_a_whole(turns: Sequence[Turn]) -> dict[str, list[tuple[float, int]]]:
    """One pool: what was held is there; what was asked for in vain, or taken, is not."""
    steps: dict[float, int] = {}
    capacity = before = turns[0].held
    for turn in turns:
        short = turn.held < turn.desired
        if short and (turn.refused or turn.held < before):
            capacity = turn.held
        capacity, before = max(capacity, turn.held), turn.held
        steps[(turn.at - turns[0].at).total_seconds()] = capacity
    return {WHOLE_POOL: list(steps.items())}


def _by_zone(
    changes: Sequence[Change], start: datetime, end: datetime, instance_type: str
) -> dict[str, list[tuple[float, int]]]:
    return {
        f"{zone}/{instance_type}": _steps([c for c in changes if c.zone == zone], start, end)
        for zone in sorted({change.zone for change in changes})
    }


def _steps(changes: Sequence[Change], start: datetime, end: datetime) -> list[tuple[float, int]]:
    """One zone's capacity; ends without a launch are of instances that were there before."""
    held = capacity = _held_before(changes)
    steps = {0.0: capacity}
    for change in changes:
        held += change.by
        capacity = held if change.limits else max(capacity, held)
        if change.at < end:
            steps[max(0.0, (change.at - start).total_seconds())] = capacity
    return list(steps.items())


def _held_before(changes: Sequence[Change]) -> int:
    lowest = level = 0
    for change in changes:
        level += change.by
        lowest = min(lowest, level)
    return -lowest
