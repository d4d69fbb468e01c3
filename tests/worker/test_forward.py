"""The forwarder: what SQS never takes does not block what it takes; test_rabbitmq has a broker."""

from types import SimpleNamespace
from typing import Any

import pytest

from spotkeeper_worker.agent import forward
from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.agent.forward import LONGEST, Forwarder, as_sqs_text

NOT_FOR_SQS = [
    "{}".encode("utf-16-le"), b"\x00", b"a \x1f", "\ufffe".encode(), "\uffff".encode(), b"\xff",
    b"\xed\xa0\x80", b"", b"x" * (LONGEST + 1),
]  # fmt: skip
FOR_SQS = ["\t\r\n ", "\x7f\x85", "\ue000\ufffd", "\U0001f600", "ü", "x" * LONGEST]


def test_which_messages_sqs_takes() -> None:
    """Those of the SQS API reference, SendMessage."""
    assert [as_sqs_text(body) for body in NOT_FOR_SQS] == [None] * len(NOT_FOR_SQS)
    assert [as_sqs_text(text.encode()) for text in FOR_SQS] == FOR_SQS


@pytest.mark.parametrize(
    ("body", "codes", "then"),
    [
        (b"log", [], "acknowledged"),
        (b"\xff", [], "rejected"),
        (b"log", ["InvalidMessageContents"], "rejected"),
        (b"log", ["InvalidParameterValueException"], "rejected"),
        (b"log", ["MessageTooLong"], "rejected"),
        (b"log", ["AccessDenied", "MessageTooLong"], "rejected"),
        (b"log", ["AccessDenied"], "acknowledged"),
        # A stop does not wait for it.
        (b"log", ["AccessDenied", "stop"], ""),
    ],
)
def test_what_becomes_of_a_message(
    body: bytes, codes: list[str], then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SQS does not take now is kept and tried again."""
    monkeypatch.setattr(forward, "_FIRST_RETRY_S", 0.0)
    became: list[str] = []
    left = list(codes)

    def send(text: str) -> None:
        code = left.pop(0) if left else ""
        if code == "stop":
            forwarder.stopping.set()
        if code:
            raise AwsError("SendMessage", code, "no")

    def consume(queue: str, inactivity_timeout: float) -> Any:
        if became:
            forwarder.stopping.set()
            return iter([(None, None, None)])
        return iter([(SimpleNamespace(delivery_tag=1), None, body)])

    def reject(tag: int, requeue: bool) -> None:
        became.append("requeued" if requeue else "rejected")

    channel = SimpleNamespace(
        consume=consume, cancel=lambda: None, basic_reject=reject,
        basic_ack=lambda tag: became.append("acknowledged"),
    )  # fmt: skip
    here: Any = SimpleNamespace(keep=lambda session, *_: session(channel))
    forwarder = Forwarder(here, "search-logs", send)
    forwarder.run()
    assert became == ([then] if then else [])
