"""What an operator reads while everything fails, and afterwards, on a stack that ran."""

import json
from collections.abc import Callable

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ReadTimeoutError

from tests.functions.conftest import Stage, StageOf, document
from tests.operator.command import deploy, intercept, run, words
from tests.operator.conftest import Days

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"


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
