"""Turns that only observe: the same decision, on a memory of its own, without requests to AWS.

A fleet that observes, or is paused, has a turn every minute. Each change is refused here, and the
turn handles that like any refusal: the change has not happened.
"""

from dataclasses import replace
from datetime import datetime
from typing import NoReturn

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import Control, Permission
from spotkeeper.ports import Observed, Ports


def permitted(ports: Ports, fleet: Fleet, now: datetime) -> tuple[Ports, Control]:
    """Return the ports that a fleet's turn may use now, and the fleet's control."""
    control = ports.controls.of(fleet.name)
    permission = control.permission(fleet.mode, now)
    if permission is Permission.ACT:
        return ports, control
    pause = control.pause if permission is Permission.PAUSED else None
    paused_h = (now - pause.at).total_seconds() / 3600 if pause else 0.0
    ports = replace(
        ports,
        writer=_Observer(),
        owner="",
        permission=permission,
        paused_h=paused_h,
    )
    return ports, control


class _Observer:
    """Changes nothing; every method raises `Observed`."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Observed("a turn that may only look requests nothing")

    set_desired = end = detach = suspend_az_rebalance = claim = resume_launch = _refuse
    drain = unmark = terminate = replace = _refuse
