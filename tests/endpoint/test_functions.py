"""Lambda as it is: time-outs, concurrency, what waits and what is tried again, batches in part."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotkeeper_lab.aws.wire import ACCOUNT, REGION
from tests.endpoint.conftest import Endpoint, allow, destination, received, until

type Make = Callable[..., str]

SLOW = """
    import time
    def handler(event, context):
        time.sleep(event["s"])
        raise LookupError("too late")
"""


def send(endpoint: Endpoint, function: str, seconds: float) -> None:
    endpoint.aws("lambda").invoke(
        FunctionName=function, InvocationType="Event", Payload=json.dumps({"s": seconds})
    )


def test_a_time_out_is_an_error_of_its_own_type(
    endpoint: Endpoint, role: Make, function: Make
) -> None:
    function("times-out", role("times-out"), SLOW, Timeout=1)
    answer = endpoint.aws("lambda").invoke(FunctionName="times-out", Payload=json.dumps({"s": 30}))
    assert answer["FunctionError"] == "Unhandled"
    told = json.load(answer["Payload"])
    assert told["errorType"] == "Sandbox.Timedout"
    assert "Task timed out after 1.00 seconds" in told["errorMessage"]


def test_an_invocation_without_concurrency_is_refused_or_waits(
    endpoint: Endpoint, role: Make, function: Make
) -> None:
    function("alone", role("alone", allow("sqs:SendMessage")), SLOW)
    client = endpoint.aws("lambda")
    client.put_function_concurrency(FunctionName="alone", ReservedConcurrentExecutions=1)
    queue = destination(endpoint, "alone-failed", "alone")
    send(endpoint, "alone", 2)
    send(endpoint, "alone", 0)

    with pytest.raises(ClientError, match="TooManyRequestsException"):
        client.invoke(FunctionName="alone", Payload=json.dumps({"s": 0}))
    records = [json.loads(received(endpoint, queue)) for _ in range(2)]
    assert sorted(one["requestPayload"]["s"] for one in records) == [0, 2]
    assert {one["responsePayload"]["errorType"] for one in records} == {"LookupError"}
    assert {one["requestContext"]["approximateInvokeCount"] for one in records} == {1}


def test_only_the_failed_part_of_a_batch_is_delivered_again(
    endpoint: Endpoint, role: Make, function: Make
) -> None:
    source = """
        def handler(event, context):
            bad = [one["messageId"] for one in event["Records"] if "bad" in one["body"]]
            return {"batchItemFailures": [{"itemIdentifier": one} for one in bad]}
    """
    sqs = endpoint.aws("sqs")
    dead = sqs.create_queue(QueueName="in-part-dead")["QueueUrl"]
    redrive = {
        "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:in-part-dead",
        "maxReceiveCount": 2,
    }
    queue = sqs.create_queue(
        QueueName="in-part",
        Attributes={"VisibilityTimeout": "1", "RedrivePolicy": json.dumps(redrive)},
    )["QueueUrl"]
    function("in-part", role("in-part", allow("sqs:*")), source, Timeout=1)
    endpoint.aws("lambda").create_event_source_mapping(
        FunctionName="in-part",
        EventSourceArn=f"arn:aws:sqs:{REGION}:{ACCOUNT}:in-part",
        FunctionResponseTypes=["ReportBatchItemFailures"],
    )
    entries = [
        {"Id": str(n), "MessageBody": text} for n, text in enumerate(["good", "bad", "fine"])
    ]
    sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert received(endpoint, dead) == "bad"

    def is_empty() -> bool:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found: dict[str, Any] = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)
        return set(found["Attributes"].values()) == {"0"}

    until(is_empty, within_s=120, what="an empty queue")


def test_processes_of_a_function_start_in_turn_and_are_reused(
    endpoint: Endpoint, role: Make, function: Make
) -> None:
    source = """
        import os, time
        time.sleep(1.0)
        def handler(event, context):
            raise LookupError(os.getpid())
    """
    function("in-turn", role("in-turn", allow("sqs:SendMessage")), source)
    queue = destination(endpoint, "in-turn-failed", "in-turn")
    for _ in range(4):
        send(endpoint, "in-turn", 0)
    records = [json.loads(received(endpoint, queue)) for _ in range(4)]
    assert len({one["responsePayload"]["errorMessage"] for one in records}) <= 2


def test_a_deleted_function_does_not_make_its_log_group_anew(
    endpoint: Endpoint, role: Make, function: Make, tmp_path: Path
) -> None:
    """It is deleted while it runs: what it logs then is lost."""
    source = """
        import pathlib, time
        def handler(event, context):
            pathlib.Path(event["begun"]).touch()
            while not pathlib.Path(event["deleted"]).exists():
                time.sleep(0.1)
            raise LookupError("too late")
    """
    allowed = role("short-lived", allow("sqs:SendMessage"))
    function("short-lived", allowed, source, Timeout=120)
    queue = destination(endpoint, "short-lived-failed", "short-lived")
    begun, deleted = tmp_path / "begun", tmp_path / "deleted"
    client, payload = endpoint.aws("lambda"), {"begun": str(begun), "deleted": str(deleted)}
    client.invoke(FunctionName="short-lived", InvocationType="Event", Payload=json.dumps(payload))
    until(begun.exists, within_s=60, what="the function runs")
    client.delete_function(FunctionName="short-lived")
    deleted.touch()
    assert received(endpoint, queue)
    found = endpoint.aws("logs").describe_log_groups(logGroupNamePrefix="/aws/lambda/short-lived")
    assert found["logGroups"] == []
