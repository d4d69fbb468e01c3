"""The forwarder: what SQS never takes does not block what it takes; test_rabbitmq has a broker."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.agent.forward import PREFETCH, Forwarder


def nothing() -> None:
    """Do nothing."""


class Channel:
    """A channel that has some messages, and remembers what became of them."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.connection = self
        self.moved: list[int] = []
        self.rejected: list[int] = []
        self.slept: list[float] = []
        self.when_empty: Callable[[], None] = nothing
        self.when_slept: Callable[[], None] = nothing
        self._bodies = dict(enumerate(bodies))

    def consume(self, queue: str, inactivity_timeout: float) -> Iterator[tuple[Any, Any, Any]]:
        for tag in list(self._bodies):
            yield SimpleNamespace(delivery_tag=tag), None, self._bodies.pop(tag)
        self.when_empty()
        yield None, None, None

    def basic_ack(self, tag: int) -> None:
        self.moved.append(tag)

    def basic_reject(self, tag: int, requeue: bool) -> None:
        assert not requeue
        self.rejected.append(tag)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.when_slept()

    def cancel(self) -> None:
        """Nothing waits here."""


def made(channel: Channel, queue: "Queue") -> Forwarder:
    """A forwarder whose broker is there at once."""
    here: Any = SimpleNamespace(keep=lambda session, *_: session(channel))
    return Forwarder(here, "search-logs", queue.send)


class Queue:
    """SQS, that answers with an error what has one."""

    def __init__(self, *errors: str) -> None:
        self.bodies: list[str] = []
        self.errors = list(errors)
        self.tried = 0

    def send(self, body: str) -> None:
        self.tried += 1
        if self.errors:
            raise AwsError("SendMessage", self.errors.pop(0), "no")
        self.bodies.append(body)


def forwarded(channel: Channel, queue: Queue) -> None:
    forwarder = made(channel, queue)
    channel.when_empty = forwarder.stop
    forwarder.run()
    assert len(channel.moved + channel.rejected) == PREFETCH


# https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html
@pytest.mark.parametrize(
    "body",
    [
        "{}".encode("utf-16-le"),
        b"\x00",
        b"a \x1f",
        "\ufffe".encode(),
        "\uffff".encode(),
        b"\xff",
        b"\xed\xa0\x80",
        b"",
        b"x" * (256 * 1024 + 1),
    ],
)
def test_what_sqs_does_not_take_is_rejected_and_the_others_move(body: bytes) -> None:
    channel, queue = Channel([body, *[b"log"] * (PREFETCH - 1)]), Queue()
    forwarded(channel, queue)
    assert (channel.rejected, queue.bodies) == ([0], ["log"] * (PREFETCH - 1))


@pytest.mark.parametrize("text", ["\t\r\n ", "\x7f\x85", "\ue000\ufffd", "\U0001f600", "ü"])
def test_every_character_that_sqs_takes_moves(text: str) -> None:
    channel, queue = Channel([text.encode()] * PREFETCH), Queue()
    forwarded(channel, queue)
    assert (channel.rejected, queue.bodies) == ([], [text] * PREFETCH)


@pytest.mark.parametrize(
    "code",
    [
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "MessageTooLong",
    ],
)
def test_what_sqs_says_that_it_never_takes_is_rejected(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:
    channel, queue = Channel([b"log"] * PREFETCH), Queue(code)
    forwarded(channel, queue)
    assert (channel.rejected, len(queue.bodies)) == ([0], PREFETCH - 1)
    assert code in caplog.text


def test_what_sqs_does_not_take_now_stays_and_a_stop_does_not_wait_for_it() -> None:
    channel, queue = Channel([b"log"]), Queue(*["AccessDenied"] * 100)
    forwarder = made(channel, queue)
    channel.when_slept = forwarder.stop
    forwarder.run()
    assert (channel.moved, channel.rejected, queue.tried) == ([], [], 1)
    assert len(channel.slept) == 1
    assert channel.slept[0] <= 0.5
