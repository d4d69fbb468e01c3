"""What a turn wants of AWS: each action is about one thing, and says why."""

from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeUp:
    """Have a turn happen at an instant: something was put off until then, as of `now`."""

    at: datetime
    now: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Raise the on-demand group to `desired`, by `count`."""

    group: str
    desired: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBackfill:
    """Lower the on-demand group to `desired`, by `count` instances that never launched."""

    group: str
    desired: int
    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndBackfill:
    """End an on-demand instance, and lower its group by one."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Mark an instance with when it will be gone."""

    instance_id: str
    gone_at: datetime
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceEarly:
    """Take a marked instance out of the spot group, which replaces it at once."""

    group: str
    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSpot:
    """Ask the spot group for `desired`, which it may show either of `requests` for."""

    group: str
    desired: int
    requests: tuple[CapacityRequest, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSpare:
    """End a spare spot instance, and lower its group by one."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    """End an instance that was taken out of its group and that AWS left running."""

    instance_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendAzRebalance:
    """Stop a group from ending instances only to even out its zones."""

    group: str
    reason: str


type AvailabilityAction = (
    WakeUp
    | Backfill
    | CancelBackfill
    | EndBackfill
    | Drain
    | ReplaceEarly
    | AskSpot
    | EndSpare
    | Terminate
    | SuspendAzRebalance
)


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
