"""A turn of the health controller: assess (load) -> plan (need) -> (act) -> apply.

Each is a pure function. The calls to AWS are made between the last two.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.decision import Action, Answer, Request, RequestKind
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.health.diagnosis import Diagnosis, confirm, diagnose, replaced
from spotkeeper.domain.health.reports import watch_reports, watch_starts, with_silence
from spotkeeper.domain.health.trial import watch_versions
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.flow import HOUR_S, LATE_S, LogFlow, follow, paced
from spotkeeper.domain.load.history import (
    LoadHistory,
    arrival_log,
    arrival_window,
    as_if_full,
    extended,
    long_steps,
    objective_window_s,
    own_starts,
)
from spotkeeper.domain.load.load import Load, LoadDigest
from spotkeeper.domain.load.request_queue import QueueLength, known_waiting, quiet_s, watch_queue
from spotkeeper.domain.load.speeds import Speeds, at_speed_1, learn
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.release import busy_shares, plan_release
from spotkeeper.domain.sizing.shadows import advanced, choose
from spotkeeper.domain.sizing.size import (
    ObjectiveInput,
    Sizing,
    objective_policy,
    partly_known,
    recent_onprem,
    size,
    slots_at_once,
    slots_when_full,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSnapshot:
    """Everything that a turn of the health controller read.

    `queue` is the request queue's length, or why it is not known; None for a fleet without one.
    `history` is what the fleet's load was, None without an objective or where it cannot be read.
    The load sizes `sized`: the spot group, or all of a fleet's regions as one.
    """

    fleet: Fleet
    spot: Group
    sized: Group
    on_demand: Group
    digests: tuple[LoadDigest, ...]
    queue: QueueLength | str | None
    history: LoadHistory | None
    now: datetime

    @property
    def groups(self) -> tuple[Group, Group]:
        """Both groups, spot first."""
        return self.spot, self.on_demand


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthAssessment:
    """A snapshot summed up: the load, the memory and the history brought up to now.

    `promised` is the input of an objective's rule; `partly` says why the logs may show only a part
    of the load.
    """

    snapshot: HealthSnapshot
    memory: HealthMemory
    load: Load
    history: LoadHistory | None
    promised: ObjectiveInput | None
    partly: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPlan:
    """The requests of a turn, in order; `memory` holds what was seen, before any request.

    With `limited`, the load needs a larger spot group than is requested.
    """

    assessment: HealthAssessment
    sizing: Sizing
    diagnosis: Diagnosis
    requests: tuple[Request, ...]
    memory: HealthMemory
    limited: bool = False


def read_from(
    fleet: Fleet, service_mean_s: float, now: datetime, *, lost: bool = False
) -> datetime:
    """Return the instant from which a turn reads search logs: its window ends where they do.

    With `lost`, the memory was lost and the window has no logs: then an hour is read, to find out
    whether workers served before.
    """
    promised_s = objective_window_s(service_mean_s) if fleet.objective else 0
    window_s = max(fleet.sizing.window_s, promised_s)
    return now - timedelta(seconds=HOUR_S if lost else window_s + fleet.sizing.stale_after_s)


def assess(snapshot: HealthSnapshot, memory: HealthMemory) -> HealthAssessment:
    """Sum up the load of the window that is known, and bring the memory up to now."""
    now, digests = snapshot.now, snapshot.digests
    before, mean_s = memory.flow, memory.service_mean_s
    flow = follow(before, digests, now)
    silent_s = (now - flow.newest).total_seconds() if flow.newest else 0.0
    late = silent_s > (LATE_S if before.rate else 0.0)
    if flow.newest and flow.newest != before.newest and late:
        # Memory was lost or turns were missed: a silence since then does not slow the pace.
        flow = paced(before, flow, _load(snapshot, flow, flow.newest))
    load = _load(snapshot, flow, flow.ends_at(now))
    flow = flow if late else paced(before, flow, load)
    queue, served_s = None, load.service.mean_s or memory.service_mean_s
    url = snapshot.fleet.request_queue_url
    if snapshot.queue is not None:
        # What was seen of another queue says nothing of this one.
        known = memory.queue if memory.queue_url in (None, url) else None
        queue = watch_queue(known, snapshot.queue, load.newest, load.offered, now)
    memory = replace(memory, flow=flow, queue=queue, queue_url=url, service_mean_s=served_s)
    memory = with_silence(memory, before, load, now)
    memory = watch_starts(memory, *snapshot.groups, load, now)
    full = slots_when_full(memory, load, snapshot.fleet)
    since = read_from(snapshot.fleet, mean_s, now)
    memory = watch_reports(memory, snapshot.groups, load, digests, snapshot.fleet, now, since)
    # How long a request takes on a worker with slots depends on how many share it.
    comparable = snapshot.fleet.objective is not None and snapshot.fleet.slots == 1
    speeds = learn(memory.speeds, snapshot.groups, digests, now) if comparable else Speeds()
    seen = memory.in_service_since
    half = timedelta(seconds=snapshot.fleet.availability.launch_deadline_s / 2)
    starting = [i for i, first in memory.starting.items() if now - first < half]
    trial = watch_versions(memory.trial, snapshot.groups, seen, starting, digests, now)
    memory = replace(memory, speeds=speeds, trial=trial, full=full, full_of=snapshot.fleet.slots)
    history, promised = _promised(snapshot, memory, load, objective_window_s(mean_s))
    window_s = promised.choice.member.window_s if promised else 0
    partly, flow = partly_known(load, memory, snapshot.fleet, window_s, now)
    return HealthAssessment(
        snapshot=snapshot,
        memory=memory if flow is memory.flow else replace(memory, flow=flow),
        load=load,
        history=history,
        promised=promised,
        partly=partly,
    )


def _load(snapshot: HealthSnapshot, flow: LogFlow, until: datetime) -> Load:
    return summarise(
        snapshot.digests,
        snapshot.now,
        snapshot.fleet.sizing.window_s,
        since=flow.known_since,
        until=until,
        slots=snapshot.fleet.slots,
    )


def _promised(
    snapshot: HealthSnapshot, memory: HealthMemory, load: Load, window_s: int
) -> tuple[LoadHistory | None, ObjectiveInput | None]:
    """Collect the input of the objective's rule, with the arrivals of a window, if there is one."""
    objective, flow = snapshot.fleet.objective, memory.flow
    if objective is None:
        return None, None
    # A quiet queue proves that no log is missing.
    quiet = quiet_s(memory.queue, snapshot.now, snapshot.fleet.sizing.quiet_after_s)
    until = snapshot.now if quiet else flow.ends_at(snapshot.now)
    digests, declared = at_speed_1(memory.speeds, snapshot.digests), snapshot.fleet.slots
    window = arrival_window(digests, until, window_s, declared)
    history = snapshot.history or LoadHistory()
    slots = slots_at_once(memory, snapshot.fleet)
    history, window = as_if_full(history, window, slots)
    onprem, _ = recent_onprem(load, snapshot.fleet, memory, snapshot.now)
    policy = objective_policy(snapshot.fleet, slots, snapshot.sized, onprem, memory)
    history = extended(history, window)
    log = arrival_log(history, window)
    if history.work_ms:
        judged = history.scores
        stop = history.next_step - 1 - long_steps(log.service_mean_s(len(log)))
        own = own_starts(snapshot.digests, objective.wait_s) if judged.next_step < stop else {}
        scores = advanced(judged, log, stop, policy, window.service_variation, own)
        history = replace(history, scores=scores)
    not_serving = {*memory.silent, *memory.unreported}
    serving = sum(
        i.phase is Phase.IN_SERVICE and i.healthy and i.instance_id not in not_serving
        for group in snapshot.groups
        for i in group.instances
    )
    # The need is then in workers like those of now.
    speed = memory.speeds.mean_of(snapshot.groups)
    return history, ObjectiveInput(
        log=log if speed == 1.0 else log.at_speed(speed),
        service_mean_s=window.service_mean_s / speed,
        newest_start_age_s=window.newest_start_age_s,
        newest_wait_s=window.newest_wait_s,
        queued=known_waiting(memory.queue),
        serving=serving + memory.elsewhere,
        choice=choose(history.scores),
        speed=speed,
    )


def plan(assessment: HealthAssessment) -> HealthPlan:
    """Decide one turn: size the spot group, then replace instances that do not work."""
    snapshot, now = assessment.snapshot, assessment.snapshot.now
    fleet, spot = snapshot.fleet, snapshot.sized
    sizing = size(
        assessment.load, fleet, spot, assessment.memory, now, assessment.promised, assessment.partly
    )
    diagnosis = diagnose(assessment.load, snapshot.groups, fleet, sizing.memory, now)
    memory = diagnosis.memory
    if memory.size_limited is None and sizing.action is Action.HOLD and not assessment.partly:
        # The group already has the size that the load needs.
        memory = replace(memory, size_limited=sizing.limited)
    wanted = HealthPlan(
        assessment=assessment,
        sizing=sizing,
        diagnosis=diagnosis,
        requests=tuple(
            Request(kind=RequestKind.REPLACE_WORKER, instances=(i,), why=diagnosis.reasons[i])
            for i in diagnosis.replace
        ),
        memory=memory,
    )
    if fleet.is_shared or sizing.action is not Action.RESIZE or sizing.limited is None:
        return wanted
    return resized(wanted, sizing.spot_desired, limited=sizing.limited)


def resized(wanted: HealthPlan, desired: int, *, limited: bool = False) -> HealthPlan:
    """Raise the desired capacity, or lower it by ending suspects, then the least busy instances.

    What is ended is not replaced as well.
    """
    snapshot, bad = wanted.assessment.snapshot, wanted.diagnosis.reasons
    spot, ends = snapshot.spot, tuple[str, ...]()
    if desired < spot.desired:
        shares = busy_shares(snapshot.digests, snapshot.now, snapshot.fleet.slots)
        release = plan_release(spot, spot.desired - desired, shares, busy_too=True, suspects=bad)
        desired, ends = release.desired, release.ends
    resize = Request(kind=RequestKind.RESIZE_SPOT, group=spot.name, desired=desired)
    requests = (
        *((resize,) if desired != spot.desired else ()),
        *(Request(kind=RequestKind.END, instances=(i,)) for i in ends),
        *(each for each in wanted.requests if each.instances and each.instances[0] not in ends),
    )
    return replace(wanted, requests=requests, limited=limited)


def checked(wanted: HealthPlan, digests: tuple[LoadDigest, ...]) -> HealthPlan:
    """Make the last check: replace only instances that are still suspect in newly read logs."""
    snapshot = replace(wanted.assessment.snapshot, digests=digests)
    load = _load(snapshot, wanted.memory.flow, wanted.memory.flow.ends_at(snapshot.now))
    still = confirm(wanted.diagnosis, load, snapshot.fleet, snapshot.now)
    requests = tuple(
        request
        for request in wanted.requests
        if request.kind is not RequestKind.REPLACE_WORKER or request.instances[0] in still
    )
    return replace(wanted, requests=requests)


def apply(
    memory: HealthMemory, wanted: HealthPlan, answers: Iterable[tuple[Request, Answer]]
) -> HealthMemory:
    """Remember what AWS accepted, or may have accepted; what was refused leaves no trace.

    A free replacement is no part of the hourly budget.
    """
    for request, answer in answers:
        if answer not in (Answer.DONE, Answer.LOST):
            continue
        match request.kind:
            case RequestKind.REPLACE_WORKER if request.instances[0] not in wanted.diagnosis.free:
                now = wanted.assessment.snapshot.now
                memory = replaced(memory, request.instances, now)
            case RequestKind.RESIZE_SPOT:
                memory = replace(memory, size_limited=wanted.limited)
            case RequestKind.END:
                memory = replace(memory, size_limited=False)
            case _:
                pass
    return memory
