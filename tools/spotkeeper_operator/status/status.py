"""Is it whole? One screen for a stack, from its records, groups and alarms."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.decision import Action, Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.permission import Control, Permission

# Three turns missed: what the records say is no longer what is.
STALE_TURN_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group as it is now."""

    name: str
    desired: int
    in_service: int
    launching: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastChange:
    """The newest decision that was no hold."""

    at: datetime
    controller: Controller
    action: Action
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """One fleet: whole or not, and what an operator asks next.

    `whole` is None when no turn was recent enough to say. Ages are in seconds, None where nothing
    is known; `seen` are the newest values of both controllers.
    """

    name: str
    whole: bool | None
    why: str
    groups: tuple[GroupStatus, ...]
    missing_groups: tuple[str, ...]
    seen: Mapping[str, float]
    promised_wait_s: float | None
    promised_share: float | None
    last_change: LastChange | None
    turn_age_s: Mapping[Controller, float | None]
    log_age_s: float | None
    permission: Permission
    control: Control


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All fleets of a stack, the alarms that ring, and what could not be read."""

    stack: str
    region: str
    at: datetime
    fleets: tuple[FleetStatus, ...]
    ringing: tuple[str, ...]
    troubles: tuple[str, ...]


def fleet_status(
    fleet: Fleet,
    groups: Mapping[str, Group],
    records: Sequence[DecisionRecord],
    control: Control,
    now: datetime,
) -> FleetStatus:
    """Put one fleet's status together; `records` are newest first."""
    newest = {
        controller: next((r for r in records if r.controller is controller), None)
        for controller in Controller
    }
    seen = {k: v for record in newest.values() if record for k, v in record.seen.items()}
    ages = {
        controller: (now - r.at).total_seconds() if r else None for controller, r in newest.items()
    }
    missing = tuple(n for n in (fleet.spot_group, fleet.on_demand_group) if n not in groups)
    whole, why = _whole(newest[Controller.AVAILABILITY], ages[Controller.AVAILABILITY], missing)
    health_age, log_age = ages[Controller.HEALTH], seen.get("SearchLogAge")
    return FleetStatus(
        name=fleet.name,
        whole=whole,
        why=why,
        groups=tuple(
            _group(groups[n]) for n in (fleet.spot_group, fleet.on_demand_group) if n in groups
        ),
        missing_groups=missing,
        seen=seen,
        promised_wait_s=fleet.objective.wait_s if fleet.objective else None,
        promised_share=fleet.objective.share if fleet.objective else None,
        last_change=_last_change(records),
        turn_age_s=ages,
        permission=control.permission(fleet.mode, now),
        control=control,
        log_age_s=None if log_age is None or health_age is None else log_age + health_age,
    )


def _whole(
    record: DecisionRecord | None, age_s: float | None, missing: Sequence[str]
) -> tuple[bool | None, str]:
    if missing:
        return False, f"{', '.join(missing)} does not exist"
    if record is None or age_s is None:
        return None, "no availability turn was ever recorded"
    if age_s > STALE_TURN_S:
        return None, f"the newest availability turn is {age_s / 60:.0f} min old"
    unfilled = record.seen.get("ShortfallUnfilled", 0.0)
    if unfilled > 0:
        return False, f"{unfilled:g} wanted and served by neither group: {record.reason}"
    return True, record.reason


def _group(group: Group) -> GroupStatus:
    phases = [i.phase for i in group.instances if i.healthy]
    return GroupStatus(
        name=group.name,
        desired=group.desired,
        in_service=phases.count(Phase.IN_SERVICE),
        launching=phases.count(Phase.LAUNCHING),
    )


def _last_change(records: Iterable[DecisionRecord]) -> LastChange | None:
    for record in records:
        if record.action is not Action.HOLD:
            return LastChange(
                at=record.at,
                controller=record.controller,
                action=record.action,
                rule=record.rule,
                reason=record.reason,
            )
    return None
