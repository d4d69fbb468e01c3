import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from spotkeeper_lab.endpoint.faults.calls import FailingCalls, Message, Receive, Send
from spotkeeper_lab.endpoint.faults.values import CallAnswer, Calls

ROLE = "AWS4-HMAC-SHA256 Credential=ASIA0123456789ABCDEF/20261120/us-east-1/{}/aws4_request, x"
OPERATOR = "AWS4-HMAC-SHA256 Credential=123456789012/20261120/us-east-1/{}/aws4_request, x"


class Service:
    """Answers 200 and remembers the bodies that it was given."""

    def __init__(self) -> None:
        self.served: list[bytes] = []

    async def __call__(self, _scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.served.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})


def call(
    calls: FailingCalls,
    body: bytes,
    *,
    by: str = ROLE,
    service: str = "autoscaling",
    target: str = "",
) -> tuple[int, bytes]:
    headers = [(b"authorization", by.format(service).encode()), (b"x-amz-target", target.encode())]
    sent: list[Message] = []
    parts = [body[:4], body[4:]]

    async def receive() -> Message:
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(calls({"type": "http", "headers": headers}, receive, send))
    start, end = sent
    return start["status"], end["body"]


def failing(fault: Calls, at_s: list[float] | None = None) -> tuple[FailingCalls, Service]:
    service, clock = Service(), at_s or [0.0]
    calls = FailingCalls(service, lambda: clock[0])
    calls.order(fault)
    return calls, service


def fault(answer: CallAnswer, action: str = "SetDesiredCapacity", share: float = 1.0) -> Calls:
    return Calls(do="calls", action=action, answer=answer, for_s=60.0, share=share)


SET = b"Action=SetDesiredCapacity&DesiredCapacity=3"


@pytest.mark.parametrize(
    ("service", "answer", "status", "code"),
    [
        ("autoscaling", CallAnswer.THROTTLED, 400, b"<Code>Throttling</Code>"),
        ("ec2", CallAnswer.THROTTLED, 503, b"<Code>RequestLimitExceeded</Code>"),
        ("autoscaling", CallAnswer.ERROR, 500, b"<Code>InternalFailure</Code>"),
        ("autoscaling", CallAnswer.DENIED, 403, b"<Code>AccessDenied</Code>"),
        ("ec2", CallAnswer.DENIED, 403, b"<Code>UnauthorizedOperation</Code>"),
    ],
)
def test_a_call_fails_in_the_words_of_its_service(
    service: str, answer: CallAnswer, status: int, code: bytes
) -> None:
    calls, behind = failing(fault(answer))
    assert call(calls, SET, service=service)[0] == status
    assert code in call(calls, SET, service=service)[1]
    assert behind.served == []


def test_a_json_service_is_told_apart_by_its_target() -> None:
    calls, behind = failing(fault(CallAnswer.THROTTLED, "UpdateItem"))
    status, body = call(calls, b"{ }  ", service="dynamodb", target="DynamoDB_20120810.UpdateItem")
    assert (status, b"ThrottlingException" in body) == (400, True)
    assert call(calls, b"{ }  ", service="dynamodb", target="DynamoDB_20120810.Query")[0] == 200
    assert len(behind.served) == 1


def test_a_whole_service_can_fail() -> None:
    calls, _ = failing(fault(CallAnswer.ERROR, "dynamodb"))
    assert call(calls, b"{ }  ", service="dynamodb", target="DynamoDB_20120810.Query")[0] == 500


def test_a_lost_answer_had_its_effect() -> None:
    calls, behind = failing(fault(CallAnswer.LOST))
    assert call(calls, SET)[0] == 500
    assert behind.served == [SET]


def test_who_deploys_or_looks_is_not_disturbed() -> None:
    calls, behind = failing(fault(CallAnswer.DENIED))
    assert call(calls, SET, by=OPERATOR) == (200, b"fine")
    assert behind.served == [SET]


def test_other_calls_go_through_whole() -> None:
    calls, behind = failing(fault(CallAnswer.DENIED))
    assert call(calls, b"Action=DetachInstances")[0] == 200
    assert behind.served == [b"Action=DetachInstances"]


def test_a_fault_ends() -> None:
    clock = [0.0]
    calls, _ = failing(fault(CallAnswer.DENIED), clock)
    clock[0] = 59.0
    assert call(calls, SET)[0] == 403
    clock[0] = 60.0
    assert call(calls, SET)[0] == 200


def test_a_share_of_calls_fails() -> None:
    calls, _ = failing(fault(CallAnswer.ERROR, share=0.5))
    failed = sum(call(calls, SET)[0] == 500 for _ in range(100))
    assert 30 < failed < 70


def test_something_is_done_once_a_call_has_had_its_effect() -> None:
    calls, behind = failing(fault(CallAnswer.ERROR, "Other"))
    killed: list[int] = []
    calls.at_next("SetDesiredCapacity", lambda: killed.append(len(behind.served)))
    assert call(calls, SET)[0] == 500
    assert (killed, behind.served) == ([1], [SET])
    assert call(calls, SET)[0] == 200
    assert killed == [1]
