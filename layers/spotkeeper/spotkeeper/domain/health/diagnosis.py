"""Workers, not instances: which are in service but do not work (design rule 8)."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median

from spotkeeper.domain.decision import Suspect, Suspicion
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.health.reports import (
    idle_beside_requests,
    is_logged,
    late,
    logs_rather_missing,
    nobody_serves,
    on_trial,
    one_at_a_time,
    silent,
    unproven_of,
    unreported,
    workers_in_service,
)
from spotkeeper.domain.health.trial import DEADLINES, canary, surprise
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper.domain.load.load import Cluster, Load, WorkerLoad
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy

# Turns that are closer together read the same search logs, so they are one observation.
OBSERVATIONS_APART = timedelta(seconds=30)
# A turn requests replacements for at most this long; the memory has the time when it began.
LONGEST_TURN = timedelta(seconds=30)
# A worker is slow compared with at least this many others.
PEERS_TO_BE_SLOWER_THAN = 2
# What the reason adds for an instance whose logs may be missing while it serves.
UNPROVEN = "; it is replaced to see whether its successor reports"
# Requests that fail at once, or time out, do not measure speed: at most this share of a worker's.
FAILED_AT_MOST = 0.1
# This many requests, times their squared variation, show a slow worker rather than long requests.
REQUESTS_PER_VARIATION = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The instances to replace after the last check, the suspects, and the reasons.

    `reasons` has one sentence per suspect, `suspects` what else is known of each, and of workers on
    premises. `logs_missing` counts those that are silent together and
    whose logs may be missing: they are replaced late, one first. `bootstrap` are suspects whose
    workers never reported within the launch deadline. Workers on premises only raise alarms:
    `onprem_silent` counts the missing ones, `onprem_due` has those that two turns found to fail or
    to be slow. `replaces_at` is when the next suspect is replaced. `nobody_serves` says why it
    seems that no request is served at all, or that most of them fail. `free` is replaced outside
    the hourly budget.
    """

    memory: HealthMemory
    onprem_silent: int
    replace: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)
    over_budget: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    logs_missing: int = 0
    onprem_due: tuple[str, ...] = ()
    nobody_serves: str = ""
    suspects: tuple[Suspect, ...] = ()
    replaces_at: datetime | None = None
    free: tuple[str, ...] = ()

    @property
    def onprem_suspect(self) -> int:
        """How many workers on premises to alarm about."""
        return self.onprem_silent + len(self.onprem_due)


def diagnose(
    load: Load, groups: tuple[Group, ...], fleet: Fleet, memory: HealthMemory, now: datetime
) -> Diagnosis:
    """Judge each instance in service; two observations make it due.

    `memory` has which of them report (`reports.watch_reports`). The caller checks the due ones
    again before it replaces them, and then remembers each replacement with `replaced`.
    """
    policy = fleet.worker_health
    of_last_day = tuple(at for at in memory.replaced if now - at < timedelta(days=1))
    of_last_hour = [at for at in of_last_day if now - at < timedelta(hours=1) + LONGEST_TURN]
    memory = replace(memory, replaced=of_last_day)
    onprem_silent = _onprem_silent(load, fleet, memory, now)
    if not policy.enabled:
        off = replace(
            memory, suspects={}, silent=(), onprem_suspects={}, unreported={}, unproven=()
        )
        return Diagnosis(onprem_silent=onprem_silent, memory=off)
    budget = max(0, policy.replacements_per_hour - len(of_last_hour))
    quiet = silent(memory, fleet, now)
    missing = logs_rather_missing(quiet, memory, load, fleet)
    launching = unreported(load, memory, fleet, now)
    never_reported = {i: launching[i] for i in late(launching, memory, fleet, now)}
    slow, failing = _slow_failing(load, memory, fleet, now)
    ill = slow | failing
    idle = idle_beside_requests(memory, fleet, now)
    dead = [i for i in quiet if i in memory.silent]
    trial = {i: why for i, why in quiet.items() if i not in dead}
    trial_of = on_trial(trial, budget, memory, fleet, now) if missing else tuple(trial)
    reasons = {i: quiet[i] for i in (*dead, *trial_of)} | idle | ill | never_reported
    onprem_slow, onprem_failing = _onprem_suspicions(load, policy, now)
    onprem = onprem_slow | onprem_failing
    suspects, due = _observed(reasons, memory.suspects, now)
    due = tuple(sorted(due, key=lambda i: (i not in ill, -memory.expected.get(i, 0.0))))
    onprem_suspects, onprem_due = _observed(onprem, memory.onprem_suspects, now)
    if is_logged(load, memory, now):
        wanted = due
    else:
        silence = now - memory.flow.newest if memory.flow.newest else timedelta(0)
        wanted = one_at_a_time(due, silence, memory, fleet, now)
    until = fleet.maintenance_until(now)
    wanted = () if until else wanted
    tries = canary(memory.trial, groups)
    # A refresh that rolls it back has launched its successor.
    more = [g for g in groups if sum(i.phase is not Phase.LEAVING for i in g.instances) > g.desired]
    wanted = tuple(i for i in wanted if i not in canary(memory.trial, more))
    free = _would_start_now([i for i in wanted if i in never_reported], groups, memory)
    free = tuple(dict.fromkeys((*free, *(i for i in wanted if i in tries))))
    free = free if policy.replacements_per_hour else ()
    wanted = tuple(dict.fromkeys((*free, *wanted)))
    budget = max(budget, len(free))
    deadline = timedelta(seconds=DEADLINES * fleet.availability.launch_deadline_s)
    tries = {i for i in tries if now - memory.in_service_since.get(i, now) < deadline}
    reasons = quiet | reasons | {i: quiet[i] + UNPROVEN for i in trial_of if missing}
    # The last of what is held against one is what its reason says.
    kinds = (
        dict.fromkeys(quiet, Suspicion.SILENT)
        | dict.fromkeys(idle, Suspicion.TAKES_NO_REQUEST)
        | dict.fromkeys(slow, Suspicion.SLOW)
        | dict.fromkeys(failing, Suspicion.FAILING)
        | dict.fromkeys(never_reported, Suspicion.NEVER_REPORTED)
    )
    since = dict(memory.last_logs) | suspects
    replaces_at = min(suspects.values()) + OBSERVATIONS_APART if suspects and not due else None
    if wanted[budget:] and of_last_hour:
        replaces_at = min(of_last_hour) + timedelta(hours=1)
    if until and suspects:
        replaces_at = max(until, replaces_at or until)
    return Diagnosis(
        replace=wanted[:budget],
        reasons=reasons,
        suspects=(
            *(
                Suspect(instance_id=i, kind=kinds[i], since=since.get(i, now), why=reasons[i])
                for i in sorted(reasons)
            ),
            *(
                Suspect(
                    instance_id=i,
                    kind=Suspicion.FAILING if i in onprem_failing else Suspicion.SLOW,
                    since=onprem_suspects[i],
                    why=onprem[i],
                    on_premises=True,
                )
                for i in sorted(onprem)
            ),
        ),
        logs_missing=len(trial) if missing else 0,
        onprem_silent=onprem_silent,
        replaces_at=replaces_at,
        over_budget=wanted[budget:],
        memory=replace(
            memory,
            suspects=suspects,
            silent=due,
            onprem_suspects=onprem_suspects,
            unreported={i: memory.starting[i] for i in launching},
            unproven=tuple(sorted({*unproven_of(memory, now), *tries})),
        ),
        bootstrap=tuple(sorted(never_reported)),
        free=free,
        onprem_due=onprem_due,
        nobody_serves=nobody_serves(memory, now, declared=fleet.onprem_workers)
        or _most_fail(load, memory, policy),
    )


def _would_start_now(
    never: Sequence[str], groups: Iterable[Group], memory: HealthMemory
) -> tuple[str, ...]:
    """Return one of those that never reported, if what its group launched last does report.

    The next one follows once the successor has reported, too.
    """
    since, starting = memory.in_service_since, memory.starting
    for group in groups:
        mine = {i.instance_id for i in group.instances}
        works = max((at for i, at in since.items() if i in mine - starting.keys()), default=None)
        stuck = [i for i in never if i in mine]
        if works and stuck and all(works > since.get(i, works) for i in mine & starting.keys()):
            return (stuck[0],)
    return ()


def _observed(
    reasons: Iterable[str], since: Mapping[str, datetime], now: datetime
) -> tuple[dict[str, datetime], tuple[str, ...]]:
    """Return when each suspect was first observed, and which were observed twice."""
    suspects = {name: since.get(name, now) for name in reasons}
    return suspects, tuple(n for n, at in suspects.items() if now - at >= OBSERVATIONS_APART)


def confirm(diagnosis: Diagnosis, load: Load, fleet: Fleet, now: datetime) -> tuple[str, ...]:
    """Make the last check: keep the due ones that are still suspect in freshly read logs."""
    since = now - timedelta(seconds=fleet.worker_health.silent_after_s)
    logged = {w.instance_id for w in load.workers if w.last_finished >= since}
    slow, failing = _slow_failing(load, diagnosis.memory, fleet, now)
    ill = slow.keys() | failing.keys()
    return tuple(i for i in diagnosis.replace if i in ill or i not in logged)


def replaced(memory: HealthMemory, instance_ids: tuple[str, ...], now: datetime) -> HealthMemory:
    """Remember replacements, which count against the budget of the hour."""
    suspects = {i: at for i, at in memory.suspects.items() if i not in instance_ids}
    return replace(
        memory, suspects=suspects, replaced=(*memory.replaced, *(now for _ in instance_ids))
    )


def _slow_failing(
    load: Load, memory: HealthMemory, fleet: Fleet, now: datetime
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reason against each instance that is slow, and that fails, unlike its peers."""
    policy = fleet.worker_health
    by_instance = _by_instance(load)
    ours = memory.in_service_since
    lately, always, everyone = _all_failing(load, memory, policy)
    differ = _differ(everyone, {*lately, *always}) >= CERTAIN
    known = {**always, **lately} if differ else lately
    failing = {i: known[i] for i in ours if i in known}
    if 2 * len({*lately, *always}) > len(everyone):
        # Most fail alike: replacing workers will not help where the cause is the service.
        failing = _one_that_fails(failing, memory, fleet, now) if differ else {}
    # Workers on premises, which have no instance, are other machines.
    slow = _slow({i: workers for i, workers in by_instance.items() if i}, load, policy)
    return {i: slow[i] for i in ours if i in slow}, failing


type Outcomes = Mapping[str, tuple[int, int]]
"""How many requests of each instance succeeded and failed."""


def _by_instance(load: Load) -> Mapping[str, list[WorkerLoad]]:
    by_instance: defaultdict[str, list[WorkerLoad]] = defaultdict(list)
    for worker in load.workers:
        by_instance[worker.instance_id].append(worker)
    return by_instance


def _all_failing(
    load: Load, memory: HealthMemory, policy: WorkerHealthPolicy
) -> tuple[dict[str, str], dict[str, str], Outcomes]:
    """Return the instances that fail in the window, those that failed each last request, and all.

    Of all, the successes and failures are those of the window, or since some began to fail where
    they are more.
    """
    ended = {i: (max(0, -n), max(0, n)) for i, n in memory.failures.items()}
    lately = dict[str, str]()
    for i, workers in _by_instance(load).items():
        failed = sum(worker.failed for worker in workers)
        window = sum(worker.finished for worker in workers) - failed, failed
        ended[i] = max(window, ended.get(i, window), key=sum)
        if why := _failing(workers, policy):
            lately[i] = why
    always = {
        i: f"its last {failed} requests failed"
        for i, (_, failed) in ended.items()
        if memory.failures.get(i, 0) >= policy.failing_requests
    }
    return lately, always, ended


def _differ(ended: Outcomes, some: Collection[str]) -> float:
    """Return the evidence that some fail more than the others: no cause that all have in common.

    It is the logarithm of a likelihood ratio, less that of the ways to choose as many.
    """
    each = [[n for i, n in ended.items() if (i in some) is inside] for inside in (True, False)]
    apart = sum(map(surprise, each))
    return surprise([*ended.values()]) - apart - math.log(math.comb(len(ended), len(each[0])))


def _one_that_fails(
    failing: dict[str, str], memory: HealthMemory, fleet: Fleet, now: datetime
) -> dict[str, str]:
    """Return the one to replace, to see whether its successor succeeds; none once one failed."""
    last = max(memory.replaced, default=now)
    if any(memory.in_service_since[i] > last for i in failing):
        return {}
    first = sorted(failing, key=lambda i: (i not in memory.suspects, i))
    return {i: failing[i] for i in one_at_a_time((*first,), timedelta(0), memory, fleet, now)}


def _most_fail(load: Load, memory: HealthMemory, policy: WorkerHealthPolicy) -> str:
    """Say that most requests fail, or most instances fail all they get; empty where they do not."""
    finished = sum(worker.finished for worker in load.workers)
    failed = sum(worker.failed for worker in load.workers)
    lately = max(finished, sum(max(0, n) for n in memory.failures.values()))
    if lately >= policy.failing_requests and 2 * failed > finished:
        return f"nobody serves well: {failed} of {finished} requests failed"
    at_once, always, everyone = _all_failing(load, memory, policy)
    bad = at_once.keys() | always.keys()
    if 2 * len(bad) > len(everyone):
        return f"nobody serves well: {len(bad)} of {len(everyone)} instances fail"
    return ""


def _slow(
    by_name: Mapping[str, list[WorkerLoad]], load: Load, policy: WorkerHealthPolicy
) -> dict[str, str]:
    """Return the reason against each instance or worker that serves much slower than its peers.

    Only those count that served enough requests, of which hardly any failed.
    """
    enough = max(policy.slow_requests, REQUESTS_PER_VARIATION * load.service.squared_variation)
    known: dict[str, float] = {}
    for name, workers in by_name.items():
        finished, failed = sum(w.finished for w in workers), sum(w.failed for w in workers)
        if finished >= enough and failed / finished <= FAILED_AT_MOST:
            known[name] = sum(w.served_s for w in workers) / finished
    if len(known) <= PEERS_TO_BE_SLOWER_THAN:
        return {}
    usual = median(known.values())
    return {
        i: f"serves {mean_s / usual:.1f} times slower than its peers"
        for i, mean_s in known.items()
        if usual and mean_s >= policy.slow_factor * usual
    }


def _failing(workers: list[WorkerLoad], policy: WorkerHealthPolicy) -> str:
    finished = sum(w.finished for w in workers)
    failed = sum(w.failed for w in workers)
    if finished < policy.failing_requests or failed < policy.failing_share * finished:
        return ""
    return f"{failed} of {finished} requests failed"


def _is_silent(last: datetime, policy: WorkerHealthPolicy, now: datetime) -> bool:
    return now - last >= timedelta(seconds=policy.silent_after_s)


def _onprem_silent(load: Load, fleet: Fleet, memory: HealthMemory, now: datetime) -> int:
    """Count the expected on-premises workers without a log while each had its share of requests."""
    workers = workers_in_service(len(memory.in_service_since), load, fleet)
    if load.finished / workers < CERTAIN:
        return 0
    live = sum(
        w.cluster is Cluster.ONPREM and not _is_silent(w.last_finished, fleet.worker_health, now)
        for w in load.workers
    )
    return max(0, fleet.onprem_workers - live)


def _onprem_suspicions(
    load: Load, policy: WorkerHealthPolicy, now: datetime
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reason against each worker on premises that is slower than others, or fails."""
    live = [w for w in load.workers if not _is_silent(w.last_finished, policy, now)]
    onprem = {w.worker_id: [w] for w in live if w.cluster is Cluster.ONPREM}
    failing = {name: why for name, mine in onprem.items() if (why := _failing(mine, policy))}
    if 2 * sum(bool(_failing([worker], policy)) for worker in live) > len(live):
        # As with instances: most fail alike.
        failing = {}
    return _slow(onprem, load, policy), failing
