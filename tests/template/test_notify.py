"""Slack and PagerDuty (docs/notify.md): one message for one trouble, and one when it is over."""

import json

import pytest

from tests.template.stack import ADOPT, GROUPS, JOBS, Stack

NOTIFY = {"NotifySecret": "spotkeeper-notify", "NotifyChannel": "C1"}


def test_without_the_parameter_there_is_nothing() -> None:
    stack = Stack.with_parameters(ADOPT)
    assert not stack.resources("AWS::Events::ApiDestination")
    assert not stack.resources("AWS::Events::Connection")


@pytest.mark.parametrize("by", ["slack", "pagerduty"])
def test_every_alarm_begins_a_trouble_and_ends_it_by_a_valid_message(by: str) -> None:
    stack = Stack.with_parameters({**JOBS, **NOTIFY, "NotifyBy": by}, "s" * 51)
    rules = stack.resources("AWS::Events::Rule")
    alarms = {it["AlarmName"] for it in stack.resources("AWS::CloudWatch::Alarm").values()}
    for name, state in (("TroubleRule", "ALARM"), ("TroubleOverRule", "OK")):
        pattern = rules[name]["EventPattern"]
        # EventBridge's limit.
        assert len(json.dumps(pattern)) <= 2_048
        assert {*pattern["detail"]["alarmName"]} == alarms
        assert state in pattern["detail"]["state"]["value"]
        transformer = rules[name]["Targets"][0]["InputTransformer"]
        message = transformer["InputTemplate"]
        known = json.loads(message)
        assert known.get("channel", known.get("dedup_key")) in ("C1", "<arn>")
        named = {part.partition(">")[0] for part in message.split("<")[1:]}
        assert named <= transformer["InputPathsMap"].keys()
    assert ("RollOutRule" in rules) is (by == "slack")


def test_a_channel_gets_each_fleets_roll_outs_to_their_end() -> None:
    """AWS has events of its own for a refresh that is rolled back."""
    parameters = {**ADOPT, **NOTIFY, "NotifyBy": "slack", "FurtherGroupPrefix": "search-"}
    pattern = Stack.with_parameters(parameters).resources("AWS::Events::Rule")["RollOutRule"][
        "EventPattern"
    ]
    assert pattern["detail"]["AutoScalingGroupName"] == [*GROUPS, {"prefix": "search-"}]
    said = {
        each.removeprefix("EC2 Auto Scaling Instance Refresh ") for each in pattern["detail-type"]
    }
    ends = {"Started", "Succeeded", "Failed"}
    assert said == ends | {"Cancelled"} | {f"Rollback {each}" for each in ends}
