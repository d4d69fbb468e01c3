"""How a deployed stack runs: schedules, rules, queues, alarms, subscriptions, the newest logs."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import batched
from typing import Any

from spotkeeper.adapters.doctor.looking import Clients, look, names
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords, Records
from spotkeeper.adapters.ec2.auto_scaling import pages
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.decision import FAILED, OF_FLEETS, Controller
from spotkeeper.domain.doctor.facts import GONE, StackFacts, Unseen
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.spread import Place
from spotkeeper.ports import Gone

ALARMS_A_CALL = 100
# Records of about an hour of both controllers.
AN_HOUR = 120
# What the template writes into the first fleet's document, and the parameter that it takes it from.
_FROM_PARAMETERS = {
    "workers_per_instance": "WorkersPerInstance",
    "slots": "Slots",
    "onprem_workers": "OnPremWorkers",
    "bounds.spot_min": "SpotMin",
    "bounds.spot_max": "SpotMax",
    "bounds.on_demand_max": "OnDemandMax",
    "objective.wait_s": "ObjectiveWaitSeconds",
    "objective.share": "ObjectiveShare",
    "sizing.enabled": "SizeByLoad",
    "sizing.target_load_rate": "TargetLoadRate",
    "availability.early_replacement": "EarlyReplacement",
}
_PENDING, _RESERVED = "PendingConfirmation", "ReservedConcurrentExecutions"


def stack_facts(client: Clients, stack: Stack, fleets: Iterable[Fleet]) -> StackFacts:
    """Look at a deployed stack."""
    events, functions, ids = client("events"), client("lambda"), stack.physical_ids
    rules = ids("AWS::Events::Rule")
    topic = {"TopicArn": stack.outputs.get("AlarmTopicArn", "")}
    listed = ("list_subscriptions_by_topic", "Subscriptions")
    subscriptions = look(
        "sns:ListSubscriptionsByTopic", lambda: list(pages(client("sns"), *listed, **topic))
    )
    decisions = DecisionRecords(client("dynamodb"), stack.table)
    records = look(
        "dynamodb:Query",
        lambda: {fleet.name: decisions.newest(fleet.name, AN_HOUR) for fleet in fleets},
    )
    return StackFacts(
        schedules_disabled=names(
            "scheduler:GetSchedule",
            lambda: (
                name
                for name in ids("AWS::Scheduler::Schedule")
                if _is_off(client("scheduler").get_schedule(Name=name))
            ),
        ),
        rules_disabled=names(
            "events:DescribeRule",
            lambda: (name for name in rules if _is_off(events.describe_rule(Name=name))),
        ),
        rules_without_target=names(
            "events:ListTargetsByRule",
            lambda: (n for n in rules if not events.list_targets_by_rule(Rule=n)["Targets"]),
        ),
        queues_unread=names(
            "lambda:GetEventSourceMapping",
            lambda: (
                uuid
                for uuid in ids("AWS::Lambda::EventSourceMapping")
                if _is_off(functions.get_event_source_mapping(UUID=uuid))
            ),
        ),
        queues_gone=names(
            "sqs:GetQueueUrl",
            lambda: (
                name
                for name in (url.rpartition("/")[2] for url in ids("AWS::SQS::Queue"))
                if not _exists(client("sqs"), name)
            ),
        ),
        stopped_functions=names(
            "lambda:GetFunctionConcurrency",
            lambda: (
                name
                for name in ids("AWS::Lambda::Function")
                if functions.get_function_concurrency(FunctionName=name).get(_RESERVED) == 0
            ),
        ),
        silenced_alarms=names(
            "cloudwatch:DescribeAlarms",
            lambda: _silenced(client("cloudwatch"), ids("AWS::CloudWatch::Alarm")),
        ),
        unconfirmed=subscriptions
        if isinstance(subscriptions, Unseen)
        else tuple(
            s.get("Endpoint", "") for s in subscriptions if s["SubscriptionArn"] == _PENDING
        ),
        nobody_told=subscriptions.kind == GONE
        if isinstance(subscriptions, Unseen)
        else not subscriptions,
        sends_search_logs=stack.outputs.get("SendSearchLogsPolicy", ""),
        search_log_ages=records if isinstance(records, Unseen) else _ages(records),
        failed_turns=records if isinstance(records, Unseen) else tuple(_failed(records)),
        unread=records if isinstance(records, Unseen) else tuple(_unread(records)),
        regions=records if isinstance(records, Unseen) else tuple(regions_of(records)),
        set_by_hand=look("ssm:GetParametersByPath", lambda: tuple(_set_by_hand(client, stack))),
    )


def _set_by_hand(client: Clients, stack: Stack) -> Iterator[tuple[str, str]]:
    parameters = pages(
        client("ssm"), "get_parameters_by_path", "Parameters", Path=stack.documents_path
    )
    for each in parameters:
        if each["Name"] == stack.outputs.get("FleetDocumentName"):
            with suppress(ValueError, AttributeError):
                if patch := set_by_hand(json.loads(each["Value"]), stack):
                    yield each["Name"], json.dumps(patch)


def set_by_hand(document: Mapping[str, Any], stack: Stack) -> dict[str, Any]:
    """Return what a fleet document says otherwise than its stack's parameters: a merge patch."""
    given = stack.parameters
    created = bool(given.get("LaunchTemplateId"))
    queue, warm = given.get("RequestQueueName"), given.get("WarmPoolSize", "0") != "0"
    written = {
        "version": 1,
        "spot_group": stack.outputs.get("SpotGroup"),
        "on_demand_group": stack.outputs.get("OnDemandGroup"),
        "mode": given.get("Mode") or ("act" if created else "observe"),
        "availability.on_demand_warm": created and warm,
        "home": given.get("Home"),
        "regions": given.get("Regions"),
        **{
            field: json.loads(given[parameter])
            for field, parameter in _FROM_PARAMETERS.items()
            if parameter in given
        },
    }
    patch: dict[str, Any] = {}
    for section, value in document.items():
        inner = value if isinstance(value, dict) else {"": value}
        for name, leaf in inner.items():
            field = f"{section}.{name}" if name else section
            if field == "request_queue_url" and (leaf or "").rpartition("/")[2] == (queue or ""):
                continue
            if field not in written or written[field] != leaf:
                patch[section] = patch.get(section, {}) | {name: leaf} if name else leaf
    return patch


def _is_off(described: Mapping[str, Any]) -> bool:
    return str(described["State"]).upper() == "DISABLED"


def _exists(sqs: Any, queue: str) -> bool:
    with suppress(Gone), aws_errors("sqs:GetQueueUrl"):
        sqs.get_queue_url(QueueName=queue)
        return True
    return False


def _silenced(cloudwatch: Any, alarms: Iterable[str]) -> Iterator[str]:
    for some in batched(alarms, ALARMS_A_CALL, strict=False):
        for alarm in cloudwatch.describe_alarms(AlarmNames=list(some))["MetricAlarms"]:
            if not alarm.get("ActionsEnabled", True):
                yield alarm["AlarmName"]


def _ages(records: Mapping[str, Records]) -> Mapping[str, float | None]:
    """Return how old each fleet's newest search log is; fleets without a turn are left out."""
    return {
        fleet: newest.health.search_log_age_s if newest.health else None
        for fleet, mine in records.items()
        if (newest := next((r for r in mine.of(Controller.HEALTH) if r.rule != FAILED), None))
    }


def regions_of(records: Mapping[str, Records]) -> Iterator[tuple[str, Place]]:
    """Yield the regions of fleets whose home this stack is, as its newest turns know them."""
    for mine in records.values():
        newest = next((r.regions for r in mine.of(Controller.HEALTH) if r.regions), {})
        yield from newest.items()


def _unread(records: Mapping[str, Records]) -> Iterator[tuple[str, str]]:
    """Yield what each fleet's newest turns could not read, and went on without."""
    for fleet, mine in records.items():
        newest = (turn for of in OF_FLEETS for turn in mine.of(of)[:1])
        yield from ((fleet, each) for turn in newest for each in turn.unread)


def _failed(records: Mapping[str, Records]) -> Iterator[tuple[str, str]]:
    """Count each fleet's turns that failed lately, with the last error of each controller."""
    for fleet, mine in records.items():
        for controller in OF_FLEETS:
            turns = mine.of(controller)
            failed = [record for record in turns if record.failed]
            if failed:
                newest = f"the last at {failed[0].at:%Y-%m-%d %H:%M} UTC: {failed[0].failure}"
                yield fleet, f"{len(failed)} of the last {len(turns)} {controller} turns; {newest}"
