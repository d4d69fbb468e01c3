"""Alarms and dashboard look at metrics that exist: ours are emitted by the code."""

import json
import re
from dataclasses import fields
from typing import Any

from spotkeeper.domain.decision import AvailabilityFigures, Controller, HealthFigures
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.observability import COUNTS, DAILY, LEVELS, ZEROS_SENT
from spotkeeper_lab.alarms import EXTRA_PERIODS
from spotkeeper_lab.template import PSEUDO
from spotkeeper_operator.status.looked import ALARMS
from tests.template.stack import ADOPT, Stack

BOARD, REGION = "AWS::CloudWatch::Dashboard", PSEUDO["AWS::Region"]
FIGURES = (AvailabilityFigures, HealthFigures)
OF_JOBS = "JobsStuck"
"""The metric of a stack with jobs."""
QUERY = re.compile(
    r"SELECT \w+\((\w+)\) FROM SCHEMA\(Spotkeeper, service, fleet\) "
    r"WHERE service = 'ocr' GROUP BY fleet$"
)
SEARCH = re.compile(
    r"SEARCH\('\{Spotkeeper,service,fleet\} service=\"ocr\" "
    r"MetricName=(?P<names>[^']+)', '(?:Maximum|Sum)', (?:60|3600)\)"
)


def alarms(stack: Stack) -> dict[str, Any]:
    return stack.resources("AWS::CloudWatch::Alarm")


def own_metric(alarm: dict[str, Any]) -> str | None:
    """Name the metric of ours that an alarm watches."""
    if alarm.get("Namespace") == "Spotkeeper":
        return str(alarm["MetricName"])
    found = [QUERY.match(it["Expression"]) for it in alarm.get("Metrics", []) if "Expression" in it]
    return next((match[1] for match in found if match), None)


def dashboard(stack: Stack) -> list[dict[str, Any]]:
    [board] = stack.resources(BOARD).values()
    widgets: list[dict[str, Any]] = json.loads(board["DashboardBody"])["widgets"]
    return widgets


def expressions(widget: dict[str, Any]) -> list[str]:
    return [line["expression"] for [line] in widget["properties"].get("metrics", [])]


def test_the_status_knows_every_alarm(stack: Stack) -> None:
    names = {alarm["AlarmName"].removeprefix("ocr-") for alarm in alarms(stack).values()}
    assert names | {"job-stuck"} == ALARMS
    assert ("job-stuck" in names) is ("KeepJobs" in stack.functions())


def test_alarms_and_dashboard_use_metrics_that_are_sent(stack: Stack) -> None:
    watched = {name for alarm in alarms(stack).values() if (name := own_metric(alarm))}
    searched = [
        found["names"]
        for widget in dashboard(stack)
        for expression in expressions(widget)
        for found in SEARCH.finditer(expression)
    ]
    # Filled with zeros, a gap would say that nothing is missing while Spotkeeper itself is down.
    assert "FILL(" not in str(dashboard(stack))
    shown = {name for names in searched for name in re.findall(r'"(\w+)"', names)}
    assert (watched | shown) - {OF_JOBS} == LEVELS.keys() | COUNTS | {DAILY}
    assert watched - {DAILY, OF_JOBS} <= shown, "every figure that rings is drawn"


def test_the_dashboard_looks_at_figures_that_turns_have(stack: Stack) -> None:
    shown = " ".join([it["properties"].get("query", "") for it in dashboard(stack)])
    named = set(re.findall(r"figures\.(\w+)", shown))
    assert len(named) > 5
    assert named <= {each.name for kind in FIGURES for each in fields(kind)}


def test_a_stack_with_jobs_shows_their_steps_and_their_alarm(stack: Stack) -> None:
    shown = [it["properties"].get("query", "") for it in dashboard(stack)]
    steps = [query for query in shown if f"controller = '{Controller.JOBS}'" in query]
    assert bool(steps) is ("KeepJobs" in stack.functions())


def test_the_widgets_lie_side_by_side_and_never_on_each_other(stack: Stack) -> None:
    taken = [
        (column, row)
        for it in dashboard(stack)
        for column in range(it["x"], it["x"] + it["width"])
        for row in range(it["y"], it["y"] + it["height"])
    ]
    assert len(taken) == len(set(taken))
    assert max(column for column, _ in taken) == 23


def test_the_dashboard_has_every_alarm(stack: Stack) -> None:
    [shown] = [it["properties"] for it in dashboard(stack) if it["type"] == "alarm"]
    assert {name.removesuffix(".Arn") for name in shown["alarms"]} == alarms(stack).keys()


def test_stacks_of_one_name_have_dashboards_in_each_region_and_the_homes_shows_any(
    stack: Stack,
) -> None:
    """A dashboard is global in its account; a variable changes the region of every widget."""
    there = "arn:aws:dynamodb:us-east-2:123456789012:table/there"
    home = Stack.with_parameters({**ADOPT, "Regions": there}).resources(BOARD)["Dashboard"]
    assert home["DashboardName"] == f"ocr-{REGION}"
    [variable] = json.loads(home["DashboardBody"])["variables"]
    assert (variable["property"], variable["defaultValue"]) == ("region", REGION)
    of = [widget["properties"].get("region") for widget in dashboard(stack)[1:]]
    assert of == [REGION] * len(of)
    [alone] = stack.resources(BOARD).values()
    assert "variables" not in json.loads(alone["DashboardBody"])


def test_checkers_that_do_not_run_ring_without_any_data_too(stack: Stack) -> None:
    """In a new stack one may start first: tests/template/test_alarms.py has the minutes."""
    assert alarms(stack)["CheckerNotRunningAlarm"]["InsufficientDataActions"] == ["AlarmTopic"]


# A message that was received so often is at the back of the queue and in no age.
RECEIVED_UNTIL_IT_IS_LEFT_OUT = 4


def test_one_unreadable_search_log_does_not_ring_for_waiting_logs(stack: Stack) -> None:
    alarm, queue = alarms(stack)["OldestMessageAlarm"], stack.resources()["SearchLogQueue"]
    seen_s = (RECEIVED_UNTIL_IT_IS_LEFT_OUT - 1) * queue["VisibilityTimeout"]
    # What lies across a minute's end is in both minutes.
    breaching_s = seen_s - alarm["Threshold"] + alarm["Period"]
    assert alarm["Period"] * alarm["EvaluationPeriods"] > breaching_s
    # The age of what really waits only grows: it rings within a quarter of an hour.
    assert alarm["Threshold"] + alarm["Period"] * alarm["EvaluationPeriods"] < 900


# Before the first invocation there is no data, as after the last: no change of state. The doctor
# looks once a day, and an idle queue sends nothing while its letters lie there.
MISSING = {
    "CheckerNotRunningAlarm": "missing",
    **dict.fromkeys(("DoctorAlarm", "SearchLogDeadLettersAlarm"), "ignore"),
}


def test_missing_data_is_quiet_but_for_three_alarms_and_zeros_follow(stack: Stack) -> None:
    for name, alarm in alarms(stack).items():
        assert alarm["TreatMissingData"] == MISSING.get(name, "notBreaching")
        if own_metric(alarm) not in {None, DAILY}:
            assert alarm["EvaluationPeriods"] + EXTRA_PERIODS <= ZEROS_SENT


def test_a_shortfall_rings_when_it_lasts_longer_than_launches_may_take(stack: Stack) -> None:
    """A fleet that grows is short for a cold start: a demo's day rang 29 times at five minutes."""
    alarm = alarms(stack)["ShortfallUnfilledAlarm"]
    lasts_s = alarm["Metrics"][0]["Period"] * alarm["EvaluationPeriods"]
    assert lasts_s > AvailabilityPolicy().launch_deadline_s


def test_alarms_go_to_a_topic_of_the_operators_where_one_is_given(stack: Stack) -> None:
    topic = "arn:aws:sns:us-west-2:123456789012:pager"
    given = Stack.with_parameters({"AlarmTopicArn": topic, "LaunchTemplateId": "lt-0"})
    for each, expected in ((stack, "AlarmTopic"), (given, topic)):
        assert all(alarm["AlarmActions"] == [expected] for alarm in alarms(each).values())
