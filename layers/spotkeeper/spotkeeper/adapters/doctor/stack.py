"""What a deployed stack looks like: schedules, subscriptions, the newest logs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING

from spotkeeper.adapters.doctor.looking import look
from spotkeeper.adapters.doctor.scores import PlacementScores
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords, Records
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.decision import FAILED, Controller
from spotkeeper.domain.doctor.facts import StackFacts, Unseen
from spotkeeper.domain.fleet import Fleet

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_scheduler import EventBridgeSchedulerClient
    from mypy_boto3_sns import SNSClient

ALARMS_A_CALL = 100
# Records of about an hour of both controllers.
AN_HOUR = 120
_PENDING = "PendingConfirmation"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackClients:
    """The services that know a deployed stack."""

    scheduler: "EventBridgeSchedulerClient"
    events: "EventBridgeClient"
    functions: "LambdaClient"
    sns: "SNSClient"
    alarms: "CloudWatchClient"
    records: DecisionRecords
    scores: PlacementScores


def stack_facts(clients: StackClients, stack: Stack, fleets: Iterable[Fleet]) -> StackFacts:
    """Look at a deployed stack."""
    topic = stack.outputs.get("AlarmTopicArn", "")
    subscriptions = look("sns:ListSubscriptionsByTopic", lambda: _subscriptions(clients.sns, topic))
    fleets = tuple(fleets)
    records = look(
        "dynamodb:Query",
        lambda: {fleet.name: clients.records.newest(fleet.name, AN_HOUR) for fleet in fleets},
    )
    return StackFacts(
        schedules_disabled=_disabled(
            "scheduler:GetSchedule",
            stack.physical_ids("AWS::Scheduler::Schedule"),
            lambda name: clients.scheduler.get_schedule(Name=name)["State"],
        ),
        rules_disabled=_disabled(
            "events:DescribeRule",
            stack.physical_ids("AWS::Events::Rule"),
            lambda name: clients.events.describe_rule(Name=name)["State"],
        ),
        rules_without_target=look(
            "events:ListTargetsByRule",
            lambda: tuple(
                name
                for name in stack.physical_ids("AWS::Events::Rule")
                if not clients.events.list_targets_by_rule(Rule=name)["Targets"]
            ),
        ),
        stopped_functions=look(
            "lambda:GetFunctionConcurrency",
            lambda: tuple(
                name
                for name in stack.physical_ids("AWS::Lambda::Function")
                if clients.functions.get_function_concurrency(FunctionName=name).get(
                    "ReservedConcurrentExecutions"
                )
                == 0
            ),
        ),
        silenced_alarms=look(
            "cloudwatch:DescribeAlarms",
            lambda: _silenced(clients.alarms, stack.physical_ids("AWS::CloudWatch::Alarm")),
        ),
        queues_unread=_disabled(
            "lambda:GetEventSourceMapping",
            stack.physical_ids("AWS::Lambda::EventSourceMapping"),
            lambda uuid: clients.functions.get_event_source_mapping(UUID=uuid)["State"],
        ),
        unconfirmed=subscriptions
        if isinstance(subscriptions, Unseen)
        else tuple(end for end, arn in subscriptions if arn == _PENDING),
        nobody_told=not isinstance(subscriptions, Unseen) and not subscriptions,
        sends_search_logs=stack.outputs.get("SendSearchLogsPolicy", ""),
        search_log_ages=records if isinstance(records, Unseen) else _ages(records),
        failed_turns=records if isinstance(records, Unseen) else tuple(_failed(records)),
    )


def _disabled(
    action: str, names: Iterable[str], state: Callable[[str], str]
) -> tuple[str, ...] | Unseen:
    """Name those that are switched off, by the state that one action tells."""
    return look(action, lambda: tuple(name for name in names if state(name).upper() == "DISABLED"))


def _silenced(client: "CloudWatchClient", names: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        alarm["AlarmName"]
        for some in batched(names, ALARMS_A_CALL, strict=False)
        for alarm in client.describe_alarms(AlarmNames=list(some))["MetricAlarms"]
        if not alarm.get("ActionsEnabled", True)
    )


def _subscriptions(client: "SNSClient", topic: str) -> list[tuple[str, str]]:
    pages = client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic)
    return [
        (s.get("Endpoint", ""), s["SubscriptionArn"]) for p in pages for s in p["Subscriptions"]
    ]


def _ages(records: Mapping[str, Records]) -> Mapping[str, float | None]:
    """Say how old each fleet's newest search log is; fleets without a health turn are left out."""
    ages: dict[str, float | None] = {}
    for fleet, found in records.items():
        newest = next((r for r in found.of(Controller.HEALTH) if r.rule != FAILED), None)
        if newest:
            ages[fleet] = newest.seen.get("SearchLogAge")
    return ages


def _failed(records: Mapping[str, Records]) -> Iterator[tuple[str, str]]:
    """Count each fleet's turns that failed lately, with the last error of each controller."""
    for fleet, found in records.items():
        for controller in Controller:
            turns = found.of(controller)
            failed = [record for record in turns if record.rule == FAILED]
            if failed:
                newest = f"the last at {failed[0].at:%Y-%m-%d %H:%M} UTC: {failed[0].reason}"
                yield fleet, f"{len(failed)} of the last {len(turns)} {controller} turns; {newest}"
