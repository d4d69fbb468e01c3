"""The requests of a turn to AWS: each action concerns one group or one instance."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Run another turn at an instant, because backfill was deferred until then.

    `woken` counts the wake-ups that followed each other, including this one.
    """

    at: datetime
    now: datetime
    woken: int = 1

    @property
    def asked(self) -> str:
        """The action as records write it."""
        return f"look again at {self.at:%H:%M:%S}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DesiredCapacity:
    """Set the desired capacity of a group."""

    group: str
    desired: int

    @property
    def asked(self) -> str:
        """The action as records write it."""
        return f"{self.group}: desired {self.desired}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill(_DesiredCapacity):
    """Raise the on-demand group to `desired`, by `count`."""

    count: int

    @property
    def before(self) -> int:
        """The desired capacity before."""
        return self.desired - self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBackfill(_DesiredCapacity):
    """Lower the on-demand group to `desired`, by `count` instances that never launched."""

    count: int

    @property
    def before(self) -> int:
        """The desired capacity before."""
        return self.desired + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSpot(_DesiredCapacity):
    """Set a spot group that was deleted and made again to the size that it had before.

    Otherwise the health controller or an operator owns the desired capacity of the spot group.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """Change one instance; `verb` is what records call it."""

    instance_id: str
    verb: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBackfill(_Instance):
    """End an on-demand instance, and lower its group, which has `before` now, by one."""

    before: int
    verb: ClassVar[str] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(_Instance):
    """Mark an instance of a group with the time when AWS takes it."""

    group: str
    gone_at: datetime
    verb: ClassVar[str] = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmark(_Instance):
    """Remove the mark from an instance, which keeps working."""

    verb: ClassVar[str] = "stop draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceEarly(_Instance):
    """Detach an instance from the spot group, which replaces it at once.

    The instance must be marked first: otherwise the role may not end it if AWS leaves it running.
    AWS has `taken` it already where that is set.
    """

    group: str
    taken: bool
    verb: ClassVar[str] = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate(_Instance):
    """End a detached instance that AWS left running."""

    verb: ClassVar[str] = "terminate"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Change one group; `verb` is what records call it."""

    group: str
    verb: ClassVar[str]

    @property
    def asked(self) -> str:
        """The action as records write it."""
        return f"{self.group}: {self.verb}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAzRebalance(_Group):
    """Stop a group from ending instances only to balance its zones."""

    verb: ClassVar[str] = "suspend AZRebalance"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeLaunch(_Group):
    """Resume the Launch process of a group that AWS suspended."""

    verb: ClassVar[str] = "resume Launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGroup(_Group):
    """Tag a group as this stack's, so that no other stack acts on it."""

    verb: ClassVar[str] = "claim"


type OfSize = Backfill | CancelBackfill | RestoreSpot
type OfGroup = WakeUp | OfSize | SuspendAzRebalance | ResumeLaunch | ClaimGroup
type OfInstance = EndBackfill | Drain | Unmark | ReplaceEarly | Terminate
type AvailabilityAction = OfGroup | OfInstance
