"""The doctor's eyes on a deployed stack, on moto: what somebody switched off."""

import io
import zipfile
from dataclasses import asdict
from typing import Any

import boto3
import pytest

from spotkeeper.adapters.doctor.stack import stack_facts
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import StackFacts
from tests.contract.conftest import TABLE

TRUST = '{"Version": "2012-10-17", "Statement": []}'
PREFIX = "arn:aws:lambda:us-east-1:123456789012:function:"

pytestmark = pytest.mark.usefixtures("dynamodb")


def rule(name: str, *, on: bool, target: bool = True) -> tuple[str, str]:
    client = boto3.client("events")
    client.put_rule(Name=name, EventPattern='{"source": ["aws.ec2"]}')
    if target:
        client.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": f"{PREFIX}x"}])
    if not on:
        client.disable_rule(Name=name)
    return "AWS::Events::Rule", name


def schedule(name: str, *, on: bool) -> tuple[str, str]:
    boto3.client("scheduler").create_schedule(
        Name=name,
        ScheduleExpression="rate(1 minute)",
        FlexibleTimeWindow={"Mode": "OFF"},
        State="ENABLED" if on else "DISABLED",
        Target={"Arn": f"{PREFIX}x", "RoleArn": "arn:aws:iam::123456789012:role/schedules"},
    )
    return "AWS::Scheduler::Schedule", name


def function(name: str, *, on: bool) -> tuple[str, str]:
    role = boto3.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", "")
    client = boto3.client("lambda")
    client.create_function(
        FunctionName=name, Runtime="python3.13", Handler="app.handler", Role=role["Role"]["Arn"],
        Code={"ZipFile": packed.getvalue()},
    )  # fmt: skip
    if not on:
        client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    return "AWS::Lambda::Function", name


def source(name: str, *, on: bool) -> tuple[str, str]:
    sqs = boto3.client("sqs")
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    mapping = boto3.client("lambda").create_event_source_mapping(
        EventSourceArn=arn["QueueArn"], FunctionName="collect", Enabled=on
    )
    return "AWS::Lambda::EventSourceMapping", mapping["UUID"]


def alarm(name: str, *, on: bool) -> tuple[str, str]:
    boto3.client("cloudwatch").put_metric_alarm(
        AlarmName=name, Namespace="Spotkeeper", MetricName="Errors", Period=60, Threshold=1,
        EvaluationPeriods=1, ComparisonOperator="GreaterThanThreshold", Statistic="Sum",
        ActionsEnabled=on,
    )  # fmt: skip
    return "AWS::CloudWatch::Alarm", name


def facts_of(*resources: tuple[str, str], **outputs: str) -> StackFacts:
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    stack = Stack(
        name="spotkeeper",
        outputs={"AlarmTopicArn": topic, "TableName": TABLE} | outputs,
        parameters={},
        resources={str(at): resource for at, resource in enumerate(resources)},
    )
    make: Any = boto3.client
    return stack_facts(make, stack, [])


def test_what_is_switched_off_is_named_and_nothing_else() -> None:
    works = [
        function("collect", on=True), schedule("check-health", on=True), alarm("errors", on=True),
        rule("terminations", on=True), source("wake-ups", on=True),
    ]  # fmt: skip
    assert facts_of(*works) == StackFacts(nobody_told=True, sends_search_logs="")
    queue = source("search-logs", on=False)
    lost = boto3.client("sqs").create_queue(QueueName="lost")["QueueUrl"]
    boto3.client("sqs").delete_queue(QueueUrl=lost)
    found = facts_of(
        *works,
        queue,
        function("check", on=False),
        schedule("check-availability", on=False),
        rule("warnings", on=False),
        rule("no-target", on=True, target=False),
        alarm("both-short", on=False),
        ("AWS::SQS::Queue", lost),
        ("AWS::SQS::Queue", boto3.client("sqs").create_queue(QueueName="kept")["QueueUrl"]),
    )
    named = {name: names for name, names in asdict(found).items() if isinstance(names, tuple)}
    assert {name: names for name, names in named.items() if names} == {
        "schedules_disabled": ("check-availability",),
        "rules_disabled": ("warnings",),
        "rules_without_target": ("no-target",),
        "queues_unread": (queue[1],),
        "queues_gone": ("lost",),
        "stopped_functions": ("check",),
        "silenced_alarms": ("both-short",),
    }


def test_subscribers_of_the_alarms_are_read() -> None:
    topic = boto3.client("sns").create_topic(Name="alarms")["TopicArn"]
    boto3.client("sns").subscribe(TopicArn=topic, Protocol="email", Endpoint="ops@example.org")
    assert not facts_of().nobody_told
    assert facts_of(AlarmTopicArn=f"{topic}-gone").nobody_told is True
