"""Workers, not instances: who is in service but does not work (design rule 8)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from statistics import median
from typing import NamedTuple

from spotkeeper.domain.fleet import Fleet, Group, Phase, WorkerHealthPolicy
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.load import Cluster, Load, WorkerLoad

# Closer together, two looks see the same search logs: they are one observation.
OBSERVATIONS_APART = timedelta(seconds=30)
# A worker is slow compared with at least so many others.
PEERS_TO_BE_SLOWER_THAN = 2
# So many requests, times their squared variation, tell a slow worker from a run of long requests.
REQUESTS_PER_VARIATION = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Who to replace after the last check, whom not to count on, and why.

    `reasons` has one sentence per suspect; `bootstrap` are suspects whose workers never reported
    within the launch deadline. Workers on premises are only alarmed about: `onprem_silent` counts
    those missing, `onprem` has the reason against each that fails or is slow, `onprem_due` those
    of them that were seen so twice.
    """

    replace: tuple[str, ...]
    reasons: dict[str, str]
    onprem_silent: int
    over_budget: tuple[str, ...]
    memory: HealthMemory
    bootstrap: tuple[str, ...] = ()
    onprem: Mapping[str, str] = field(default_factory=dict)
    onprem_due: tuple[str, ...] = ()

    @property
    def onprem_suspect(self) -> int:
        """How many workers on premises to alarm about."""
        return self.onprem_silent + len(self.onprem_due)


def diagnose(
    load: Load, groups: tuple[Group, ...], fleet: Fleet, memory: HealthMemory, now: datetime
) -> Diagnosis:
    """Compare each instance in service with its peers; two observations make it due.

    The caller looks at the due ones once more before it replaces them, and then remembers each
    replacement with `replaced`.
    """
    policy = fleet.worker_health
    since = _in_service_since(groups, memory, now)
    memory = replace(memory, in_service_since=since, replaced=_of_last_hour(memory, now))
    unborn = _never_reported(load, fleet, memory, now) if policy.enabled else {}
    reasons = (_suspicions(load, memory, policy, now) if policy.enabled else {}) | unborn
    onprem = _onprem_suspicions(load, policy, now) if policy.enabled else {}
    suspects, due = _observed(reasons, memory.suspects, now)
    onprem_suspects, onprem_due = _observed(onprem, memory.onprem_suspects, now)
    budget = max(0, policy.replacements_per_hour - len(memory.replaced))
    return Diagnosis(
        replace=due[:budget],
        reasons=reasons,
        onprem_silent=_onprem_silent(load, fleet, now),
        over_budget=due[budget:],
        memory=replace(memory, suspects=suspects, silent=due, onprem_suspects=onprem_suspects),
        bootstrap=tuple(unborn),
        onprem=onprem,
        onprem_due=onprem_due,
    )


def _observed(
    reasons: Iterable[str], since: Mapping[str, datetime], now: datetime
) -> tuple[dict[str, datetime], tuple[str, ...]]:
    """Give when each suspect was first seen so, and who was seen so twice."""
    suspects = {name: since.get(name, now) for name in reasons}
    return suspects, tuple(n for n, at in suspects.items() if now - at >= OBSERVATIONS_APART)


def confirm(
    diagnosis: Diagnosis, load: Load, policy: WorkerHealthPolicy, now: datetime
) -> tuple[str, ...]:
    """Make the last check: of those due, keep who is still suspect in freshly read logs."""
    still = _suspicions(load, diagnosis.memory, policy, now).keys() | (
        set(diagnosis.bootstrap) - {worker.instance_id for worker in load.workers}
    )
    return tuple(i for i in diagnosis.replace if i in still)


def replaced(memory: HealthMemory, instance_ids: tuple[str, ...], now: datetime) -> HealthMemory:
    """Remember replacements, which count against the budget of the hour."""
    suspects = {i: at for i, at in memory.suspects.items() if i not in instance_ids}
    return replace(
        memory, suspects=suspects, replaced=(*memory.replaced, *(now for _ in instance_ids))
    )


def _in_service_since(
    groups: tuple[Group, ...], memory: HealthMemory, now: datetime
) -> dict[str, datetime]:
    return {
        i.instance_id: memory.in_service_since.get(i.instance_id, now)
        for group in groups
        for i in group.instances
        if i.phase is Phase.IN_SERVICE and i.healthy
    }


def _of_last_hour(memory: HealthMemory, now: datetime) -> tuple[datetime, ...]:
    return tuple(at for at in memory.replaced if now - at < timedelta(hours=1))


def _never_reported(
    load: Load, fleet: Fleet, memory: HealthMemory, now: datetime
) -> dict[str, str]:
    """Give the reason against each instance in service that has no log after its deadline."""
    deadline = timedelta(seconds=fleet.availability.launch_deadline_s)
    peers = _peers(load, fleet.worker_health, now)
    if peers < fleet.worker_health.peers_finished:
        return {}
    return {
        i: f"never reported in {(now - at).total_seconds():.0f} s: its workers do not start"
        for i, at in memory.starting.items()
        if i in memory.in_service_since and now - at >= deadline
    }


def _suspicions(
    load: Load, memory: HealthMemory, policy: WorkerHealthPolicy, now: datetime
) -> dict[str, str]:
    """Give the reason against each instance that is silent, failing or slow unlike its peers.

    One that has not reported yet is still starting, and judged by its deadline only.
    """
    since = {i: at for i, at in memory.in_service_since.items() if i not in memory.starting}
    by_instance: defaultdict[str, list[WorkerLoad]] = defaultdict(list)
    for worker in load.workers:
        by_instance[worker.instance_id].append(worker)
    peers = _peers(load, policy, now)
    silent = (
        (i, _silence(by_instance.get(i, []), at, peers, policy, now)) for i, at in since.items()
    )
    failing = {i: why for i in since if (why := _failing(by_instance.get(i, []), policy))}
    if 2 * len(failing) > len(by_instance):
        # Most fail alike: the service is ill, and replacing its workers will not cure it.
        failing = {}
    # Workers on premises, which have no instance, are other machines.
    in_aws = {i: workers for i, workers in by_instance.items() if i}
    slow = _slow(in_aws, load, policy)
    slow_here = {i: slow[i] for i in since if i in slow}
    return slow_here | {i: why for i, why in silent if why} | failing


class _Pace(NamedTuple):
    """How many requests an instance served, and the mean time of one in seconds."""

    finished: int
    mean_s: float


def _pace(workers: list[WorkerLoad]) -> _Pace:
    finished = sum(w.finished for w in workers)
    return _Pace(finished, sum(w.busy_s + w.overlapped_s for w in workers) / max(finished, 1))


def _slow(
    by_name: Mapping[str, list[WorkerLoad]], load: Load, policy: WorkerHealthPolicy
) -> dict[str, str]:
    """Give the reason against each instance or worker that serves much slower than its peers do.

    Only those count that served enough to tell.
    """
    enough = max(policy.slow_requests, REQUESTS_PER_VARIATION * load.service.squared_variation)
    paces = {i: _pace(workers) for i, workers in by_name.items()}
    known = {i: pace.mean_s for i, pace in paces.items() if pace.finished >= enough}
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


def _silence(
    workers: list[WorkerLoad],
    since: datetime,
    peers: float,
    policy: WorkerHealthPolicy,
    now: datetime,
) -> str:
    # Idle, not silent, unless its peers had work meanwhile.
    if peers < policy.peers_finished:
        return ""
    last = max((w.last_finished for w in workers), default=since)
    if _is_silent(max(last, since), policy, now):
        quiet = (now - max(last, since)).total_seconds()
        return f"finished nothing for {quiet:.0f} s while its peers finished {peers:.0f} each"
    return ""


def _is_silent(last: datetime, policy: WorkerHealthPolicy, now: datetime) -> bool:
    return now - last >= timedelta(seconds=policy.silent_after_s)


def _peers(load: Load, policy: WorkerHealthPolicy, now: datetime) -> float:
    """Give the median of what the workers that are not silent finished."""
    finished = [w.finished for w in load.workers if not _is_silent(w.last_finished, policy, now)]
    return median(finished) if finished else 0.0


def _onprem_silent(load: Load, fleet: Fleet, now: datetime) -> int:
    """Count the expected on-premises workers without a log while their peers had work."""
    policy = fleet.worker_health
    if _peers(load, policy, now) < policy.peers_finished:
        return 0
    live = sum(
        w.cluster is Cluster.ONPREM and not _is_silent(w.last_finished, policy, now)
        for w in load.workers
    )
    return max(0, fleet.onprem_workers - live)


def _onprem_suspicions(load: Load, policy: WorkerHealthPolicy, now: datetime) -> dict[str, str]:
    """Give the reason against each worker on premises that fails, or is slow among its like."""
    live = [w for w in load.workers if not _is_silent(w.last_finished, policy, now)]
    onprem = {w.worker_id: [w] for w in live if w.cluster is Cluster.ONPREM}
    failing = {name: why for name, mine in onprem.items() if (why := _failing(mine, policy))}
    if 2 * sum(bool(_failing([worker], policy)) for worker in live) > len(live):
        # As with instances: most fail alike.
        failing = {}
    return _slow(onprem, load, policy) | failing
