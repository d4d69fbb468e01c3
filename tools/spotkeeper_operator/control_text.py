"""What mode, pause, resume and stop answer, for people and for programs."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from spotkeeper.domain.permission import Control
from spotkeeper_operator.text import as_json

if TYPE_CHECKING:
    from spotkeeper_operator.stop import Stopped


def mode_text(fleet: str, control: Control) -> str:
    """Say what a fleet's turns may do, and who set it."""
    return f"{fleet}: {control.mode}, set by {control.mode_by}\n"


def pause_text(fleet: str, control: Control) -> str:
    """Say until when a fleet is paused."""
    if control.pause is None:
        return f"{fleet}: not paused any more\n"
    return f"{fleet}: paused until {control.pause.until:%Y-%m-%d %H:%M:%S} UTC\n"


def stopped_text(fleet: str, stopped: "Stopped") -> str:
    """List what stopping did, and what it left; the lines name the fleet."""
    del fleet
    lines = [f"did   {line}\n" for line in stopped.did]
    return "".join(lines + [f"left  {line}\n" for line in stopped.left])


def control_json(fleet: str, control: Control) -> str:
    return as_json({"fleet": fleet, **asdict(control)})


def stopped_json(fleet: str, stopped: "Stopped") -> str:
    """List what stopping did, and what it left."""
    return as_json({"fleet": fleet, **asdict(stopped)})
