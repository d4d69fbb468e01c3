"""A turn of the availability half: assess -> risk -> plan -> (act) -> apply.

Each is a pure function; what AWS is asked, and what it answered, lies between the last two.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.availability.actions import (
    AskSpot,
    AvailabilityAction,
    Backfill,
    CancelBackfill,
    Drain,
    EndBackfill,
    Plan,
    ReplaceEarly,
    Terminate,
    WakeUp,
)
from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.backfill import backfilled, size_backfill
from spotkeeper.domain.availability.counting import count_groups, remember_coming
from spotkeeper.domain.availability.interruption import (
    at_risk,
    drains,
    early_replacements,
    left_running,
)
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.processes import suspensions
from spotkeeper.domain.availability.risk.risk import risk_of
from spotkeeper.domain.availability.seen import both_short, remember_seen, suspended_launches
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.availability.spares import ask_for_spares
from spotkeeper.domain.availability.telling import explain, tell
from spotkeeper.domain.decision import Answer
from spotkeeper.domain.fleet import AvailabilityPolicy


def assess(snapshot: Snapshot, memory: AvailabilityMemory) -> Assessment:
    """Count both groups, bring the memory up to now, and weigh what may be lost."""
    warned = at_risk(snapshot, memory)
    risky = frozenset(i for i, at in warned.items() if at <= snapshot.now)
    coming_since = remember_coming(memory, snapshot)
    spot, on_demand = count_groups(snapshot, memory, coming_since, risky)
    failures = (*snapshot.spot_failures, *suspended_launches(snapshot))
    risk = risk_of(snapshot, memory, spot, warned)
    short = both_short(snapshot, spot, on_demand)
    seen = Assessment(
        snapshot=snapshot,
        memory=memory,
        spot=spot,
        on_demand=on_demand,
        risk=risk,
        risky=risky,
        newly_risky=risky.difference(memory.risky),
        spot_failures=failures,
        both_short=short,
    )
    return replace(seen, memory=remember_seen(seen, warned, coming_since))


def plan(seen: Assessment) -> Plan:
    """Decide one turn; the same assessment always gives the same plan.

    What serves first comes first: backfill, replacement, then the rest.
    """
    size = size_backfill(seen)
    memory = replace(seen.memory, release_due=size.release_due)
    actions: tuple[AvailabilityAction, ...] = (
        *size.actions,
        *drains(seen),
        *early_replacements(seen),
        *ask_for_spares(seen),
        *left_running(seen),
        *suspensions(seen),
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
    policy: AvailabilityPolicy,
    at: datetime,
) -> AvailabilityMemory:
    """Remember what AWS accepted, and what it may have accepted where that must not be forgotten.

    What was refused leaves no trace: the next turn finds it still due.
    """
    for action, answer in zip(actions, answers, strict=True):
        memory = _remember(memory, action, answer, policy, at)
    return memory


def _remember(
    memory: AvailabilityMemory,
    action: AvailabilityAction,
    answer: Answer,
    policy: AvailabilityPolicy,
    at: datetime,
) -> AvailabilityMemory:
    match action, answer:
        case ReplaceEarly(instance_id=gone), Answer.DONE | Answer.LOST:
            return replace(memory, detached={**memory.detached, gone: at})
        case AskSpot(requests=requests), Answer.DONE | Answer.LOST:
            return replace(memory, spot_asks=requests)
        case Backfill(), Answer.DONE:
            return backfilled(memory, policy, at)
        case ((CancelBackfill() | EndBackfill()), Answer.DONE):
            return replace(memory, last_release=at)
        case Drain(instance_id=marked), Answer.DONE:
            return replace(memory, drained=tuple(sorted({*memory.drained, marked})))
        case Terminate(instance_id=ended), Answer.DONE:
            left = {i: since for i, since in memory.detached.items() if i != ended}
            return replace(memory, detached=left)
        case WakeUp(at=asked), Answer.DONE:
            return replace(memory, wake_ups=(*memory.wake_ups, asked))
        case _:
            return memory


def _wake_up(seen: Assessment) -> WakeUp | None:
    """Have a turn happen when what was put off is due: once for each instant."""
    until = seen.risk.deferral.until
    if until is None or not seen.deferred or until in seen.memory.wake_ups:
        return None
    return WakeUp(at=until, now=seen.now, reason="warned instances serve on until then")
