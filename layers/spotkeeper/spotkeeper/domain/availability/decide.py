"""A turn of the availability controller: assess -> risk -> plan -> (act) -> apply.

Each is a pure function; what AWS is asked, and what it answered, lies between the last two.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.availability.actions import AvailabilityAction, Plan, WakeUp
from spotkeeper.domain.availability.assessing.counting import both_short, count_groups
from spotkeeper.domain.availability.assessing.failures import explain_gaps
from spotkeeper.domain.availability.assessing.launching import who_is_launching
from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.planning.backfill import size_backfill
from spotkeeper.domain.availability.planning.interruption import (
    at_risk,
    drains,
    early_replacements,
    lapsed,
    left_running,
    unmarks,
)
from spotkeeper.domain.availability.planning.processes import resumptions, suspensions
from spotkeeper.domain.availability.planning.spares import ask_for_spares
from spotkeeper.domain.availability.remembering.adoption import still_known
from spotkeeper.domain.availability.remembering.answers import remember_answer
from spotkeeper.domain.availability.remembering.seen import remember_seen
from spotkeeper.domain.availability.risk.risk import risk_of
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.availability.telling import explain, tell
from spotkeeper.domain.decision import Answer


def assess(snapshot: Snapshot, memory: AvailabilityMemory) -> Assessment:
    """Count both groups, bring the memory up to now, and weigh what may be lost."""
    before, memory = memory, still_known(memory, snapshot)
    explained = explain_gaps(snapshot, memory)
    warned = at_risk(explained, memory)
    risky = frozenset(i for i, at in warned.items() if at <= snapshot.now)
    unmark = lapsed(explained, memory, risky)
    launching = who_is_launching(memory, explained)
    spot, on_demand = count_groups(explained, memory, launching.since, risky.union(unmark))
    seen = Assessment(
        snapshot=snapshot,
        memory=memory,
        spot=spot,
        on_demand=on_demand,
        risk=risk_of(explained, memory, spot, warned),
        risky=risky,
        newly_risky=risky.difference(memory.risky),
        unmark=unmark,
        launching=launching,
        spot_failures=explained.spot_failures,
        on_demand_failures=explained.on_demand_failures,
        both_short=both_short(explained, spot, on_demand),
        found=on_demand.target - memory.unsure.before if memory.unsure else 0,
        groups_before=before.groups,
    )
    return replace(seen, memory=remember_seen(seen, warned))


def plan(seen: Assessment) -> Plan:
    """Decide one turn; the same assessment always gives the same plan.

    What serves first comes first: backfill, replacement, then the rest.
    """
    size = size_backfill(seen)
    memory = replace(seen.memory, release_due=size.release_due)
    actions: tuple[AvailabilityAction, ...] = (
        *size.actions,
        *drains(seen),
        *unmarks(seen),
        *early_replacements(seen),
        *ask_for_spares(seen),
        *left_running(seen),
        *suspensions(seen),
        *resumptions(seen),
    )
    return Plan(
        action=size.action,
        rule=size.rule,
        reason=f"{tell(seen)}; {size.why}{explain(seen)}",
        wake_up=_wake_up(seen),
        actions=actions,
        assessment=seen,
        memory=memory,
    )


def apply(
    memory: AvailabilityMemory,
    actions: Sequence[AvailabilityAction],
    answers: Sequence[Answer],
    at: datetime,
) -> AvailabilityMemory:
    """Remember what AWS accepted, and what it may have accepted where that must not be forgotten.

    What was refused leaves no trace: the next turn finds it still due.
    """
    for action, answer in zip(actions, answers, strict=True):
        memory = remember_answer(memory, action, answer, at)
    return memory


def _wake_up(seen: Assessment) -> WakeUp | None:
    """Have a turn happen when what was put off is due: once for each instant."""
    until = seen.risk.deferral.until
    if until is None or not seen.deferred or until in seen.memory.wake_ups:
        return None
    return WakeUp(at=until, now=seen.now, reason="warned instances serve on until then")
