"""A fleet with an objective: what its rule is given, and what is remembered of its answer."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.memory import HealthMemory, Needed
from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.estimate import Estimate, bounds
from spotkeeper.domain.sizing.objective import size_to_objective
from spotkeeper.domain.sizing.start_up import start_up_s
from spotkeeper.domain.sizing.values import Need, ObjectivePolicy, PastNeed

# What the objective's rule looks back on; as long as its longest window.
OBJECTIVE_WINDOW_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInput:
    """What an objective's sizing needs besides the load; `serving` instances of both groups."""

    summary: LoadSummary
    serving: int


def by_objective(
    seen: ObjectiveInput,
    fleet: Fleet,
    spot: Group,
    current: int,
    onprem: int,
    memory: HealthMemory,
    now: datetime,
) -> Estimate:
    """Find the fewest workers that keep the objective.

    What was asked for and does not serve yet counts as booting, seen or not: it is not asked for
    twice. On-demand instances stand in for spot that was asked for, so they add nothing.
    """
    serving = min(seen.serving, current)
    need = size_to_objective(
        seen.summary,
        onprem + serving * fleet.workers_per_instance,
        (current - serving) * fleet.workers_per_instance,
        [_past(needed, now) for needed in memory.needed],
        _policy(fleet, spot, onprem, memory),
    )
    return Estimate(
        rule="objective",
        reason=need.reason,
        workers=need.workers + need.missing,
        steady=need.workers,
        needed=_remembered(memory, now, need),
        missing=need.missing,
    )


def _policy(fleet: Fleet, spot: Group, onprem: int, memory: HealthMemory) -> ObjectivePolicy:
    objective, (least, most) = fleet.objective, bounds(fleet, spot)
    assert objective is not None
    return ObjectivePolicy(
        wait_s=objective.wait_s,
        share=objective.share,
        min_workers=least * fleet.workers_per_instance,
        max_workers=most * fleet.workers_per_instance + onprem,
        start_up_s=start_up_s(memory, objective.start_up_s),
        stale_s=fleet.sizing.stale_after_s,
    )


def _past(needed: Needed, now: datetime) -> PastNeed:
    age_s = (now - needed.at).total_seconds()
    return PastNeed(age_s=age_s, workers=needed.workers, held=needed.held)


def _remembered(memory: HealthMemory, now: datetime, need: Need) -> tuple[Needed, ...]:
    """Remember a need; of those before, what it does not exceed, and those held in a silence."""
    start = now - timedelta(seconds=OBJECTIVE_WINDOW_S)
    kept = (
        past
        for past in memory.needed
        if start <= past.at < now and (past.workers > need.load_workers or past.held)
    )
    return (*kept, Needed(at=now, workers=need.load_workers, held=need.held))
