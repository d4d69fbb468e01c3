"""What a turn wants of AWS: each action is about one thing, and says why."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Have a turn happen at an instant, as of `now`: something was put off until then.

    `woken` counts the wake-ups one after the other, this one included.
    """

    at: datetime
    now: datetime
    woken: int = 1
    reason: str

    @property
    def asked(self) -> str:
        """How records say it."""
        return f"look again at {self.at:%H:%M:%S}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DesiredCapacity:
    """A group is asked for another size."""

    group: str
    desired: int
    reason: str

    @property
    def asked(self) -> str:
        """How records say it."""
        return f"{self.group}: desired {self.desired}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill(_DesiredCapacity):
    """Raise the on-demand group to `desired`, by `count`."""

    count: int

    @property
    def before(self) -> int:
        """What the group was asked for before."""
        return self.desired - self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBackfill(_DesiredCapacity):
    """Lower the on-demand group to `desired`, by `count` instances that never launched."""

    count: int

    @property
    def before(self) -> int:
        """What the group was asked for before."""
        return self.desired + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpot(_DesiredCapacity):
    """Ask the spot group for `desired`, which it may show either of `requests` for."""

    requests: tuple[CapacityRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """Something becomes of one instance; `verb` is how records say it."""

    instance_id: str
    reason: str
    verb: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBackfill(_Instance):
    """End an on-demand instance, and lower its group, of `before` now, by one."""

    before: int
    verb: ClassVar[str] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(_Instance):
    """Mark an instance of a group with when it will be gone."""

    group: str
    gone_at: datetime
    verb: ClassVar[str] = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmark(_Instance):
    """Take the mark off an instance: it works on."""

    verb: ClassVar[str] = "stop draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceEarly(_Instance):
    """Take an instance out of the spot group, which replaces it at once.

    It must be marked first, or nobody may end it if AWS leaves it running; `taken` is gone already.
    """

    group: str
    taken: bool
    verb: ClassVar[str] = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSpare(_Instance):
    """End a spare spot instance, and lower its group by one."""

    verb: ClassVar[str] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate(_Instance):
    """End an instance that was taken out of its group and that AWS left running."""

    verb: ClassVar[str] = "terminate"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAzRebalance:
    """Stop a group from ending instances only to even out its zones."""

    group: str
    reason: str

    @property
    def asked(self) -> str:
        """How records say it."""
        return f"{self.group}: suspend AZRebalance"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeLaunch:
    """Let a group launch again that AWS stopped from it."""

    group: str
    reason: str

    @property
    def asked(self) -> str:
        """How records say it."""
        return f"{self.group}: resume Launch"


type OfGroup = WakeUp | Backfill | CancelBackfill | RequestSpot | SuspendAzRebalance | ResumeLaunch
type OfInstance = EndBackfill | EndSpare | Drain | Unmark | ReplaceEarly | Terminate
type AvailabilityAction = OfGroup | OfInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision of one turn; `memory` holds what was seen, and nothing that was only asked.

    `action` is what happens to the fleet's size and `rule` which rule bound it. `wake_up` comes
    before everything else: where it cannot be asked for, nothing may be put off.
    """

    action: Action
    rule: str
    reason: str
    wake_up: WakeUp | None
    actions: tuple[AvailabilityAction, ...]
    assessment: Assessment
    memory: AvailabilityMemory
