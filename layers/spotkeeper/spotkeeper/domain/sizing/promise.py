"""A fleet with an objective: what its rule is given, and what is remembered of its answer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.memory import HealthMemory, Needed
from spotkeeper.domain.load.arrivals import ArrivalWindow
from spotkeeper.domain.load.history import STEP_SLOTS, LoadHistory, arrival_log, extended
from spotkeeper.domain.load.load import LoadDigest, unique
from spotkeeper.domain.load.slots import slot_of
from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.sizing.estimate import Estimate, bounds
from spotkeeper.domain.sizing.objective import size_to_objective
from spotkeeper.domain.sizing.shadows import Choice, OwnStarts, advanced
from spotkeeper.domain.sizing.start_up import start_up_s
from spotkeeper.domain.sizing.values import Need, ObjectivePolicy, PastNeed

# What the objective's rule looks back on in slots; minutes before that are in the history.
OBJECTIVE_WINDOW_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInput:
    """What an objective's sizing needs besides the load; `serving` instances of both groups.

    `choice` is the rule that is followed, and why.
    """

    summary: LoadSummary
    serving: int
    choice: Choice = field(default_factory=Choice)


def judged_history(
    history: LoadHistory,
    digests: Sequence[LoadDigest],
    seen: ArrivalWindow,
    policy: ObjectivePolicy,
) -> LoadHistory:
    """Add the minutes that have settled, and let every shadow serve those of a step before."""
    history = extended(history, seen)
    stop = history.next_step - 1
    if not history.work_ms or (stop <= history.scores.next_step and _is_of(history, policy)):
        return history
    squared = seen.service_mean_s**2
    scores = advanced(
        history.scores,
        arrival_log(history, seen),
        stop,
        policy,
        max(0.0, seen.service_second_moment_s2 / squared - 1.0) if squared else 1.0,
        own_starts(digests, policy.wait_s),
    )
    return replace(history, scores=scores)


def _is_of(history: LoadHistory, policy: ObjectivePolicy) -> bool:
    return (history.scores.wait_s, history.scores.share) == (policy.wait_s, policy.share)


def own_starts(digests: Sequence[LoadDigest], wait_s: float) -> dict[int, OwnStarts]:
    """Count the requests whose logs came in each step, and those that started late."""
    requests: Counter[int] = Counter()
    late: Counter[int] = Counter()
    for one in unique(digests):
        step = slot_of(one.sent_at) // STEP_SLOTS
        requests[step] += one.waits.count
        late[step] += one.waits.count - one.waits.within(wait_s)
    return {step: OwnStarts(count, late[step]) for step, count in requests.items()}


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
        objective_policy(fleet, spot, onprem, memory),
        seen.choice.member,
    )
    return Estimate(
        rule="objective",
        reason=f"{need.reason} ({seen.choice})",
        workers=need.workers + need.missing,
        steady=need.workers,
        needed=_remembered(memory, now, need),
        missing=need.missing,
    )


def objective_policy(
    fleet: Fleet, spot: Group, onprem: int, memory: HealthMemory
) -> ObjectivePolicy:
    """Return the promise, its bounds in workers, and how long a worker takes to start."""
    objective, (least, most) = fleet.objective, bounds(fleet, spot)
    assert objective is not None
    return ObjectivePolicy(
        wait_s=objective.wait_s,
        share=objective.share,
        min_workers=least * fleet.workers_per_instance,
        max_workers=most * fleet.workers_per_instance + onprem,
        start_up_s=start_up_s(memory, objective.start_up_s),
        onprem=onprem,
        per_instance=fleet.workers_per_instance,
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
