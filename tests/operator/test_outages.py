"""What an operator reads while everything fails, and afterwards, on a stack that ran."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from tests.functions.conftest import Stage, StageOf, document
from tests.operator.command import STACK, answered, deploy, intercept, record, run, words
from tests.operator.conftest import Days

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Thirty requests wait in the queue, and nobody takes one; what AWS answers to operations."""
    counts = {
        "ApproximateNumberOfMessages": "30",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
    }
    answers: dict[str, Any] = {"GetQueueAttributes": {"Attributes": counts}}
    intercept(monkeypatch, lambda _, operation, __: answers.get(operation))
    return answers


def test_a_total_outage(deployed: Stage, waiting: dict[str, Any]) -> None:
    """All instances are gone and turns go on. No output reports an earlier state as current."""
    deployed.put(
        "main", json.dumps(document("main", request_queue_url=QUEUE, sizing={"enabled": False}))
    )
    deployed.restart()
    for group in ("main-spot", "main-on-demand"):
        deployed.cloud.set_desired(group, 0)
    deployed.at(deployed.cloud.now_s + 600)
    deployed.cloud.set_desired("main-spot", 4)
    deployed.call(check_health)
    deployed.call(check_availability)
    deployed.at(deployed.cloud.now_s + 5)
    (fleet,) = json.loads(answered("status", "--json"))["fleets"]
    assert (fleet["whole"], fleet["in_service"], fleet["load"]) == (False, 0, None)
    assert fleet["waiting"]["requests"] == 30
    text = words("status")
    assert "NOT WHOLE: 0 of" in text
    assert (
        "load unknown: the newest search log is 11 min old, and no instance is in service" in text
    )
    assert "30 requests wait now" in text
    assert "workers served" not in text
    assert "requests started within" not in text
    # The age of the oldest request is not known, and all else is.
    waiting["GetMetricData"] = {"MetricDataResults": []}
    assert "wait 30 requests wait now; " in words("status")


def test_search_logs_that_nobody_counts(deployed: Stage, waiting: dict[str, Any]) -> None:
    """Workers serve and send as ever: the queue of search logs is what stands still."""
    assert waiting
    boto3.client("cloudformation").delete_stack(StackName=STACK)
    deploy(SearchLogQueueUrl=QUEUE)
    deployed.put("main", json.dumps(document("main")))
    deployed.restart()
    deployed.at(deployed.cloud.now_s + 600)
    for turn in (check_health, check_availability):
        deployed.call(turn)
    told = "no search log was counted for 11 min, while 30 messages wait"
    assert f"UNKNOWN: 4 wanted, 4 in service; {told}" in words("status")
    del waiting["GetQueueAttributes"]
    assert "11 min, while their queue does not exist" in words("status")


def test_turns_that_are_throttled_for_minutes(deployed: Stage, denied: Callable[..., None]) -> None:
    """Nothing works for four minutes. AWS takes an instance meanwhile, which is reported later."""
    deployed.at(deployed.cloud.now_s + 60)
    (taken, *_), begun = deployed.cloud.group("main-spot").instances, deployed.now
    deployed.cloud.reclaim([taken.instance_id], 0.0)
    deployed.at(deployed.cloud.now_s + 180)
    code, out, _ = run("status")
    assert code == 1
    assert "UNKNOWN: no availability turn has succeeded for 5 min" in " ".join(out.split())
    Days(deployed).minutes(2)
    text = words("explain --since 10m")
    assert "availability: NO TURN SUCCEEDED for" in text
    cause = "an instance was taken out of service in response to an EC2 health check"
    assert f"AWS took {begun:%H:%M:%S} {taken.instance_id}: {cause}" in text
    denied("DescribeScalingActivities", "Throttling")
    assert "AWS took unknown: reading the scaling activities" in words("explain --since 10m")


def test_a_record_of_a_turn_that_failed(deployed: Stage) -> None:
    failed = {
        "fleet": "main", "controller": "availability", "at": deployed.now.isoformat(),
        "action": "hold", "rule": "failed", "reason": "the turn failed: Throttled: slow down",
        "seen": {}, "unread": ["request queue: Gone: there is none"],
    }  # fmt: skip
    record(deployed, "availability", failed)
    assert "FAILING availability: 1 turn has failed since" in words("status")
    assert "availability: FAILED why the turn failed: Throttled: slow down" in words("explain")
    text = words("doctor")
    assert "ERROR turns-failed main" in text
    assert "1 of the last 9 availability turns; the last at 2026-11-20 12:18 UTC" in text
    assert "its newest turn went on without request queue: Gone: there is none" in text


SERVICES = {
    "status": ("dynamodb", "sqs", "cloudwatch", "autoscaling"),
    "status --instances": ("dynamodb", "sqs", "ec2"),
    "status --events": ("dynamodb", "autoscaling"),
}


@pytest.mark.parametrize("line", SERVICES)
def test_a_service_that_hangs_is_waited_for_once_and_not_for_each_fleet(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Each wait takes three quarters of a minute: a hundred fleets would take hours."""
    names = tuple(f"fleet-{n}" for n in range(4))
    stage = stage_of(names)
    deploy()
    for name in names:
        stage.put(name, json.dumps(document(name, request_queue_url=QUEUE + name)))
    for hangs in SERVICES[line]:
        asked: list[str] = []

        def hang(client: BaseClient, operation: str, _: object) -> None:
            if client.meta.service_model.service_name == hangs:  # noqa: B023 - called in this turn
                asked.append(operation)  # noqa: B023
                raise ReadTimeoutError(endpoint_url=operation)

        with monkeypatch.context() as once:
            intercept(once, hang)
            code, out, _ = run(*line.split())
        # The copy of the documents is read once, with little patience.
        assert (code, len(asked)) == (1, 2 if hangs == "dynamodb" else 1), (hangs, asked)
        text = " ".join(out.split())
        assert text.count("Read timeout on endpoint URL") >= 1
        assert hangs in ("autoscaling", "cloudwatch") or "did not answer before" in text
        assert all(f"{name}: " in text or f"{name} " in text for name in names)
