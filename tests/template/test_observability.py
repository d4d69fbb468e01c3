"""Alarms and dashboard look at metrics that exist: ours are emitted by the code."""

import json
import re
from typing import Any

import pytest

from spotkeeper.observability import METRICS
from tests.template.stack import Stack

QUERY = re.compile(
    r"SELECT \w+\((\w+)\) FROM SCHEMA\(Spotkeeper, service, fleet\) WHERE service = 'ocr'$"
)
SEARCH = re.compile(
    r"SEARCH\('\{Spotkeeper,service,fleet\} service=\"ocr\" MetricName=(.+)', '\w+', 60\)$"
)
LAMBDA = {"Errors", "Throttles", "Invocations"}
QUEUE = {"ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesVisible"}


def alarms(stack: Stack) -> dict[str, Any]:
    """All alarms, by logical id."""
    return stack.resources("AWS::CloudWatch::Alarm")


def own_metric(alarm: dict[str, Any]) -> str | None:
    """Name the metric of ours that an alarm watches."""
    if alarm.get("Namespace") == "Spotkeeper":
        return str(alarm["MetricName"])
    found = [QUERY.match(it["Expression"]) for it in alarm.get("Metrics", []) if "Expression" in it]
    return next((match[1] for match in found if match), None)


def dashboard(stack: Stack) -> list[dict[str, Any]]:
    """The widgets of the dashboard."""
    [board] = stack.resources("AWS::CloudWatch::Dashboard").values()
    widgets: list[dict[str, Any]] = json.loads(board["DashboardBody"])["widgets"]
    return widgets


def metrics_shown(stack: Stack) -> list[str]:
    """Name the metrics of ours that the dashboard shows."""
    metrics = [it for widget in dashboard(stack) for it in widget["properties"].get("metrics", [])]
    searches = [it[0]["expression"] for it in metrics if isinstance(it[0], dict)]
    matches = [SEARCH.match(search) for search in searches]
    assert all(matches), searches
    return [name for match in matches if match for name in re.findall(r'"(\w+)"', match[1])]


def test_every_metric_of_ours_in_an_alarm_is_emitted(stack: Stack) -> None:
    watched = {name for alarm in alarms(stack).values() if (name := own_metric(alarm))}
    assert watched <= METRICS.keys()
    assert watched == {
        "ShortfallUnfilled",
        "StaleSearchLogs",
        "RequestQueueUnread",
        "BothShort",
        "ConfigurationFailure",
        "OnDemandDesired",
        "OnPremWorkersSuspect",
    }


def test_every_query_is_one_that_this_test_understands(stack: Stack) -> None:
    for alarm in alarms(stack).values():
        for metric in alarm.get("Metrics", []):
            expression = metric.get("Expression", "SUM(METRICS())")
            assert expression == "SUM(METRICS())" or QUERY.match(expression), expression


def test_every_metric_of_ours_on_the_dashboard_is_emitted(stack: Stack) -> None:
    assert set(metrics_shown(stack)) <= METRICS.keys()


@pytest.mark.parametrize(
    "name",
    [
        "LoadRate",
        "SpotDesired",
        "SpotServing",
        "SpotComing",
        "OnDemandDesired",
        "Backfilled",
        "Interruptions",
        "WaitP95",
        "ArrivalRate",
        "ServiceMean",
        "Dispersion60s",
        "WorkersNeeded",
        "WorkersMissing",
        "RequestsQueued",
        "RequestsInFlight",
        "OnPremWorkersSuspect",
        "DecisionHold",
        "DecisionBackfill",
        "DecisionRelease",
        "DecisionResize",
    ],
)
def test_the_dashboard_shows_what_an_operator_asks_for(stack: Stack, name: str) -> None:
    assert name in metrics_shown(stack)


def test_metrics_of_aws_are_written_as_aws_does(stack: Stack) -> None:
    for alarm in alarms(stack).values():
        stats = [
            it["MetricStat"]["Metric"] for it in alarm.get("Metrics", []) if "MetricStat" in it
        ]
        for metric in [alarm, *stats]:
            if metric.get("Namespace") == "AWS/Lambda":
                assert metric["MetricName"] in LAMBDA
            if metric.get("Namespace") == "AWS/SQS":
                assert metric["MetricName"] in QUEUE


def test_alarms_ask_for_the_service_that_the_functions_call_themselves(stack: Stack) -> None:
    for function in stack.functions().values():
        assert function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] == "ocr"
        assert function["Environment"]["Variables"]["POWERTOOLS_METRICS_NAMESPACE"] == "Spotkeeper"


def test_every_function_has_an_alarm_on_errors_and_a_part_in_the_one_on_throttles(
    stack: Stack,
) -> None:
    watched = {
        alarm["Dimensions"][0]["Value"]
        for alarm in alarms(stack).values()
        if alarm.get("MetricName") == "Errors"
    }
    assert watched == stack.functions().keys()
    throttled = {
        metric["MetricStat"]["Metric"]["Dimensions"][0]["Value"]
        for metric in alarms(stack)["ThrottlesAlarm"]["Metrics"]
        if "MetricStat" in metric
    }
    assert throttled == stack.functions().keys()


def test_every_queue_of_dead_letters_has_an_alarm(stack: Stack) -> None:
    watched = {
        alarm["Dimensions"][0]["Value"].removesuffix(".QueueName")
        for alarm in alarms(stack).values()
        if alarm.get("MetricName") == "ApproximateNumberOfMessagesVisible"
    }
    assert watched == stack.resources("AWS::SQS::Queue").keys() - {"SearchLogQueue", "WakeUpQueue"}


def test_a_shortfall_that_is_not_filled_for_five_minutes_rings(stack: Stack) -> None:
    alarm = alarms(stack)["ShortfallUnfilledAlarm"]
    assert alarm["Metrics"][0]["Period"] * alarm["EvaluationPeriods"] == 300


def test_every_alarm_says_what_it_means_and_tells_somebody(stack: Stack) -> None:
    for alarm in alarms(stack).values():
        assert alarm["AlarmDescription"].endswith(".")
        assert alarm["AlarmActions"] == ["AlarmTopic"]


def test_alarms_go_to_a_topic_of_the_operators_where_one_is_given() -> None:
    topic = "arn:aws:sns:us-west-2:123456789012:pager"
    stack = Stack.with_parameters({"AlarmTopicArn": topic, "LaunchTemplateId": "lt-0"})
    assert all(alarm["AlarmActions"] == [topic] for alarm in alarms(stack).values())
