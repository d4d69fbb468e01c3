"""One logger, one set of metrics, one tracer; written once a turn, from values."""

from collections.abc import Mapping, Sequence

from aws_lambda_powertools import Logger, Tracer
from aws_lambda_powertools.metrics import EphemeralMetrics, MetricUnit

from spotkeeper.domain.decision import Action, DecisionRecord, Half
from spotkeeper.domain.failure import FailureClass
from spotkeeper.ports import FleetError
from spotkeeper.turn import TurnReport

logger = Logger()
tracer = Tracer()

_COUNT, _SECONDS = MetricUnit.Count, MetricUnit.Seconds
# Every metric that the product emits, with its unit; template.yaml's alarms and dashboard use
# no other. All carry the dimensions service and fleet.
METRICS: dict[str, MetricUnit] = dict.fromkeys(
    (
        "SpotDesired", "SpotSpare", "SpotServing", "SpotComing", "SpotAtRisk", "Shortfall",
        "ShortfallUnfilled",
        "OnDemandDesired", "OnDemandServing", "Backfilled", "Released", "Interruptions",
        "EarlyReplacements", "BothShort", "ConfigurationFailure", "QuotaReached", "LaunchFailures",
        "UnknownFailures", "BreakerOpen", "DecisionHold", "DecisionBackfill", "DecisionRelease",
        "DecisionResize", "TurnBusy", "TurnFailed", "OfferedLoad", "WorkersNeeded", "WorkersLive",
        "OnPremWorkersLive", "StaleSearchLogs", "WorkersSuspect", "WorkersReplaced",
        "OnPremWorkersSilent", "OnPremWorkersSuspect", "SearchLogs", "MessagesRefused",
        "ClockSkewed", "LateSearchLogs", "DuplicateMessages", "WorkersMissing",
        "Dispersion10s", "Dispersion60s", "Dispersion300s",
        "RequestsQueued", "RequestsInFlight", "RequestQueueUnread",
    ),
    _COUNT,
) | {
    "LoadRate": MetricUnit.Percent,
    "SearchLogAge": _SECONDS,
    "ArrivalRate": MetricUnit.CountPerSecond,
    "ServiceMean": _SECONDS,
    "ServiceP95": _SECONDS,
    "WaitP50": _SECONDS,
    "WaitP95": _SECONDS,
}  # fmt: skip

# Alarms of a decision that are metrics too: 1 while raised, 0 while not, so that they can clear.
_ALARM_METRICS: Mapping[str, frozenset[str]] = {
    "ConfigurationFailure": frozenset(
        {FailureClass.CONFIGURATION, FailureClass.PERMISSION, FailureClass.BOOTSTRAP}
    ),
    "QuotaReached": frozenset({FailureClass.QUOTA}),
    "BothShort": frozenset({"both_short"}),
    "BreakerOpen": frozenset({"breaker"}),
}
_ACTION_METRICS = {
    Action.HOLD: "DecisionHold",
    Action.BACKFILL: "DecisionBackfill",
    Action.RELEASE: "DecisionRelease",
    Action.RESIZE: "DecisionResize",
}


# People read it; the log has every error whole.
CAUSES_AT_MOST = 2_000


class TurnFailed(ExceptionGroup[FleetError]):
    """Some fleet's turn failed; raised after all fleets were tried, so that the alarm rings."""


def emit(fleet: str, values: Mapping[str, float]) -> None:
    """Write one fleet's metrics as one EMF document; an unknown name is a `KeyError`."""
    metrics = EphemeralMetrics()
    metrics.add_dimension(name="fleet", value=fleet)
    for name, value in values.items():
        metrics.add_metric(name=name, unit=METRICS[name], value=value)
    metrics.flush_metrics(raise_on_empty_metrics=False)


def report(turn: TurnReport, document_errors: Sequence[FleetError] = ()) -> dict[str, str]:
    """Log and count what an invocation did; answers each fleet's last reason.

    Raises `TurnFailed` when a fleet's document, its turn, or something it asked of AWS failed.
    """
    for record in turn.records:
        _report_record(record)
    for fleet in turn.busy:
        logger.info("found another turn at work and left it a note", fleet=fleet)
        emit(fleet, {"TurnBusy": 1})
    for fleet in turn.failed:
        emit(fleet, {"TurnFailed": 1})
    errors = [*document_errors, *turn.errors]
    for error in errors:
        logger.error(str(error), kind=type(error).__name__)
    if errors:
        # What calls the function sees the message alone, without the errors within.
        causes = "; ".join(dict.fromkeys(map(str, errors)))
        raise TurnFailed(f"not every fleet was turned: {causes[:CAUSES_AT_MOST]}", errors)
    return {record.fleet: record.reason for record in turn.records}


def _report_record(record: DecisionRecord) -> None:
    values = {**record.seen, _ACTION_METRICS[record.action]: 1.0}
    if record.half is Half.AVAILABILITY:
        values |= {
            name: float(not alarms.isdisjoint(record.alarms))
            for name, alarms in _ALARM_METRICS.items()
        }
    emit(record.fleet, values)
    for failure in record.unknown_failures:
        logger.warning(
            "unknown launch failure, handled as capacity", fleet=record.fleet, text=failure
        )
    logger.info(
        "turned",
        fleet=record.fleet,
        half=record.half,
        action=record.action,
        rule=record.rule,
        reason=record.reason,
        asked=[outcome.asked for outcome in record.outcomes],
        alarms=record.alarms,
    )
