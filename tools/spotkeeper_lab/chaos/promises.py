"""What must hold whatever goes wrong, and from when on."""

from dataclasses import dataclass
from enum import StrEnum

from spotkeeper_lab.chaos.story.scenario import Kind

STEADY_S = 600.0
"""The load of so long is what a fleet must serve."""

SHORT_S = 1200.0
"""A fleet may be short for so long."""

WHOLE_AFTER_S = 1200.0
"""A fault that nothing could be done about is felt for so long after it."""

SERVED_AFTER_S = 1800.0
"""In the quiet, requests wait for so long at most."""

BACK_AFTER_S = 3300.0
"""In the quiet, on-demand is kept for so long at most while spot serves."""

CURED_AFTER_S = 3000.0
"""In the quiet, who could be known not to work stays for so long at most."""

ORPHAN_S = 1500.0
"""An instance runs in no group for so long at most."""

CONFIGURATION_CAP = 2

CAPPED = frozenset(
    {Kind.LAUNCH_REFUSED, Kind.BAD_SPOT_IMAGE, Kind.BOOT_LOOP, Kind.OPERATOR_SUSPENDS}
)
"""More instances do not cure these: the backfill has a cap of its own."""

FORGETFUL = frozenset({Kind.STATE_LOST, Kind.STATE_UNREADABLE})

UNHEARD = frozenset({Kind.LOGS_STOP, Kind.COLLECTOR_DOWN})
"""Who comes now is heard of by nobody."""

HELPLESS = frozenset(
    {
        Kind.ON_DEMAND_DRY,
        Kind.BAD_ON_DEMAND_IMAGE,
        Kind.WRONG_DOCUMENT,
        Kind.OPERATOR_MAXIMUM,
        Kind.HANG,
        Kind.LOGS_STOP,
        Kind.LOGS_LATE,
        Kind.HALF_LOGS,
        Kind.COLLECTOR_DOWN,
    }
)
"""Nobody can fill the gap, or nobody can know of it."""


UNHEARD_REPLACED_AT_MOST = 2
"""So many that served without search logs may be replaced; of those that are heard of nobody."""

LAUNCHES_AN_HOUR = 60

LAUNCHES_IN_QUIET, QUIET_LAUNCHES_AFTER_S = 12, 1500.0
"""So many launches at most, counted from so long into the quiet."""

REFILLS_AN_HOUR = 5
"""On-demand is filled again after it was given back so often at most."""

SILENT_S = 300.0
"""The other fleet is turned once within so long."""

FAILURES_AT_MOST, FAILURES_WITHIN_S = 6, 900.0
"""So many invocations fail within so long where nothing is wrong with AWS."""


class Promise(StrEnum):
    """What is broken when it is."""

    BOUNDS = "bounds"
    WHOLE = "whole again"
    SERVED = "requests are served"
    GIVEN_BACK = "on-demand given back"
    CURED = "who does not work is replaced"
    SCALE_IN = "no scale-in below the load"
    MAKE_BEFORE_BREAK = "make before break"
    REASONED = "only reasoned ends"
    BUDGET = "replacements within the budget"
    LAUNCHES = "launches an hour"
    NO_LOOP = "no launch loop"
    NO_FLAPPING = "no flapping"
    ORPHANS = "no orphan"
    RECORDED = "a record or a failure for every turn"
    ISOLATED = "fleets do not disturb each other"
    COST = "cost bounded"
    OPERATOR = "an operator's desired stays"
    SETTLED = "no failures without end"
    NO_BUG = "no unexpected error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was broken, when, and how."""

    promise: Promise
    at_s: float
    how: str
