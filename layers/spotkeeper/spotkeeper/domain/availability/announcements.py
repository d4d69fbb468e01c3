"""Which changes of a fleet's state are announced: one event for each, with an id that stays."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from spotkeeper.domain.decision import Alarm, AvailabilityFigures, DecisionRecord
from spotkeeper.domain.permission import Control, Permission
from spotkeeper.domain.spread import STALE, Place, Standing

# What one call of PutEvents takes.
UNSENT_AT_MOST = 10
# Memories are small: a reason is kept up to here.
REASON_AT_MOST = 500


class State(StrEnum):
    """What is announced of a fleet."""

    SHORT = "short"
    BOTH_SHORT = "both-short"
    WHOLE = "whole"
    BACKFILLED = "backfilled"
    RELEASED = "released"
    SLEEPING = "sleeping"
    AWAKE = "awake"
    PAUSED = "paused"
    COMMAND_FAILED = "command-failed"
    """Of a machine, `on_drain` or `on_return`; the fleet's state is what it was."""
    REGION_REFUSED = "region-refused"
    REGION_GONE = "region-gone"
    REGION_SERVES = "region-serves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A fleet's new state, or that of one `region`; the record of the same instant says why."""

    fleet: str
    state: State
    at: datetime
    reason: str
    permission: Permission = Permission.ACT
    region: str = ""

    @property
    def id(self) -> str:
        """The same for every attempt to send it."""
        text = f"{self.fleet}/{self.state}/{self.at.isoformat()}{self.region}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What was last announced of a fleet, and what the bus does not have yet.

    `capacity` is whole, short or both-short; `on_demand` backfilled or released; `load` sleeping or
    awake; None before the first turn. `control` is the version of the operators' control then,
    `paused_at` when the pause that was announced began. `regions` are the states of those that a
    home divides its need among.
    """

    capacity: State | None = None
    on_demand: State | None = None
    load: State | None = None
    control: int = 0
    paused_at: datetime | None = None
    unsent: tuple[Announcement, ...] = ()
    regions: Mapping[str, State] = field(default_factory=dict)


def announce(
    before: Announced,
    record: DecisionRecord,
    figures: AvailabilityFigures,
    control: Control,
    places: Mapping[str, Place],
) -> Announced:
    """Compare a turn's record with what was announced; what changed is to be sent.

    `places` are the regions as their home knows them. After a pause, a change of mode or a lost
    memory, the states are announced again.
    """
    pause = control.pause
    if record.permission is Permission.PAUSED and pause:
        if before.paused_at == pause.at:
            return before
        paused = Announcement(
            fleet=record.fleet,
            state=State.PAUSED,
            at=pause.at,
            reason=f"until {pause.until:%Y-%m-%d %H:%M} UTC: {pause.why}"[:REASON_AT_MOST],
            permission=Permission.PAUSED,
        )
        return _with(replace(before, paused_at=pause.at), [paused])
    if before.control != control.version:
        before = Announced(unsent=before.unsent, paused_at=before.paused_at)
    asleep = not figures.spot_desired and not figures.on_demand_desired
    now = replace(
        before,
        capacity=_capacity(before.capacity, figures, both_short=Alarm.BOTH_SHORT in record.alarms),
        on_demand=State.BACKFILLED if figures.on_demand_desired else State.RELEASED,
        load=State.SLEEPING if asleep else State.AWAKE,
        control=control.version,
        regions={region: _of_region(place, record.at) for region, place in places.items()},
    )
    pairs = [
        (before.capacity, now.capacity, record.reason, ""),
        (before.on_demand, now.on_demand, record.reason, ""),
        (before.load, now.load, record.reason, ""),
    ]
    for region, state in now.regions.items():
        was = before.regions.get(region, State.REGION_SERVES)
        pairs.append((was, state, _why(region, places[region]), region))
    new = [
        Announcement(
            fleet=record.fleet,
            state=state,
            at=record.at,
            reason=why[:REASON_AT_MOST],
            permission=record.permission,
            region=region,
        )
        for was, state, why, region in pairs
        if state and state is not was
    ]
    return _with(now, new)


def _of_region(place: Place, now: datetime) -> State:
    """Name whether a region can be reached, and serves its share."""
    if place.standing is Standing.GONE:
        return State.REGION_GONE
    # Between two rests it is tried again.
    rests = place.rests_until is not None and now < place.rests_until + STALE
    return State.REGION_REFUSED if rests else State.REGION_SERVES


def _why(region: str, place: Place) -> str:
    report = place.report
    refused = f"; refused: {', '.join(sorted(report.refused))}" if report.refused else ""
    shared = f"cover {place.share.cover}, ask {place.share.ask}, {report.serving} on spot"
    return f"{region}: {shared}, known at {report.at:%Y-%m-%d %H:%M} UTC{refused}"


def _with(announced: Announced, new: list[Announcement]) -> Announced:
    return replace(announced, unsent=(*announced.unsent, *new)[-UNSENT_AT_MOST:])


def _capacity(
    before: State | None, figures: AvailabilityFigures, *, both_short: bool
) -> State | None:
    """Name what serves against what is needed; while the rest launches, it is as before."""
    if both_short:
        return State.BOTH_SHORT
    if figures.spot_serving + figures.on_demand_serving >= figures.spot_desired:
        return State.WHOLE
    return State.SHORT if figures.shortfall else before
