"""A decision is what is wanted and why; an outcome is what AWS answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spotkeeper.domain.permission import Permission

FAILED = "failed"
"""The rule in the record of a turn that failed; its reason is the error."""


class Controller(StrEnum):
    """The controllers; each has one writer per fleet, or per job."""

    AVAILABILITY = "availability"
    HEALTH = "health"
    JOBS = "jobs"


OF_FLEETS = (Controller.AVAILABILITY, Controller.HEALTH)


class Action(StrEnum):
    """What a turn does to the fleet's size; `STEP` is what it does for a job."""

    HOLD = "hold"
    BACKFILL = "backfill"
    RELEASE = "release"
    RESIZE = "resize"
    STEP = "step"


class Answer(StrEnum):
    """The outcome of an action: only what AWS accepted has happened.

    A `LOST` action may have had its effect although the answer was lost. A `SKIPPED` one was not
    requested: an earlier action that it needs was not done, or the fleet's time was spent.
    """

    DONE = "done"
    REFUSED = "refused"
    LOST = "lost"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request to AWS and its answer; `error` is empty if it was done.

    `would` marks a request that was not sent, because the turn may only observe.
    """

    asked: str
    error: str = ""
    would: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What one turn saw, its rule and reason, its requests and AWS's answers.

    `unread` says what could not be read although the turn went on, and why. `error` says what
    stopped the turn; it is empty for a turn that worked. Of a job's turn, `fleet` is the job.
    """

    fleet: str
    controller: Controller
    at: datetime
    action: Action
    rule: str
    reason: str
    seen: Mapping[str, float]
    outcomes: tuple[Outcome, ...] = ()
    alarms: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    unknown_failures: tuple[str, ...] = ()
    permission: Permission = Permission.ACT
    unread: tuple[str, ...] = ()
    error: str = ""

    @property
    def failure(self) -> str:
        """What failed: the whole turn, or what AWS refused it; empty where nothing did."""
        if self.rule == FAILED:
            return self.reason
        refused = [f"{one.asked}: {one.error}" for one in self.outcomes if one.error]
        return "; ".join([*refused, *filter(None, [self.error])])

    @property
    def looked(self) -> bool:
        """Whether it has figures; a turn that failed, or that only lost its memory, has none."""
        return has_figures(self.seen)


def has_figures(seen: Mapping[str, float]) -> bool:
    """Whether a record's `seen` has more than the mark of a turn that failed."""
    return bool(seen.keys() - {"TurnsFailed"})
