"""What an operator reads while everything fails, and afterwards, on a stack that ran."""

import json
from collections.abc import Callable

import boto3
import pytest

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from tests.functions.conftest import Stage, document
from tests.operator.command import answered, intercept, run
from tests.operator.days import Days

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty requests wait in the queue, and nobody takes one."""
    counts = {
        "ApproximateNumberOfMessages": "30",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
    }
    answers = {"GetQueueAttributes": {"Attributes": counts}}
    intercept(monkeypatch, lambda _, operation, __: answers.get(operation))


def words(*arguments: str) -> str:
    return " ".join(answered(*arguments).split())


@pytest.mark.usefixtures("waiting")
def test_a_total_outage(deployed: Stage) -> None:
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


def test_turns_that_are_throttled_for_minutes(deployed: Stage, denied: Callable[..., None]) -> None:
    """Nothing works for four minutes. AWS takes an instance meanwhile, which is reported later."""
    deployed.at(deployed.cloud.now_s + 60)
    (taken, *_), begun = deployed.cloud.group("main-spot").instances, deployed.now
    deployed.cloud.reclaim([taken.instance_id], 0.0)
    deployed.at(deployed.cloud.now_s + 180)
    code, out, _ = run("status")
    assert code == 1
    assert "UNKNOWN: no availability turn has worked for 5 min" in " ".join(out.split())
    Days(deployed).minutes(2)
    text = words("explain", "--since", "10m")
    assert "availability: NO TURN WORKED for" in text
    cause = "an instance was taken out of service in response to an EC2 health check"
    assert f"AWS took {begun:%H:%M:%S} {taken.instance_id}: {cause}" in text
    denied("DescribeScalingActivities", "Throttling")
    assert "AWS took unknown: reading the scaling activities" in words("explain", "--since", "10m")


def test_a_record_of_a_turn_that_failed(deployed: Stage) -> None:
    at = deployed.now.isoformat()
    failed = {
        "fleet": "main", "controller": "availability", "at": at, "action": "hold",
        "rule": "failed", "reason": "the turn failed: Throttled: slow down", "seen": {},
    }  # fmt: skip
    boto3.client("dynamodb").put_item(
        TableName="spotkeeper",
        Item={
            "pk": {"S": "fleet#main"},
            "sk": {"S": f"decision#{at}#availability#0"},
            "record": {"S": json.dumps(failed)},
        },
    )
    assert "FAILING availability: 1 turn has failed since" in words("status")
    assert "availability: FAILED why the turn failed: Throttled: slow down" in words("explain")
    text = " ".join(run("doctor")[1].split())
    assert "ERROR turns-failed main" in text
    assert "1 of the last 9 availability turns; the last at 2026-11-20 12:18 UTC" in text
