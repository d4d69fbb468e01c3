"""The requests of a turn to AWS: each action concerns one group or one instance."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from spotkeeper.domain.decision import RequestKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Run another turn at an instant, because backfill was deferred until then.

    `woken` counts the wake-ups that followed each other, including this one.
    """

    at: datetime
    now: datetime
    woken: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _DesiredCapacity:
    """Set the desired capacity of a group."""

    group: str
    desired: int
    kind: ClassVar[RequestKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill(_DesiredCapacity):
    """Raise the on-demand group to `desired`, by `count`."""

    count: int
    kind: ClassVar[RequestKind] = RequestKind.BACKFILL

    @property
    def before(self) -> int:
        """The desired capacity before."""
        return self.desired - self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBackfill(_DesiredCapacity):
    """Lower the on-demand group to `desired`, by `count` instances that never launched."""

    count: int
    kind: ClassVar[RequestKind] = RequestKind.CANCEL_BACKFILL

    @property
    def before(self) -> int:
        """The desired capacity before."""
        return self.desired + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSpot(_DesiredCapacity):
    """Set a spot group that was deleted and made again to the size that it had before.

    Otherwise the health controller or an operator owns the desired capacity of the spot group.
    """

    kind: ClassVar[RequestKind] = RequestKind.RESTORE_SPOT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """Change one instance."""

    instance_id: str
    kind: ClassVar[RequestKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBackfill(_Instance):
    """End an on-demand instance, and lower its group, which has `before` now, by one."""

    before: int
    kind: ClassVar[RequestKind] = RequestKind.END


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(_Instance):
    """Mark an instance of a group with the time when AWS takes it."""

    group: str
    gone_at: datetime
    kind: ClassVar[RequestKind] = RequestKind.DRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmark(_Instance):
    """Remove the mark from an instance, which keeps working."""

    kind: ClassVar[RequestKind] = RequestKind.STOP_DRAINING


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceEarly(_Instance):
    """Detach an instance from the spot group, which replaces it at once.

    The instance must be marked first: otherwise the role may not end it if AWS leaves it running.
    AWS has `taken` it already where that is set.
    """

    group: str
    taken: bool
    kind: ClassVar[RequestKind] = RequestKind.REPLACE_EARLY


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate(_Instance):
    """End a detached instance that AWS left running."""

    kind: ClassVar[RequestKind] = RequestKind.TERMINATE


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeGroup:
    """Change one group, by its `kind`.

    Claim it as this stack's, so that no other acts on it; resume its Launch process, which AWS
    suspended; or stop it from ending instances only to balance its zones.
    """

    group: str
    kind: RequestKind


type OfGroup = WakeUp | Backfill | CancelBackfill | RestoreSpot | ChangeGroup
type OfInstance = EndBackfill | Drain | Unmark | ReplaceEarly | Terminate
type AvailabilityAction = OfGroup | OfInstance
