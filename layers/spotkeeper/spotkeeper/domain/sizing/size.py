"""How many workers the load needs, and how many spot instances that makes (design rule 2).

A fleet with an objective is sized to its promise about waiting (`_by_objective`), one without to a
target load rate (`_by_load_rate`). Silence is not zero load, unless a queue proves it: without logs
the fleet holds what it has (`_in_silence`), and requests in the queue wake it.

With an objective, the need is the highest that the followed rule (`shadows`) found in the time for
which it keeps a need. The fleet also clears its backlog within `drain_s`: only served requests have
logs, so an overload looks small. More load never gives fewer workers, a looser promise never more.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from statistics import median

from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health_memory import HealthMemory, Needed, OnPremCount
from spotkeeper.domain.load.flow import CERTAIN, UNHEARD, LogFlow
from spotkeeper.domain.load.history import (
    DAY_SLOTS,
    MINUTE_SLOTS,
    OBJECTIVE_WINDOW_S,
    SLOT_S,
    STEP_SLOTS,
    ArrivalLog,
)
from spotkeeper.domain.load.load import Load, WorkerLoad, load_rate
from spotkeeper.domain.load.request_queue import (
    expects_logs,
    is_blind,
    known_length,
    known_waiting,
    queue_text,
    quiet_s,
)
from spotkeeper.domain.load.summarise import on_premises, onprem_at_once
from spotkeeper.domain.sizing.shadows import (
    BURST,
    LONG_S,
    MINUTE_S,
    PRUDENT,
    STEP_S,
    Choice,
    Member,
    ObjectivePolicy,
    chance,
    drain_s,
    is_burst,
    lag_slots,
    needed,
    window_slots,
)

# A worker on premises counts for two more minutes after the window in which it logged.
KEPT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Turn:
    """The input of one sizing."""

    load: Load
    fleet: Fleet
    spot: Group
    memory: HealthMemory
    now: datetime

    @property
    def quiet_s(self) -> float:
        """For how long the queue proves that no request arrived; 0 if not for long enough."""
        return quiet_s(self.memory.queue, self.now, self.fleet.sizing.quiet_after_s)

    @property
    def is_usual(self) -> bool:
        """Whether chance explains the silence, or the group is at zero and it was quiet before."""
        flow = self.memory.flow
        pause = not self.spot.desired and self.memory.was_quiet_before(self.now)
        return flow.newest is not None and (pause or not flow.is_missing(self.now))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a rule found: the need of now, the workers to have, and what it remembers.

    In `size_to_objective` all counts are slots. `instances` are within the bounds. `bound` names
    what keeps them from the need; with `stale`, expected logs are missing.
    """

    rule: str
    reason: str
    workers: int
    steady: int
    needed: tuple[Needed, ...]
    instances: int = 0
    missing: int = 0
    bound: str = ""
    stale: bool = False


def bounds(fleet: Fleet, spot: Group) -> tuple[int, int]:
    """Return the fewest and the most instances that the operator and, first, the group allow."""
    most = max(min(fleet.bounds.spot_max, spot.maximum), spot.minimum)
    return min(max(fleet.bounds.spot_min, spot.minimum), most), most


def recent_needs(
    memory: HealthMemory, now: datetime, workers: int, scale_in_after_s: int
) -> tuple[Needed, ...]:
    """Keep a window's needs that are higher than every later one, or were held in a silence."""
    start = now - timedelta(seconds=scale_in_after_s)
    kept = [n for n in memory.needed if n.at > start and (n.workers > workers or n.held)]
    return (*kept, Needed(at=now, workers=workers))


def recent_onprem(
    load: Load, fleet: Fleet, memory: HealthMemory, now: datetime
) -> tuple[int, tuple[OnPremCount, ...]]:
    """Count the workers on premises to use before the cloud, and what to remember of that.

    It is the fewest that ran lately: after a restart the window has old and new ids, which must not
    end the cloud's workers. A count is kept where chance hides no worker, until a lower one
    follows. Anyone who sends logs can claim workers: at most the document's number counts.
    """
    running = onprem_at_once(load)
    live = min(running, fleet.onprem_workers or running)
    since = now - timedelta(seconds=load.window_s + KEPT_S)
    recent = [one for one in memory.onprem if one.at > since]
    least = min([live, *(one.workers for one in recent)])
    finished = sum(worker.finished for worker in on_premises(load))
    whole = load.workers and memory.flow.is_whole(load.window_s, now)
    if not whole or finished < UNHEARD * least:
        return live, ()
    kept = (one for one in recent if one.workers < live)
    return least, (*kept, OnPremCount(at=now, workers=live))


def _in_silence(turn: _Turn, serving: int) -> Estimate:
    """Hold the size within the bounds, or wake the fleet: waiting requests have no logs yet."""
    fleet, memory, current = turn.fleet, turn.memory, turn.spot.desired
    least, most = bounds(fleet, turn.spot)
    waking = _waking(turn, serving)
    wanted = max(current, least, math.ceil(waking / fleet.workers_per_instance))
    instances = min(wanted, most)
    newest = turn.load.newest or memory.flow.newest
    age_s = (turn.now - newest).total_seconds() if newest else 0.0
    age = f"the newest is {age_s:.0f} s old" if newest else "none ever arrived"
    stale = expects_logs(memory.queue, serving, newest, fleet.sizing.stale_after_s)
    bound = "spot maximum" if wanted > most else "stale search logs" if stale else "quiet"
    return Estimate(
        rule="wake" if waking else "spot minimum",
        reason=f"search logs are stale ({age}){queue_text(memory.queue)}",
        workers=max(waking, memory.needed[-1].workers if memory.needed else 0),
        steady=waking,
        needed=_held(turn, waking, serving),
        instances=instances,
        missing=max(0, waking - instances * fleet.workers_per_instance) if fleet.objective else 0,
        bound="" if instances > current else bound,
        stale=stale,
    )


def _waking(turn: _Turn, serving: int) -> int:
    """Return the workers to wake with: enough for the queue, or one if no queue can be read.

    A fleet at zero has no logs. Without a queue, only a worker shows whether requests wait. Nothing
    wakes where others serve, and chance or a usual pause explains that they have no logs.
    """
    memory, waiting = turn.memory, known_waiting(turn.memory.queue)
    mean_s = memory.service_mean_s
    slots = max(1, math.ceil(waiting * mean_s / drain_s(mean_s))) if waiting else 0
    unseen = memory.queue is None and memory.flow.newest is not None
    asleep = not turn.spot.desired and not (serving and turn.is_usual)
    least = asleep and (unseen or is_blind(memory.queue, turn.now))
    return max(math.ceil(slots / turn.fleet.slots), int(least))


def _held(turn: _Turn, waking: int, serving: int) -> tuple[Needed, ...]:
    """Hold the need from before a silence: after it, the windows are partly empty for a while.

    A usual silence keeps no need beyond its time. None is usual where nobody serves: requests leave
    no logs then.
    """
    memory, now = turn.memory, turn.now
    if serving and turn.is_usual:
        return memory.needed
    if turn.fleet.objective is None:
        before = max([waking, *(n.workers for n in memory.needed)])
        # Held, not known: a backlog is no measure of the load, for which adopted on-demand waits.
        return (Needed(at=now, workers=before, held=True),) if before else ()
    if not memory.needed:
        return ()
    before = max(n.workers for n in memory.needed if n.held or n is memory.needed[-1])
    known = (n for n in memory.needed if not n.held)
    return (*known, Needed(at=now, workers=before, held=True))


# A newest wait above the first is a queue, and behind busy workers a median above the second.
QUEUE_WAIT_S, WAITED_S = 1.0, 10.0
# What the workers of an instance are busy with is known after this time in service.
BEGUN = timedelta(minutes=2)
SHORTEST_SERVICE_S = 0.001  # logs are in milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveInput:
    """What an objective's rule is given; all that logs say is of finished requests.

    The last slot of `log` ends now, and its workers have a `speed`, by `load.speeds`. The newest
    start is the log with the latest `started_at`. `queued` requests wait in the request queue, None
    when that is not known. `serving` instances are of both groups, and `choice` is the rule that is
    followed, and why.
    """

    log: ArrivalLog
    service_mean_s: float
    newest_start_age_s: float
    newest_wait_s: float
    queued: int | None = None
    serving: int = 0
    choice: Choice = field(default_factory=Choice)
    speed: float = 1.0


def size_to_objective(
    load: ObjectiveInput,
    live: int,
    booting: int,
    past: Sequence[Needed],
    now: datetime,
    policy: ObjectivePolicy,
    member: Member = PRUDENT,
) -> Estimate:
    """Return the fewest workers that keep the policy's promise by a member's rule, and why."""
    have = live + booting
    mean_s = load.log.service_mean_s(len(load.log)) or load.service_mean_s
    if not (mean_s or load.log.count(0, len(load.log))):
        return _bounded(
            have, have, now, policy, f"no request is known yet: the fleet keeps {have} workers"
        )
    mean_s = max(mean_s, SHORTEST_SERVICE_S)
    steady, highest = found_by(member, load, mean_s, policy)
    # The first long requests that end measure chance.
    long = window_slots(0.0, mean_s)
    few = long and len(load.log) < lag_slots(mean_s) + long
    if few:
        steady, highest = min(steady, have), min(highest, have)
    # Busy workers would have finished this many requests that started since.
    taking_s = lag_slots(mean_s) * SLOT_S - max(0.0, mean_s - LONG_S)
    idle = live and live * (load.newest_start_age_s - taking_s) / mean_s
    if member.bursts and idle >= UNHEARD:
        # The logs of long requests show a peak late. A young fleet with idle workers waits.
        highest = max(steady, min(highest, have))
    young = not past or len(load.log) < STEP_SLOTS
    ages = [((now - one.at).total_seconds(), one.workers * policy.slots, one) for one in past]
    held = [count for age_s, count, one in ages if one.held and age_s <= OBJECTIVE_WINDOW_S]
    # A worker that ends before it serves is paid for nothing. One that never serves is given up.
    launched = [min(have, count) for age_s, count, _ in ages if age_s <= policy.start_up_s]
    kept = max(highest, have if young else 0, *held, *(launched if booting else ()))
    offered = float(live) if few else _offered(load, mean_s)
    waits = load.queued is not None or idle < CERTAIN
    drain = _drain(offered, load, live, booting, mean_s, policy.wait_s) if waits else 0
    reason = f"the load needs {steady} workers now"
    if highest > steady:
        reason += f"; {highest} was the peak of the last {member.keep_s // 60} minutes"
    if drain > kept:
        reason += f"; {drain} clear the waiting requests in {drain_s(mean_s):.0f} s"
    elif kept > highest:
        reason += f"; the fleet keeps {kept} as before"
    if long:
        reason += f"; windows are at least as long as a request, {long * SLOT_S / 60:.0f} min"
    return _bounded(max(kept, drain), highest, now, policy, reason)


def _ends(load: ObjectiveInput, mean_s: float) -> range:
    """Return the ends of windows that measure the load: the last, or each since requests wait."""
    # While they wait, nothing later than the newest start was served.
    end = len(load.log) - lag_slots(mean_s)
    waiting, least = min(round(unserved_s(load) / SLOT_S), DAY_SLOTS), window_slots(0.0, mean_s)
    return range(max(1, end), min(max(1, end) - 1, max(least, end - waiting - 1)), -1)


def _offered(load: ObjectiveInput, mean_s: float) -> float:
    """Return the load that the newest minutes prove, to size for the backlog.

    Once requests wait for a minute the fleet is overloaded, and only the first seconds of a step
    have been served. Then minutes, and slots as long as a request, count minus what chance adds.
    """
    ends, lengths = _ends(load, mean_s), [window_slots(STEP_S, mean_s)]
    if load.newest_wait_s >= MINUTE_S:
        lengths += [slots for slots in (MINUTE_SLOTS, 1) if slots * SLOT_S >= mean_s]
    loads = ((load.log.load(end, slots), slots) for end in ends for slots in lengths)
    return max(
        offered - (chance(offered, mean_s, slots * SLOT_S) if slots < STEP_SLOTS else 0.0)
        for offered, slots in loads
    )


def found_by(
    member: Member, load: ObjectiveInput, mean_s: float, policy: ObjectivePolicy
) -> tuple[int, int]:
    """Return a member's need of now, and the highest in the time for which it keeps a need."""
    log, ends = load.log, _ends(load, mean_s)
    need = partial(needed, member, log, mean_s=mean_s, want=policy)
    now = max(map(need, ends))

    def minutes(keep_s: int) -> range:
        # The same minutes at every turn: what one found, the next finds again.
        last = ends[0] - (log.first + len(log)) % MINUTE_SLOTS
        first = max(window_slots(0.0, mean_s), last - keep_s // 60 * MINUTE_SLOTS)
        return range(last, first, -MINUTE_SLOTS)

    kept = [*map(need, minutes(member.keep_s))]
    if member.bursts:
        bursts = (end for end in minutes(BURST.keep_s) if is_burst(log, end, mean_s))
        kept += [needed(BURST, log, end, mean_s, policy) for end in bursts]
    return now, max([now, *kept])


def unserved_s(load: ObjectiveInput) -> float:
    """Return for how long nothing that arrived has been served; 0 unless requests wait."""
    if load.newest_wait_s < QUEUE_WAIT_S:
        return 0.0
    return load.newest_start_age_s + load.newest_wait_s


def _drain(
    level: float, load: ObjectiveInput, live: int, booting: int, mean_s: float, wait_s: float
) -> int:
    """Return the workers that clear the backlog within `drain_s` of serving; 0 without one.

    Requests are a backlog if the live workers do not clear them within the promise. Until more is
    known, the load is at least what those serve. The newest wait stands for an unknown length.
    """
    if load.queued == 0:
        return 0
    long_s = window_slots(0.0, mean_s) * SLOT_S
    known_s = max(1, min(len(load.log), 90)) * SLOT_S
    unknown = max(0.0, unserved_s(load) - long_s) / (known_s + long_s)
    level = max(level, live * min(1.0, unknown))
    clearing = level if load.queued is None else live
    if load.queued is None:
        waiting_s = level * load.newest_wait_s + (level - live) * load.newest_start_age_s
    else:
        waiting_s = load.queued * mean_s
    if load.newest_wait_s <= wait_s and waiting_s <= max(1, clearing) * wait_s:
        return 0
    return max(math.ceil(level + max(0.0, waiting_s) / drain_s(mean_s)), live + booting)


def _bounded(
    wanted: int, highest: int, now: datetime, policy: ObjectivePolicy, reason: str
) -> Estimate:
    """Apply the bounds; the reason says how many workers the promise lacks within them."""
    workers = min(max(wanted, policy.min_workers), policy.max_workers)
    missing = max(0, wanted - workers)
    if missing:
        reason += f". The maximum of {policy.max_workers} is {missing} too few"
    else:
        reason += f". With {max(wanted, 0)}, {policy.share:.0%} start within {policy.wait_s:g} s"
    return Estimate(
        rule="objective",
        reason=reason,
        workers=workers + missing,
        steady=workers,
        needed=(Needed(at=now, workers=highest),),
    )


def _by_objective(turn: _Turn, promised: ObjectiveInput, onprem: int) -> Estimate:
    """Find the fewest workers that keep the objective.

    Requested instances that do not serve yet count as booting, listed by the group or not, so none
    is requested twice. On-demand instances stand in for requested spot, so they add nothing.
    """
    memory, now, declared = turn.memory, turn.now, turn.fleet.slots
    slots = slots_at_once(memory, turn.fleet)
    policy = objective_policy(turn.fleet, slots, turn.spot, onprem, memory)
    serving = min(promised.serving, turn.spot.desired)
    live = policy.onprem + serving * policy.per_instance
    booting = (turn.spot.desired - serving) * policy.per_instance
    past, member = memory.needed, promised.choice.member
    if promised.choice.first:
        # The first choice may fall in a quiet minute.
        past = (*past, Needed(at=now, workers=(live + booting) // slots, held=True))
    need = size_to_objective(promised, live, booting, past, now, policy, member)
    in_slots = need.steady, need.workers, need.needed[-1].workers
    steady, workers, highest = (math.ceil(count / slots) for count in in_slots)
    reason = f"{need.reason}. The fleet follows {promised.choice}"
    if declared > 1:
        unlike = f" (the document has {declared}, but requests already wait at {slots})"
        reason = f"in slots, {slots} per worker{unlike if slots != declared else ''}: {reason}"
    if promised.speed != 1.0:
        reason += f". The mean speed of these types is {promised.speed:.2f}"
    needs, missing = recent_needs(memory, now, highest, OBJECTIVE_WINDOW_S), workers - steady
    counts = replace(need, workers=workers, steady=steady, missing=missing)
    return replace(counts, reason=reason, needed=needs)


def objective_policy(
    fleet: Fleet, slots: int, spot: Group, onprem: int, memory: HealthMemory
) -> ObjectivePolicy:
    """Return the promise, its bounds in slots, and how long a worker takes to start."""
    objective, (least, most) = fleet.objective, bounds(fleet, spot)
    assert objective is not None
    per_instance = fleet.workers_per_instance * slots
    return ObjectivePolicy(
        wait_s=objective.wait_s,
        share=objective.share,
        min_workers=least * per_instance,
        max_workers=most * per_instance + onprem * slots,
        start_up_s=median(memory.start_ups or (objective.start_up_s,)),
        onprem=onprem * slots,
        per_instance=per_instance,
        slots=slots,
    )


# A turn may always add this many instances to a fleet, even to a small one.
ADDED_AT_ONCE, LIMITED = 10, "growth per turn"
# A larger share of instances without a log is more than chance and the odd hung worker.
MANY = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The capacity to request from the spot group, and why; `workers` is the need before bounds.

    `spot_desired` is the need in instances. With `limited`, the load needs more than one turn may
    request; None where the load does not size the group or is not known. `missing` are the workers
    that the objective needs beyond the bounds.
    """

    action: Action
    rule: str
    reason: str
    workers: int
    spot_desired: int
    stale: bool
    memory: HealthMemory
    limited: bool | None = None
    missing: int = 0


def size(
    load: Load,
    fleet: Fleet,
    spot: Group,
    memory: HealthMemory,
    now: datetime,
    outlook: ObjectiveInput | None = None,
    partly: str = "",
) -> Sizing:
    """Size the spot group: up at once, down to the most that the recent past needed.

    Without fresh search logs the group stays as it is: silence is not zero load. Where chance
    explains it, the fleet of an objective scales in, and never out. A request queue that was empty
    for long enough makes the need zero, and requests in it wake the fleet. A fleet that overspent
    its promise, and never has zero instances, then keeps what its rule needs. Where `partly` says
    why the logs may show only a part of the load, the group does not shrink.
    """
    turn = _Turn(load, fleet, spot, memory, now)
    silent = load.newest is None or (now - load.newest).total_seconds() > fleet.sizing.stale_after_s
    serving = outlook.serving if outlook else len(memory.in_service_since) + memory.elsewhere
    serving = serving or int(memory.onprem_served)
    rare = outlook and serving and turn.is_usual and not known_waiting(memory.queue)
    quiet, (least, _) = turn.quiet_s, bounds(fleet, spot)
    # Whoever allows no worker at all accepts that the first requests after a sleep are late.
    if quiet and not (least and outlook and outlook.choice.overspent):
        reason = f"no request for {quiet:.0f} s, nothing waits or is in flight"
        needed = (Needed(at=now, workers=0),)
        estimate = Estimate(rule="quiet", reason=reason, workers=0, steady=0, needed=needed)
        estimate = _in_instances(turn, estimate, onprem_at_once(load))
    elif silent and not rare and not quiet:
        sizing = _sizing_of(turn, _limited(turn, _in_silence(turn, serving)))
        return sizing if sizing.action is Action.RESIZE else replace(sizing, limited=None)
    else:
        onprem, counts = recent_onprem(load, fleet, memory, now)
        turn = replace(turn, memory=replace(memory, onprem=counts))
        if fleet.objective is None or outlook is None:
            estimate = _by_load_rate(turn, onprem)
        else:
            estimate = _by_objective(turn, outlook, onprem)
        estimate = _in_instances(turn, estimate, onprem)
        if quiet:
            why = f"no request for {quiet:.0f} s, but lately too many waited for long"
            estimate = replace(estimate, reason=f"{why}: {estimate.reason}")
        if silent or quiet:
            most = max(turn.spot.desired, least)
            estimate = replace(estimate, instances=min(estimate.instances, most))
    return _sizing_of(turn, _limited(turn, _held_back(turn, estimate, partly)))


def _in_instances(turn: _Turn, estimate: Estimate, onprem: int) -> Estimate:
    """Turn workers into instances within the bounds, and name the bound that mattered."""
    per_instance, spot_min = turn.fleet.workers_per_instance, turn.spot.minimum
    wanted = math.ceil(max(0, estimate.steady - onprem) / per_instance)
    least, most = bounds(turn.fleet, turn.spot)
    bound = "spot minimum" if wanted < least else ""
    bound = "spot maximum" if wanted > most or estimate.missing else bound
    reason = estimate.reason + (f". On premises: {onprem}" if onprem else "")
    needed = estimate.needed[-1].workers - onprem if estimate.needed else 0
    if spot_min > turn.fleet.bounds.spot_min and needed <= (spot_min - 1) * per_instance:
        # The operator did not choose it, and only the group knows.
        bound = bound or "spot minimum"
        reason = f"{reason}. The group's MinSize is {spot_min}"
    if wanted > most == turn.spot.maximum < turn.fleet.bounds.spot_max:
        reason = f"{reason}. The group's MaxSize is {most}"
    return replace(estimate, reason=reason, bound=bound, instances=min(max(wanted, least), most))


def partly_known(
    load: Load, memory: HealthMemory, fleet: Fleet, window_s: float, now: datetime
) -> tuple[str, LogFlow]:
    """Say why the load may be higher than its logs show, or "", and remember until when it was.

    The load's window and the followed rule's `window_s` give the size: they must be known. What is
    older than a quarter of an hour may not be: no rule counts less than the last five minutes.
    """
    flow, window_s = memory.flow, max(load.window_s, min(window_s, OBJECTIVE_WINDOW_S))
    if quiet_s(memory.queue, now, fleet.sizing.quiet_after_s):
        return "", flow
    if why := _partly_logged(load, memory, fleet):
        return why, replace(flow, partly_until=now)
    if not flow.is_whole(load.window_s, now):
        return f"not all logs of the last {load.window_s} s are known yet", flow
    if flow.partly_until and now - flow.partly_until < timedelta(seconds=window_s):
        return f"the load of the last {window_s:.0f} s is only partly known", flow
    there = memory.in_service_since.values()
    new = sum(now - since < BEGUN for since in there)
    if new > 1 and 2 * new > len(there):
        return f"{new} of {len(there)} instances have just begun to serve", flow
    return "", flow


def _partly_logged(load: Load, memory: HealthMemory, fleet: Fleet) -> str:
    """Say why the logs show only a part of the load; empty if they show all of it."""
    if memory.flow.late_workers:
        count = memory.flow.late_workers
        workers = f"{count} workers" if count > 1 else "a worker"
        return f"logs of {workers} arrive over a minute late: are their clocks right?"
    silent, serving = _passed_by(memory, UNHEARD), len(memory.in_service_since)
    if silent > max(1, MANY * serving):
        return f"{silent} of {serving} instances in service logged none of the requests"
    finished = sum(worker.finished for worker in load.workers)
    failed = sum(worker.failed for worker in load.workers)
    if 2 * failed > finished:
        return f"{failed} of {finished} requests failed, so the real load is not known"
    blind = fleet.objective is None and known_length(memory.queue) is None
    target = fleet.sizing.target_load_rate * _share_of_slots(memory, fleet)
    busy = load_rate(load.workers) >= target
    if blind and busy and (waited_s := load.waits.quantile_s(0.5)) >= WAITED_S:
        return f"requests waited {waited_s:.0f} s, and it is not known how many wait"
    return ""


def _passed_by(memory: HealthMemory, expected: float) -> int:
    """Count the instances in service whose share of requests since their last log is this large."""
    return sum(memory.expected.get(i, 0.0) >= expected for i in memory.in_service_since)


def _held_back(turn: _Turn, estimate: Estimate, why: str) -> Estimate:
    """Do not scale in on a load that is only partly known, except to the bounds.

    A few silent instances may serve as much as the others do: the capacity for that is kept.
    """
    kept = min(turn.spot.desired, bounds(turn.fleet, turn.spot)[1])
    serving = len(turn.memory.in_service_since)
    silent = _passed_by(turn.memory, CERTAIN / 2)
    if not why and silent and not turn.quiet_s:
        why = f"{silent} of {serving} instances in service logged none of the requests"
        kept = min(kept, math.ceil(estimate.instances * serving / max(1, serving - silent)))
    if not why or estimate.instances >= kept:
        return estimate
    reason = f"{estimate.reason}. Held at {kept}: {why}"
    return replace(estimate, bound="partly known load", reason=reason, instances=kept)


def _limited(turn: _Turn, estimate: Estimate) -> Estimate:
    """Limit the growth of one turn; the minimum of the operator and the group is exempt.

    Anyone who sends search logs can claim any load: the limit leaves time to notice it.
    """
    current, growth = turn.spot.desired, turn.fleet.sizing.growth_per_turn
    most = current + max(ADDED_AT_ONCE, math.ceil(current * growth))
    most = max(most, bounds(turn.fleet, turn.spot)[0])
    if estimate.instances <= most:
        return estimate
    reason = f"{estimate.reason}. `growth_per_turn` limits this turn to {most}"
    return replace(estimate, bound=LIMITED, reason=reason, instances=most)


def _sizing_of(turn: _Turn, estimate: Estimate) -> Sizing:
    instances, why, desired = estimate.instances, estimate.reason, turn.spot.desired
    hold = instances == desired
    change = f"stays at {desired}" if hold else f"{desired} -> {instances}"
    if not hold and not turn.fleet.sizing.enabled:
        change = f"stays at {desired}, where its load needs {instances}"
    return Sizing(
        action=Action.HOLD if hold else Action.RESIZE,
        rule=estimate.bound or ("at target" if hold else estimate.rule),
        reason=f"Spot {change}. {why[:1].upper()}{why[1:]}{'.' * (why[-1:] != '?')}",
        workers=estimate.workers,
        spot_desired=instances,
        stale=estimate.stale,
        memory=replace(turn.memory, needed=estimate.needed),
        limited=estimate.bound == LIMITED if turn.fleet.sizing.enabled else None,
        missing=estimate.missing,
    )


# Workers this busy have no time left.
FULL = 0.95


def slots_when_full(memory: HealthMemory, load: Load, fleet: Fleet) -> float:
    """Return how many requests share a worker while requests wait; 0 where it is not known.

    Where most requests wait, the workers are full, whatever number of slots they should have. A
    sender's clock may be wrong, so only a known queue lowers a number that is known.
    """
    if fleet.slots == 1:
        return 0.0
    many, known = fleet.slots * load_rate(load.workers), memory.full
    known *= memory.full_of == fleet.slots
    waiting, length = known_waiting(memory.queue), known_length(memory.queue)
    late = load.waits.quantile_s(0.5) >= WAITED_S and (waiting or length is None)
    if load.workers and late and (waiting or not known):
        return max(1.0, many)
    return max(known, many) if known else 0.0


def slots_at_once(memory: HealthMemory, fleet: Fleet) -> int:
    """Return how many requests a worker serves at once: fewer than it should if that was seen."""
    return math.ceil(round(fleet.slots * _share_of_slots(memory, fleet), 6))


def _share_of_slots(memory: HealthMemory, fleet: Fleet) -> float:
    """Return the share of the fleet's slots that a worker has: 1 unless requests wait at fewer."""
    return min(1.0, memory.full / fleet.slots) if memory.full else 1.0


def _by_load_rate(turn: _Turn, onprem: int) -> Estimate:
    """Find the fewest workers at the target load rate: up at once, down to the recent most."""
    load, fleet, memory = turn.load, turn.fleet, turn.memory
    target, slots = fleet.sizing.target_load_rate, fleet.slots
    share = _share_of_slots(memory, fleet)
    workers = workers_needed(load, target * share, onprem, slots)
    queued = _with_queue(load, memory, slots, FULL * share)
    workers = max(workers, math.ceil(round(queued / slots / share, 6)))
    workers = _as_alive(workers, load, fleet, onprem, memory)
    needed = recent_needs(memory, turn.now, workers, fleet.sizing.scale_in_after_s)
    steady = max(past.workers for past in needed)
    reason = f"at {target:.0%} busy, the load needs {workers} workers now"
    if steady > workers:
        minutes = fleet.sizing.scale_in_after_s / 60
        reason += f"; {steady} was the peak of the last {minutes:g} minutes"
    if share < 1.0:
        reason += f" (the document has {slots} slots, but requests wait at {memory.full:.1f})"
    return Estimate(rule="load rate", reason=reason, workers=workers, steady=steady, needed=needed)


def workers_needed(load: Load, target_load_rate: float, onprem: int, slots: int = 1) -> int:
    """Return the fewest workers that hold the target load rate; one while there is any load.

    The offered load is at least what the live workers are busy with: behind a backlog longer than
    the window, no recent arrival has finished, and arrivals alone would look like no load. A lone
    request does not fill a worker: one with logs of less than a minute counts as a part of one.
    Those on premises count as `onprem` workers, restarted under new ids or not.
    """
    least_s, here = slots * min(MINUTE_S, load.window_s), on_premises(load)

    def busy_of(workers: Iterable[WorkerLoad]) -> float:
        return sum(one.load_rate * min(1.0, one.capacity_s / least_s) for one in workers)

    busy = busy_of(load.workers) - busy_of(here) * (1 - min(1.0, onprem / max(1, len(here))))
    least = 1 if load.arrival_rate or busy else 0
    return max(least, math.ceil(round(max(load.offered / slots, busy) / target_load_rate, 6)))


def _with_queue(load: Load, memory: HealthMemory, slots: int, full: float = FULL) -> int:
    """Return the slots that serve the load and clear the queue; 0 if nothing is known to wait.

    An unknown length of the queue is estimated from the median wait, by Little's law. Waits show a
    queue only while the workers are full: a sender's clock may be behind.
    """
    waiting = known_waiting(memory.queue)
    mean_s = load.service.mean_s or memory.service_mean_s
    if waiting is None and load_rate(load.workers) >= full:
        serving = slots * sum(worker.load_rate for worker in load.workers)
        waiting_s = serving * load.waits.quantile_s(0.5)
        return math.ceil(max(load.offered, serving) + waiting_s / drain_s(mean_s))
    if not waiting:
        return 0
    return max(1, math.ceil(load.offered + waiting * mean_s / drain_s(mean_s)))


def _as_alive(workers: int, load: Load, fleet: Fleet, onprem: int, memory: HealthMemory) -> int:
    """Count more workers where instances log with fewer than they carry: the others are dead.

    This holds only after enough requests for each live worker to have logged with certainty.
    """
    alive = [w for w in load.workers if w.instance_id in memory.in_service_since]
    carried = len({w.instance_id for w in alive}) * fleet.workers_per_instance
    if not alive or sum(w.finished for w in alive) < CERTAIN * carried:
        return workers
    return max(workers, onprem + math.ceil((workers - onprem) * carried / len(alive)))
