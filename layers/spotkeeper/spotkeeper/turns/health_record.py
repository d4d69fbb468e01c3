"""What a turn of the health controller leaves behind: its decision record and its figures."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from spotkeeper.domain.decision import Action, Answer, Controller, DecisionRecord, Outcome
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health.decide import HealthPlan, ReplaceWorker
from spotkeeper.domain.health.diagnosis import Diagnosis
from spotkeeper.domain.load.digest import LATE_AFTER_S
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.request_queue import known_length
from spotkeeper.domain.load.summarise import onprem_at_once
from spotkeeper.domain.sizing.size import ObjectiveInput, Sizing


def record_of(
    wanted: HealthPlan, answers: Sequence[Answer], outcomes: tuple[Outcome, ...]
) -> DecisionRecord:
    """Record a turn; only replacements that AWS accepted count."""
    sizing, diagnosis, snapshot = wanted.sizing, wanted.diagnosis, wanted.assessment.snapshot
    fleet = snapshot.fleet
    replacements = sum(
        isinstance(action, ReplaceWorker) and answer is Answer.DONE
        for action, answer in zip(wanted.actions, answers, strict=True)
    )
    reasons = [diagnosis.nobody_serves] if diagnosis.nobody_serves else []
    reasons += [f"{i} {why}" for i, why in sorted(diagnosis.reasons.items())]
    reasons += [f"on-premises {name} {why}" for name, why in sorted(diagnosis.onprem.items())]
    late = wanted.assessment.load.late if sizing.stale else 0
    sizing = replace(sizing, stale=sizing.stale and _would_log(fleet, sizing, late))
    return DecisionRecord(
        fleet=fleet.name,
        controller=Controller.HEALTH,
        at=snapshot.now,
        action=sizing.action if fleet.sizing.enabled else Action.HOLD,
        rule=sizing.rule if fleet.sizing.enabled else "sizing is off",
        reason="; ".join([sizing.reason, *_all_late(late), *_queue_trouble(sizing), *reasons]),
        seen=_seen(wanted.assessment.load, sizing, diagnosis, replacements, snapshot.now)
        | _noticed(wanted.assessment.load, fleet)
        | _shadows(wanted.assessment.promised),
        outcomes=outcomes,
        alarms=_alarms(sizing, diagnosis),
    )


def _would_log(fleet: Fleet, sizing: Sizing, late: int) -> bool:
    """Tell whether missing logs matter: they size the fleet, and they are expected.

    They are expected if logs have arrived before, even too late, or if the request queue is known.
    """
    served = known_length(sizing.memory.queue) is not None
    logged = late > 0 or sizing.memory.service_mean_s > 0
    return fleet.sizing.enabled and (served or logged)


def _all_late(count: int) -> Sequence[str]:
    """Report logs whose requests seem to have ended long before: a clock may be hours behind."""
    minutes = LATE_AFTER_S // 60
    return (
        [f"{count} arrived over {minutes} min late: are the workers' clocks right?"]
        if count
        else ()
    )


def _queue_trouble(sizing: Sizing) -> Sequence[str]:
    """Report that the request queue is not known, unless the sizing's reason has it."""
    queue = sizing.memory.queue
    if queue is None or not queue.trouble or queue.trouble in sizing.reason:
        return ()
    return (f"the request queue is not known ({queue.trouble})",)


def _seen(
    load: Load, sizing: Sizing, diagnosis: Diagnosis, replacements: int, now: datetime
) -> dict[str, float]:
    seen: dict[str, float] = {
        "OfferedLoad": load.offered,
        "LoadRate": 100 * max(load.load_rate.values(), default=0.0),
        "WorkersNeeded": sizing.workers,
        "WorkersLive": len(load.workers),
        "OnPremWorkersLive": onprem_at_once(load),
        "StaleSearchLogs": int(sizing.stale or diagnosis.logs_missing > 0),
        "WorkersSuspect": len(diagnosis.reasons),
        "WorkersReplaced": replacements,
        "OnPremWorkersSilent": diagnosis.onprem_silent,
        "OnPremWorkersSuspect": diagnosis.onprem_suspect,
        "WorkersMissing": sizing.missing,
        "ArrivalRate": load.arrival_rate,
        "ServiceMean": load.service_mean_s,
        "ServiceP95": load.service.quantile_s(0.95),
        "WaitP50": load.waits.quantile_s(0.5),
        "WaitP95": load.waits.quantile_s(0.95),
        # Launches that fail by configuration report it too; the alarm is the same.
        **({"ConfigurationFailure": 1} if diagnosis.bootstrap else {}),
        **({"NobodyServes": 1} if diagnosis.nobody_serves else {}),
    }
    queue = sizing.memory.queue
    if queue is not None:
        seen["RequestQueueUnread"] = int(queue.length is None)
    if queue is not None and queue.length is not None:
        seen["RequestsQueued"] = queue.length.waiting + queue.length.delayed
        seen["RequestsInFlight"] = queue.length.in_flight
    newest = load.newest or sizing.memory.flow.newest
    if newest is not None:
        seen["SearchLogAge"] = (now - newest).total_seconds()
    return seen | {f"Dispersion{scale}s": index for scale, index in load.dispersion.items()}


def _noticed(load: Load, fleet: Fleet) -> dict[str, float]:
    """Return how many requests a minute failed, and how many waited longer than promised."""
    a_minute = 60 / load.window_s
    seen = {"RequestsFailed": a_minute * sum(worker.failed for worker in load.workers)}
    if fleet.objective is not None:
        late = load.waits.count - load.waits.within(fleet.objective.wait_s)
        seen["RequestsLate"] = a_minute * late
    return seen


def _shadows(promised: ObjectiveInput | None) -> dict[str, float]:
    """Report worker-hours a day of the followed rule, and of the cheapest that kept its promise."""
    if promised is None or promised.choice.index < 0:
        return {}
    choice = promised.choice
    return {"HoursFollowed": choice.hours_a_day, "HoursLeast": choice.least_hours_a_day}


def _alarms(sizing: Sizing, diagnosis: Diagnosis) -> tuple[str, ...]:
    queue = sizing.memory.queue
    named = {
        "stale-search-logs": sizing.stale,
        "onprem-workers": bool(diagnosis.onprem_suspect),
        "replacement-budget-spent": bool(diagnosis.over_budget),
        "bootstrap": bool(diagnosis.bootstrap),
        "nobody-serves": bool(diagnosis.nobody_serves),
        "search-logs-missing": bool(diagnosis.logs_missing),
        "objective-missed": bool(sizing.missing),
        "request-queue-unread": queue is not None and queue.length is None,
    }
    return tuple(name for name, raised in named.items() if raised)
