"""A status on one screen, and as JSON."""

import json
from dataclasses import asdict

from spotkeeper.domain.permission import Permission
from spotkeeper_operator.durations import spoken
from spotkeeper_operator.status.status import FleetStatus, GroupStatus, StackStatus
from spotkeeper_operator.text import labelled, paragraphs

_WHOLE = {True: "whole", False: "NOT WHOLE", None: "UNKNOWN"}


def status_text(status: StackStatus) -> str:
    """Say how a stack is; 80 columns."""
    head = [f"{status.stack}  {status.region}  {status.at:%Y-%m-%d %H:%M:%S} UTC"]
    blocks = [_fleet(fleet) for fleet in status.fleets] or [["no fleet"]]
    alarms = ", ".join(status.ringing) if status.ringing else "none ring"
    tail = labelled("alarms", alarms, indent=0)
    for trouble in status.troubles:
        tail += labelled("trouble", trouble, indent=0)
    return paragraphs([head, *blocks, tail])


def status_json(status: StackStatus) -> str:
    """The same for programs: times in RFC 3339, ages and waits in seconds."""
    return json.dumps(asdict(status), indent=2, default=lambda value: value.isoformat()) + "\n"


def exit_code(status: StackStatus) -> int:
    """Answer 0 when every fleet is known to be whole and nothing rings, else 1."""
    whole = all(fleet.whole for fleet in status.fleets) and bool(status.fleets)
    return 0 if whole and not status.ringing and not status.troubles else 1


def _fleet(fleet: FleetStatus) -> list[str]:
    lines = labelled(fleet.name, f"{_WHOLE[fleet.whole]}: {fleet.why}", indent=0)
    lines += _permission(fleet)
    for label, group in zip(("spot", "on-demand"), fleet.groups, strict=False):
        lines += labelled(label, _group(group))
    seen = fleet.seen
    if "LoadRate" in seen:
        lines += labelled("load", _load(fleet))
    if "WaitP95" in seen:
        lines += labelled("wait", _wait(fleet))
    if fleet.last_change:
        change = fleet.last_change
        told = f"{change.at:%m-%d %H:%M} {change.action} [{change.rule}] {change.reason}"
        lines += labelled("last change", told)
    return lines + labelled("turns", _turns(fleet))


def _permission(fleet: FleetStatus) -> list[str]:
    """Say that turns ask nothing, who said so, and until when; nothing where they act."""
    said = fleet.control
    if fleet.permission is Permission.PAUSED and said.pause:
        pause = said.pause
        return labelled(
            "mode", f"PAUSED until {pause.until:%Y-%m-%d %H:%M} UTC: {pause.why} ({pause.by})"
        )
    if fleet.permission is Permission.OBSERVE:
        since = f"since {said.mode_at:%Y-%m-%d %H:%M} UTC ({said.mode_by})" if said.mode_at else ""
        return labelled("mode", f"OBSERVING {since or 'as its document says'}")
    return []


def _group(group: GroupStatus) -> str:
    launching = f", {group.launching} launching" if group.launching else ""
    return f"{group.in_service} of {group.desired} in service{launching}  ({group.name})"


def _load(fleet: FleetStatus) -> str:
    seen = fleet.seen
    return (
        f"{seen['LoadRate']:.0f} % busy, {seen.get('OfferedLoad', 0.0):.1f} erlangs; "
        f"{seen.get('WorkersLive', 0.0):.0f} workers live, "
        f"{seen.get('WorkersNeeded', 0.0):.0f} needed"
    )


def _wait(fleet: FleetStatus) -> str:
    waited = f"95 % start within {fleet.seen['WaitP95']:.1f} s"
    if fleet.promised_wait_s is None or fleet.promised_share is None:
        return f"{waited}; nothing is promised"
    share = f"{100 * fleet.promised_share:.4g} %"
    return f"{waited}; promised: {share} within {fleet.promised_wait_s:g} s"


def _turns(fleet: FleetStatus) -> str:
    ages = [
        f"{controller} {'never' if age_s is None else _ago(age_s)}"
        for controller, age_s in fleet.turn_age_s.items()
    ]
    log = "none" if fleet.log_age_s is None else _ago(fleet.log_age_s)
    return f"{', '.join(ages)}; newest search log {log}"


def _ago(age_s: float | None) -> str:
    return f"{spoken(max(0.0, age_s or 0.0))} ago"
