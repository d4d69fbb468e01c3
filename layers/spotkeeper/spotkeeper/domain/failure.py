"""Why a launch failed, and what that allows the fleet to do about it."""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import assert_never


class FailureClass(StrEnum):
    """The failure classes that the rules distinguish."""

    CAPACITY = "capacity"
    PRICE = "price"
    QUOTA = "quota"
    CONFIGURATION = "configuration"
    PERMISSION = "permission"
    BOOTSTRAP = "bootstrap"
    THROTTLE = "throttle"


# What AWS says of every launch that fails, and its advice about zones, which groups follow.
_OF_EACH = re.compile(
    r"^Could not launch (Spot|On-Demand) Instances\. |^Instance became .* Termination Reason: "
    r"|\.? Launching EC2 instance failed\.$|\.$"
    r"|\. Our system will be working on provisioning additional capacity\..*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailure:
    """One launch that AWS refused or gave up; `known` is false where no rule names its text."""

    at: datetime
    failure_class: FailureClass
    message: str
    pool: str = ""
    known: bool = True

    @property
    def text(self) -> str:
        """The message without what tells nothing of this launch."""
        return _OF_EACH.sub("", self.message)


class Remedy(StrEnum):
    """What a failure class allows."""

    BACKFILL = "backfill"
    BACKFILL_CAPPED = "backfill_capped"
    NONE = "none"


def remedy(failure_class: FailureClass) -> Remedy:
    """Map a failure class to what it allows (design rule 6)."""
    match failure_class:
        case FailureClass.CAPACITY | FailureClass.PRICE | FailureClass.QUOTA:
            return Remedy.BACKFILL
        case FailureClass.CONFIGURATION | FailureClass.PERMISSION | FailureClass.BOOTSTRAP:
            return Remedy.BACKFILL_CAPPED
        case FailureClass.THROTTLE:
            return Remedy.NONE
        case _:
            assert_never(failure_class)


def needs_operator(failure_class: FailureClass) -> bool:
    """Say whether only a person can mend it; quota backfills, but only a person can raise it."""
    return remedy(failure_class) is Remedy.BACKFILL_CAPPED or failure_class is FailureClass.QUOTA
