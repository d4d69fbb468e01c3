"""The doctor's eyes on a deployed stack, on moto: what somebody switched off."""

import io
import zipfile
from typing import Any

import boto3
import pytest

from spotkeeper.adapters.doctor.stack import stack_facts
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import StackFacts
from tests.contract.conftest import TABLE

TRUST = '{"Version": "2012-10-17", "Statement": []}'


pytestmark = pytest.mark.usefixtures("dynamodb")


def rule(name: str, *, on: bool) -> tuple[str, str]:
    client = boto3.client("events")
    client.put_rule(Name=name, EventPattern='{"source": ["aws.ec2"]}')
    if not on:
        client.disable_rule(Name=name)
    return "AWS::Events::Rule", name


def schedule(name: str, *, on: bool) -> tuple[str, str]:
    boto3.client("scheduler").create_schedule(
        Name=name,
        ScheduleExpression="rate(1 minute)",
        FlexibleTimeWindow={"Mode": "OFF"},
        State="ENABLED" if on else "DISABLED",
        Target={
            "Arn": "arn:aws:lambda:us-east-1:123456789012:function:check",
            "RoleArn": "arn:aws:iam::123456789012:role/schedules",
        },
    )
    return "AWS::Scheduler::Schedule", name


def collector() -> str:
    """Make a function; its name."""
    role = boto3.client("iam").create_role(RoleName="collect", AssumeRolePolicyDocument=TRUST)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", "")
    boto3.client("lambda").create_function(
        FunctionName="collect",
        Runtime="python3.13",
        Handler="app.handler",
        Role=role["Role"]["Arn"],
        Code={"ZipFile": packed.getvalue()},
    )
    return "collect"


def source(function: str, name: str, *, on: bool) -> tuple[str, str]:
    sqs = boto3.client("sqs")
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    mapping = boto3.client("lambda").create_event_source_mapping(
        EventSourceArn=arn["QueueArn"], FunctionName=function, Enabled=on
    )
    return "AWS::Lambda::EventSourceMapping", mapping["UUID"]


def facts_of(*resources: tuple[str, str]) -> StackFacts:
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    stack = Stack(
        name="spotkeeper",
        outputs={"AlarmTopicArn": topic, "TableName": TABLE},
        parameters={},
        resources={str(at): resource for at, resource in enumerate(resources)},
    )
    make: Any = boto3.client
    return stack_facts(make, stack, [])


def test_what_is_switched_off_is_named_and_nothing_else() -> None:
    function = collector()
    off = source(function, "search-logs", on=False)
    facts = facts_of(
        schedule("check-health", on=True),
        schedule("check-availability", on=False),
        rule("warnings", on=False),
        rule("terminations", on=True),
        off,
        source(function, "wake-ups", on=True),
    )
    assert facts.schedules_disabled == ("check-availability",)
    assert facts.rules_disabled == ("warnings",)
    assert facts.queues_unread == (off[1],)


def test_rules_without_a_target_stopped_functions_and_silenced_alarms_are_named() -> None:
    function, cloudwatch = collector(), boto3.client("cloudwatch")
    boto3.client("lambda").put_function_concurrency(
        FunctionName=function, ReservedConcurrentExecutions=0
    )
    for name in ("errors", "both-short"):
        cloudwatch.put_metric_alarm(
            AlarmName=name, Namespace="Spotkeeper", MetricName="Errors", Period=60, Threshold=1,
            EvaluationPeriods=1, ComparisonOperator="GreaterThanThreshold", Statistic="Sum",
            ActionsEnabled=name == "errors",
        )  # fmt: skip
    warnings, terminations = rule("warnings", on=True), rule("terminations", on=True)
    boto3.client("events").put_targets(
        Rule="warnings", Targets=[{"Id": "1", "Arn": "arn:aws:lambda:us-east-1:1:function:x"}]
    )
    facts = facts_of(
        warnings,
        terminations,
        ("AWS::Lambda::Function", function),
        ("AWS::CloudWatch::Alarm", "errors"),
        ("AWS::CloudWatch::Alarm", "both-short"),
    )
    assert facts.rules_without_target == ("terminations",)
    assert facts.stopped_functions == (function,)
    assert facts.silenced_alarms == ("both-short",)


def test_alarms_without_a_subscription_are_told_by_nobody() -> None:
    assert facts_of().nobody_told
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    boto3.client("sns").subscribe(TopicArn=topic, Protocol="email", Endpoint="ops@example.org")
    assert not facts_of().nobody_told
