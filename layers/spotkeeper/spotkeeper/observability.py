"""One logger and one set of metrics; written once a turn, from values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import cache
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from spotkeeper.domain.decision import Alarm, Controller, DecisionRecord
from spotkeeper.domain.doctor.finding import Finding, Severity
from spotkeeper.domain.failure import FailureClass, Remedy, remedy
from spotkeeper.domain.permission import Permission
from spotkeeper.ports import FleetError
from spotkeeper.turns.keep_ledger import LedgerReport
from spotkeeper.turns.turn import TurnReport

logger = Logger()

# The metrics of alarms and dashboard; a turn's other figures are in its record and its log line.
# All have the dimensions service and fleet. A metric costs for each hour in which it is sent: these
# are sent each turn,
LEVELS: Mapping[str, MetricUnit] = dict.fromkeys(
    (
        "SpotDesired", "SpotServing", "OnDemandDesired", "OfferedLoad", "WorkersLive",
    ),
    MetricUnit.Count,
) | {"WaitP95": MetricUnit.Seconds}  # fmt: skip
# and these when they are not zero, and then for a while: their alarms treat missing data as not
# breaching, but look at older datapoints where the latest are missing.
COUNTS = frozenset({
    "SpotLaunching", "SpotAtRisk", "OnDemandServing", "ShortfallUnfilled", "WorkersMissing",
    "RequestsQueued", "Interruptions", "Backfilled", "Released", "WorkersReplaced", "BothShort",
    "ConfigurationFailure", "StaleSearchLogs", "RequestQueueUnread", "OnPremWorkersSuspect",
    "Observing", "Paused", "SpentSpot", "SpentOnDemand", "Saved", "SearchLogsLost",
    "TurnsFailed", "RecordsLost", "NobodyServes", "PausedHours", "OnDemandHours",
    "EventsUnsent", "NewVersionWorse",
})  # fmt: skip

ZEROS_SENT = 20
"""How often a zero is sent after another value: longer than an alarm looks back, in minutes."""

# Sent once a day, also when it is zero, with the dimension service alone.
DAILY = "Misconfigurations"

# Alarms of a decision that are metrics too.
_CAPPED = (Alarm(each) for each in FailureClass if remedy(each) is Remedy.BACKFILL_CAPPED)
_ALARM_METRICS: Mapping[str, frozenset[Alarm]] = {
    "ConfigurationFailure": frozenset({
        *_CAPPED, Alarm.ADOPTING, Alarm.UNPROVEN_MARKS, Alarm.GROUP_MISSING, Alarm.GROUP_LEFT,
        Alarm.REGION_GONE, Alarm.SHARE_EXPIRED, Alarm.TWO_HOMES,
    }),
    "BothShort": frozenset({Alarm.BOTH_SHORT}),
    "NewVersionWorse": frozenset({Alarm.NEW_VERSION_WORSE}),
    "NobodyServes": frozenset({Alarm.NOBODY_SERVES}),
    "RequestQueueUnread": frozenset({Alarm.REQUEST_QUEUE_UNREAD}),
    "StaleSearchLogs": frozenset({Alarm.STALE_SEARCH_LOGS, Alarm.SEARCH_LOGS_MISSING}),
}  # fmt: skip

_OF_RUNNING = _ALARM_METRICS["NobodyServes"] | _ALARM_METRICS["StaleSearchLogs"]
_PERMISSION_METRICS = {Permission.OBSERVE: "Observing", Permission.PAUSED: "Paused"}


# People read it; the log has every error whole.
CAUSES_AT_MOST = 2_000


class TurnFailed(ExceptionGroup[FleetError]):
    """Some fleet's turn failed; raised after all fleets were tried, so that the alarm rings."""


@cache
def _zeros() -> Counter[tuple[str, str]]:
    """Return how many zeros are still to be sent of a fleet's metric, as a warm function knows."""
    return Counter()


def _is_sent(fleet: str, name: str, value: float) -> bool:
    zeros = _zeros()
    if name in COUNTS:
        zeros[fleet, name] = ZEROS_SENT + 1 if value else max(0, zeros[fleet, name] - 1)
    return name in LEVELS or zeros[fleet, name] > 0


def emit(fleet: str, values: Mapping[str, float | None]) -> None:
    """Write those of one fleet's values that are metrics as one EMF document."""
    known = {name: value for name, value in values.items() if value is not None}
    sent = {name: value for name, value in known.items() if _is_sent(fleet, name, value)}
    if not sent:
        return
    metrics = EphemeralMetrics()
    metrics.add_dimension(name="fleet", value=fleet)
    for name, value in sent.items():
        metrics.add_metric(name=name, unit=LEVELS.get(name, MetricUnit.Count), value=value)
    metrics.flush_metrics()


@cache
def tell_unused(fleet: str, settings: tuple[str, ...]) -> None:
    """Log, once in a function's life, which settings of a fleet's document are of the past."""
    if settings:
        message = "settings of an earlier release are not used: remove them from the document"
        logger.warning(message, fleet=fleet, settings=list(settings))


def report(turn: TurnReport, document_errors: Sequence[FleetError] = ()) -> dict[str, str]:
    """Log and count what an invocation did; returns each fleet's last reason.

    Raises `TurnFailed` when a fleet's document, its turn, or one of its requests to AWS failed, and
    an exception group of unforeseen errors.
    """
    for record in turn.records:
        _report_record(record)
    for fleet in turn.unrecorded:
        # Without a record of it, a failed turn is counted here alone.
        emit(fleet, {"RecordsLost": 1})
    for fleet in turn.busy:
        logger.info("found another turn at work and left it a note", fleet=fleet)
    if turn.late:
        logger.warning("jobs had no turn: no time was left", jobs=turn.late)
    errors = [*document_errors, *turn.errors]
    _log(errors)
    for defect in turn.defects:
        # The caller of the function sees neither a group's errors nor their origin.
        logger.error(f"a defect {defect.__notes__[0]}: {defect!r}", exc_info=defect)
    if turn.defects:
        raise ExceptionGroup("a turn failed by a defect", turn.defects)
    if errors:
        # The function's caller sees only the message, without the errors within.
        causes = "; ".join(dict.fromkeys(map(str, errors)))
        raise TurnFailed(f"not every turn succeeded: {causes[:CAUSES_AT_MOST]}", errors)
    return {record.fleet: record.reason for record in turn.records}


def report_spending(report: LedgerReport) -> dict[str, float]:
    """Emit the spending of each fleet in USD; returns the sum by fleet.

    Raises `TurnFailed` when a fleet's ledger could not be kept, after all were tried.
    """
    for fleet, spent in report.spent.items():
        usd = {"SpentSpot": spent.spent_spot_usd, "SpentOnDemand": spent.spent_on_demand_usd}
        emit(fleet, usd | {"Saved": spent.saved_by_spot_usd})
        if hours := spent.unpriced_h:
            logger.warning("instances without a price", fleet=fleet, hours=hours)
    _log(report.errors)
    if report.errors:
        raise TurnFailed("not every ledger was kept", report.errors)
    return {fleet: spent.paid for fleet, spent in report.spent.items()}


def report_messages(
    turn: TurnReport, messages: Mapping[str, frozenset[str] | None]
) -> dict[str, Any]:
    """Report the turns that messages of a queue were for; returns those to deliver again.

    For an error, Lambda would take more and more concurrency from the messages of all fleets.
    """
    failed: list[str] = []
    try:
        report(turn)
    except (TurnFailed, ExceptionGroup) as error:
        failed = [i for i, of in messages.items() if of is None or of & turn.failed]
        logger.error(str(error)[:CAUSES_AT_MOST], kind=type(error).__name__)
        _count("MessagesFailed", 1)
    return {"batchItemFailures": [{"itemIdentifier": one} for one in failed]}


def report_unusable(event: Mapping[str, object]) -> None:
    """Count and log an event of a known kind that names nothing of which a fleet may consist."""
    _count("EventsUnusable", 1)
    detail = event.get("detail")
    kind = event.get("detail-type")
    logger.warning("an event names no instance and no group", kind=kind, detail=detail)


def report_findings(findings: Sequence[Finding]) -> dict[str, int]:
    """Log the findings and count the errors; returns the number of each severity."""
    for each in findings:
        logger.warning(
            "found wrong",
            finding=each.id,
            severity=each.severity,
            about=each.about,
            evidence=each.evidence,
            fix=each.fix,
        )
    counts = {s.value: sum(f.severity is s for f in findings) for s in Severity}
    _count(DAILY, counts[Severity.ERROR])
    return counts


def _log(errors: Sequence[FleetError]) -> None:
    for error in errors:
        logger.error(str(error), kind=type(error).__name__)


def _count(name: str, value: float) -> None:
    """Send a metric of no fleet."""
    metrics = EphemeralMetrics()
    metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)
    metrics.flush_metrics()


def metrics_of(record: DecisionRecord) -> dict[str, float | None]:
    """Return what a record says as the metrics of its fleet, by their names."""
    rung = set(record.alarms)
    if record.permission is not Permission.ACT:
        # Nothing is released anyway, so nothing is to be done.
        rung.discard(Alarm.ADOPTING)
    if record.permission is Permission.PAUSED:
        # Who paused it knows; `paused-too-long` reminds.
        rung -= _OF_RUNNING
    metrics: dict[str, float | None] = {
        name: float(not alarms.isdisjoint(rung)) for name, alarms in _ALARM_METRICS.items()
    }
    if record.controller is Controller.AVAILABILITY:
        metrics |= {n: float(p is record.permission) for p, n in _PERMISSION_METRICS.items()}
    metrics["TurnsFailed"] = float(record.error is not None)
    since = record.paused_since or record.at
    metrics["PausedHours"] = (record.at - since) / timedelta(hours=1)
    if figures := record.availability:
        metrics |= {
            "SpotDesired": figures.spot_desired,
            "SpotServing": figures.spot_serving,
            "SpotLaunching": figures.spot_launching,
            "SpotAtRisk": figures.spot_at_risk,
            "ShortfallUnfilled": figures.shortfall_unfilled,
            "OnDemandDesired": figures.on_demand_desired,
            "OnDemandServing": figures.on_demand_serving,
            "OnDemandHours": figures.on_demand_h or 0.0,
            "Backfilled": figures.backfilled,
            "Released": figures.released,
            "Interruptions": figures.interruptions,
            "EventsUnsent": figures.events_unsent,
        }
    if load := record.health:
        metrics |= {
            "OfferedLoad": load.offered_load,
            "WorkersLive": load.workers_live,
            "WaitP95": load.wait_p95_s,
            "WorkersMissing": load.workers_missing,
            "WorkersReplaced": load.workers_replaced,
            "OnPremWorkersSuspect": load.on_prem_workers_suspect,
            "RequestsQueued": load.requests_queued,
        }
    return metrics


def _report_record(record: DecisionRecord) -> None:
    if record.controller is not Controller.JOBS:
        emit(record.fleet, metrics_of(record))
    elif Alarm.JOB_STUCK in record.alarms:
        _count("JobsStuck", 1)
    for failure in record.failures:
        if not failure.known:
            logger.warning(
                "unknown launch failure, at first handled as capacity",
                fleet=record.fleet,
                text=failure.message,
            )
    figures = record.availability or record.health
    logger.info(
        "turned",
        fleet=record.fleet,
        controller=record.controller,
        action=record.action,
        rule=record.rule,
        reason=record.reason,
        permission=record.permission,
        requested=[outcome.request.text() for outcome in record.outcomes],
        alarms=record.alarms,
        figures=figures and {n: v for n, v in asdict(figures).items() if v is not None},
    )
