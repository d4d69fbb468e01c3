"""Which events concern a fleet, and what each of them requires."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

from spotkeeper.domain.settings.availability import RebalanceMeaning

# A scheduled change is announced days ahead. Its instance counts as at risk this long before it,
# which is less than the lifetime of a warning: AWS stops it at that time or soon after.
SCHEDULED_LEAD = timedelta(minutes=10)


class InterruptionKind(StrEnum):
    """The events that make a turn happen at once."""

    INTERRUPTION_WARNING = "interruption_warning"
    REBALANCE_RECOMMENDATION = "rebalance_recommendation"
    LAUNCH_UNSUCCESSFUL = "launch_unsuccessful"
    LAUNCH_SUCCESSFUL = "launch_successful"
    TERMINATE_SUCCESSFUL = "terminate_successful"
    REFRESH_STARTED = "refresh_started"
    STATE_CHANGE = "state_change"
    SCHEDULED_CHANGE = "scheduled_change"


class InterruptionAction(StrEnum):
    """What an event requires for the fleet that it names."""

    MARK_AT_RISK = "mark_at_risk"
    TURN = "turn"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One event, parsed; `group` is empty where the event does not carry it.

    `due` is when the instance is expected to go, where the event says so.
    """

    kind: InterruptionKind
    at: datetime
    instance_ids: tuple[str, ...] = ()
    group: str = ""
    due: datetime | None = None


def action_for(kind: InterruptionKind, rebalance: RebalanceMeaning) -> InterruptionAction:
    """Map an event's kind to the action that it requires; this is the whole policy of events."""
    match kind:
        case InterruptionKind.INTERRUPTION_WARNING | InterruptionKind.SCHEDULED_CHANGE:
            return InterruptionAction.MARK_AT_RISK
        case InterruptionKind.REBALANCE_RECOMMENDATION:
            if rebalance is RebalanceMeaning.AT_RISK:
                return InterruptionAction.MARK_AT_RISK
            return InterruptionAction.IGNORE
        case (
            InterruptionKind.LAUNCH_UNSUCCESSFUL
            | InterruptionKind.LAUNCH_SUCCESSFUL
            | InterruptionKind.TERMINATE_SUCCESSFUL
            | InterruptionKind.REFRESH_STARTED
            | InterruptionKind.STATE_CHANGE
        ):
            return InterruptionAction.TURN
        case _:
            assert_never(kind)


def at_risk_since(
    known: datetime | None, reported: datetime, now: datetime, notice: timedelta
) -> datetime:
    """Return since when an instance is at risk, given what was known of it before.

    The last of several announced changes holds, unless a risk has begun already. A repeated warning
    changes nothing; one that arrives after the notice of the first is a new warning.
    """
    if known is None or known > now:
        return reported
    return reported if known + notice <= reported <= now else known
