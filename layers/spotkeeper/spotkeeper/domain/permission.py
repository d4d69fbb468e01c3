"""What a fleet's turns may do: act, or only record what they would request."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

# No pause lasts longer: one that an operator forgot ends by itself.
LONGEST_PAUSE = timedelta(hours=24)


class Mode(StrEnum):
    """Whether turns send requests to AWS, or only record what they would request."""

    ACT = "act"
    OBSERVE = "observe"


class Permission(StrEnum):
    """What holds for one turn."""

    ACT = "act"
    OBSERVE = "observe"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A pause of a fleet: until when, why, by whom, and since when."""

    until: datetime
    why: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What operators set for a fleet; `mode` None leaves it to the fleet document.

    `version` counts the changes: of two concurrent operators, the second gets an error. `leaving`
    are the fleet's regions that are to be removed.
    """

    mode: Mode | None = None
    mode_by: str = ""
    mode_at: datetime | None = None
    pause: Pause | None = None
    version: int = 0
    leaving: tuple[str, ...] = ()

    def permission(self, default: Mode, now: datetime) -> Permission:
        """Say what a turn may do now; a pause ends by itself."""
        if self.pause is not None and now < self.pause.until:
            return Permission.PAUSED
        return Permission((self.mode or default).value)
