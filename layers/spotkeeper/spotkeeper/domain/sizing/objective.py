"""Workers for a promise about waiting: "`share` of requests start within `wait_s`".

The need is what the member that the fleet follows finds for the load (`shadows`), at its highest
of the time that the member keeps a need. What waits now, and what gathers until a new worker
serves, is drained in time: logs tell only of requests that were served, so that under overload the
load looks small. More load never gives fewer workers, a looser promise never more.
"""

import math
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
from spotkeeper.domain.load.summary import DAY_SLOTS, MINUTE_SLOTS, SLOT_S, LoadSummary
from spotkeeper.domain.sizing.estimate import Estimate, bounds
from spotkeeper.domain.sizing.shadows import (
    MINUTE_S,
    PRUDENT,
    Choice,
    Member,
    OwnStarts,
    advanced,
    chance,
    lag_slots,
    needed,
)
from spotkeeper.domain.sizing.start_up import start_up_s
from spotkeeper.domain.sizing.values import Need, ObjectivePolicy, PastNeed
from spotkeeper.domain.sizing.without_logs import is_quiet, size_in_silence

# A newest wait above this is a queue, not a hand-over.
QUEUE_WAIT_S = 1.0
# A need that was held in a silence counts until the window is whole again.
WHOLE_S = 900.0
SHORTEST_SERVICE_S = 0.001  # logs tell milliseconds


def size_to_objective(
    load: LoadSummary,
    live: int,
    booting: int,
    past: Sequence[PastNeed],
    policy: ObjectivePolicy,
    member: Member = PRUDENT,
) -> Need:
    """Return the fewest workers that keep the policy's promise by a member's rule, and why."""
    have = live + booting
    if is_quiet(load.quiet_s, policy.quiet_after_s):
        least = policy.min_workers
        return Need(workers=least, load_workers=0, reason=f"no request for {load.quiet_s:.0f} s")
    mean_s = load.log.service_mean_s(len(load.log)) or load.service_mean_s
    if load.logs_missing or not (mean_s or any(load.log.requests)):
        return size_in_silence(load, have, past, policy)
    mean_s = max(mean_s, SHORTEST_SERVICE_S)
    now, found = found_by(member, load, mean_s, policy)
    recent = _recent_needs(past, have, booting, policy)
    young = not past or len(load.log) < STEP_SLOTS
    kept = max(found, have if young else 0, *recent)
    offered = _offered(load, mean_s)
    drain = _drain(offered, load, live, booting, mean_s, policy)
    reason = f"load {offered:.1f} erlangs needs {now} workers"
    if found > now:
        reason += f", {found} in the last {member.keep_s // 60} min"
    if drain > kept:
        reason += f"; {drain} while requests wait, to drain them in {policy.drain_s:g} s"
    elif kept > found:
        reason += f"; {kept} kept, the need of the recent past"
    return _bounded(max(kept, drain), found, policy, reason)


def _ends(load: LoadSummary, mean_s: float) -> range:
    """Return the ends of the windows that tell the load of now.

    While requests wait nothing later than the newest start was served: the highest since counts.
    """
    end = len(load.log) - lag_slots(mean_s)
    waiting = min(round(unserved_s(load) / SLOT_S), DAY_SLOTS, max(0, end))
    return range(max(1, end), max(0, end - waiting - 1), -1)


def _offered(load: LoadSummary, mean_s: float) -> float:
    """Return the load that the newest minutes prove, for what waits.

    Once requests wait for a minute the fleet is overloaded, and only the first seconds of a step
    have been served yet: then what a slot of ten seconds had counts, less what chance adds. A
    window shorter than a request tells of too few of them.
    """
    ends, lengths = _ends(load, mean_s), [STEP_SLOTS]
    if load.newest_wait_s >= MINUTE_S:
        lengths += [slots for slots in (MINUTE_SLOTS, 1) if slots * SLOT_S >= mean_s]
    loads = ((load.log.load(end, slots), slots) for end in ends for slots in lengths)
    return max(
        found - (chance(found, mean_s, slots * SLOT_S) if slots < STEP_SLOTS else 0.0)
        for found, slots in loads
    )


def found_by(
    member: Member, load: LoadSummary, mean_s: float, policy: ObjectivePolicy
) -> tuple[int, int]:
    """Return what a member finds to be needed now, and the most while it keeps a need."""
    ends = _ends(load, mean_s)
    now = max(needed(member, load.log, end, mean_s, policy) for end in ends)
    back = range(ends[0], max(0, ends[0] - member.keep_s // 60 * MINUTE_SLOTS), -MINUTE_SLOTS)
    return now, max(now, *(needed(member, load.log, end, mean_s, policy) for end in back))


def _recent_needs(
    past: Sequence[PastNeed], have: int, booting: int, policy: ObjectivePolicy
) -> list[int]:
    """Return the past needs that still count: those held in a silence, until the window is whole.

    While workers boot, those of a whole start-up count, too: ended before it serves, a worker has
    been paid for nothing. One that never serves is given up after that.
    """
    held = [need.workers for need in past if need.held and need.age_s <= WHOLE_S]
    launched = (need.workers for need in past if booting and need.age_s <= policy.start_up_s)
    return [*held, *(min(have, workers) for workers in launched)]


def unserved_s(load: LoadSummary) -> float:
    """Return for how long nothing that arrived has been served; 0 unless requests wait."""
    if load.newest_wait_s < QUEUE_WAIT_S:
        return 0.0
    return load.newest_start_age_s + load.newest_wait_s


def _drain(
    level: float,
    load: LoadSummary,
    live: int,
    booting: int,
    mean_s: float,
    policy: ObjectivePolicy,
) -> int:
    """Return the workers that clear what waits within `drain_s` of serving; 0 when nothing does.

    Requests wait once the live workers do not clear them within the promise; then nothing is given
    back. As far as requests wait for as long as is known of them, the load is at least what the
    workers serve. Where the queue's length is not known, it is read off the newest wait.
    """
    if load.queued == 0:
        return 0
    unknown = unserved_s(load) / (max(1, min(len(load.log), 90)) * SLOT_S)
    level = max(level, live * min(1.0, unknown))
    clearing = level if load.queued is None else live
    if load.queued is None:
        waiting_s = level * load.newest_wait_s + (level - live) * load.newest_start_age_s
    else:
        waiting_s = load.queued * mean_s
    if load.newest_wait_s <= policy.wait_s and waiting_s <= max(1, clearing) * policy.wait_s:
        return 0
    return max(math.ceil(level + max(0.0, waiting_s) / policy.drain_s), live + booting)


def _bounded(wanted: int, found: int, policy: ObjectivePolicy, reason: str) -> Need:
    """Apply the bounds; when the promise does not fit, say what it would have needed."""
    workers = min(max(wanted, policy.min_workers), policy.max_workers)
    missing = max(0, wanted - workers)
    if missing:
        reason += f"; the bound of {policy.max_workers} is {missing} short"
    else:
        reason += f": {max(wanted, 0)} start {policy.share:.0%} within {policy.wait_s:g} s"
    return Need(workers=workers, reason=reason, load_workers=found, missing=missing)


# What the objective's rule looks back on in slots; minutes before that are in the history.
OBJECTIVE_WINDOW_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInput:
    """What an objective's sizing needs besides the load; `serving` instances of both groups.

    `choice` is the rule that is followed, and why. A worker serves `slots` requests at once, fewer
    than the fleet's document has if that was seen to be too many; 0: as many as the document has.
    """

    summary: LoadSummary
    serving: int
    choice: Choice = field(default_factory=Choice)
    slots: int = 0


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
    serving, declared = min(seen.serving, current), fleet.slots
    fleet = replace(fleet, slots=seen.slots or declared)
    need = size_to_objective(
        seen.summary,
        (onprem + serving * fleet.workers_per_instance) * fleet.slots,
        (current - serving) * fleet.workers_per_instance * fleet.slots,
        [_past(needed, fleet.slots, now) for needed in memory.needed],
        objective_policy(fleet, spot, onprem, memory),
        seen.choice.member,
    )
    need = _in_workers(need, fleet.slots, declared)
    return Estimate(
        rule="objective",
        reason=f"{need.reason} ({seen.choice})",
        workers=need.workers + need.missing,
        steady=need.workers,
        needed=_remembered(memory, now, need),
        missing=need.missing,
    )


def _in_workers(need: Need, slots: int, declared: int) -> Need:
    """Turn a need of slots into one of workers."""
    if declared == 1:
        return need
    unlike = (
        "" if slots == declared else f" (the document has {declared}: requests wait at {slots})"
    )
    workers = math.ceil(need.workers / slots)
    return replace(
        need,
        workers=workers,
        load_workers=math.ceil(need.load_workers / slots),
        missing=math.ceil((need.workers + need.missing) / slots) - workers,
        reason=f"in slots, {slots} a worker{unlike}: {need.reason}",
    )


def objective_policy(
    fleet: Fleet, spot: Group, onprem: int, memory: HealthMemory
) -> ObjectivePolicy:
    """Return the promise, its bounds in workers, and how long a worker takes to start."""
    objective, (least, most) = fleet.objective, bounds(fleet, spot)
    assert objective is not None
    per_instance = fleet.workers_per_instance * fleet.slots
    return ObjectivePolicy(
        wait_s=objective.wait_s,
        share=objective.share,
        min_workers=least * per_instance,
        max_workers=most * per_instance + onprem * fleet.slots,
        start_up_s=start_up_s(memory, objective.start_up_s),
        onprem=onprem * fleet.slots,
        per_instance=per_instance,
        slots=fleet.slots,
    )


def _past(needed: Needed, slots: int, now: datetime) -> PastNeed:
    age_s = (now - needed.at).total_seconds()
    return PastNeed(age_s=age_s, workers=needed.workers * slots, held=needed.held)


def _remembered(memory: HealthMemory, now: datetime, need: Need) -> tuple[Needed, ...]:
    """Remember a need; of those before, what it does not exceed, and those held in a silence."""
    start = now - timedelta(seconds=OBJECTIVE_WINDOW_S)
    kept = (
        past
        for past in memory.needed
        if start <= past.at < now and (past.workers > need.load_workers or past.held)
    )
    return (*kept, Needed(at=now, workers=need.load_workers, held=need.held))
