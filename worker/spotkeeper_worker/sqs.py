"""The loop over an SQS request queue: take one, serve it, delete it.

    from spotkeeper_worker import Worker
    from spotkeeper_worker.sqs import serve

    with Worker() as worker:
        load_model()
        worker.ready()
        worker.stop_on_signals()
        serve(worker, QUEUE_URL, lambda body: answer(body))

Needs boto3 (`pip install 'spotkeeper-worker[sqs]'`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from spotkeeper_worker.extras import needs
from spotkeeper_worker.log import get_logger

with needs("sqs"):
    from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spotkeeper_worker.worker import Request, Worker

_LOG = get_logger("worker")
# A client of asyncio raises its own, too.
AWS_ERRORS = (BotoCoreError, ClientError, OSError)
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0
_REMEMBERED = 1000
VISIBILITY_S = 60.0
WAIT_S = 10


def serve(
    worker: Worker,
    queue_url: str,
    handle: Callable[[str], Any],
    *,
    client: Any = None,
    visibility_s: float = VISIBILITY_S,
    wait_s: int = WAIT_S,
) -> None:
    """Serve until `worker.stop`. What `handle` raises is logged; the message is received again.

    `visibility_s` is renewed while a message is served: the message of a worker that dies
    is visible again after it. `wait_s` is the length of a long poll, and the longest that a stop
    takes.
    """
    if client is None:
        with needs("sqs"):
            import boto3
        client = boto3.client("sqs")
    _SqsLoop(Calls(worker, queue_url, visibility_s, wait_s), handle, client).run()


@dataclass
class Calls:
    """What to ask of a queue, and what its answers mean; the loop of threads or asyncio asks."""

    worker: Worker
    url: str
    visibility_s: float
    wait_s: int
    retry_s: float = _FIRST_RETRY_S
    served: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def receive(self, at_most: int = 1) -> dict[str, Any]:
        """Give the parameters of ReceiveMessage."""
        return {
            "QueueUrl": self.url,
            "AttributeNames": ["SentTimestamp"],
            "MaxNumberOfMessages": at_most,
            "WaitTimeSeconds": self.wait_s,
            "VisibilityTimeout": int(self.visibility_s),
        }

    def received(self, answer: Any) -> list[Any]:
        """Give the messages of an answer."""
        self.retry_s = _FIRST_RETRY_S
        return list(answer.get("Messages", []))

    def refused(self, error: Exception) -> float:
        """Log why nothing was received; return the seconds to wait before a retry."""
        wait_s = self.retry_s
        _LOG.error("no request could be received; retrying in %g s: %s", wait_s, error)
        self.retry_s = min(2 * wait_s, _LAST_RETRY_S)
        return wait_s

    def named(self, message: Any) -> tuple[str, float]:
        """Give the id of a message, and since when it waits."""
        return message["MessageId"], int(message["Attributes"]["SentTimestamp"]) / 1000

    def delete(self, message: Any) -> ToAsk:
        """Have a message deleted; if that fails, it is not served once more."""
        self.served.append(message["MessageId"])
        failure = "%s was served and could not be deleted: %s"
        return ToAsk("delete_message", message, self._named(message), failure)

    def show_again(self, message: Any, seconds: float) -> ToAsk:
        """Have a message visible again after these seconds."""
        given = {**self._named(message), "VisibilityTimeout": int(seconds)}
        failure = "the hold on %s was not changed: %s"
        return ToAsk("change_message_visibility", message, given, failure)

    def _named(self, message: Any) -> dict[str, Any]:
        return {"QueueUrl": self.url, "ReceiptHandle": message["ReceiptHandle"]}

    @property
    def look_s(self) -> float:
        """How often to step the holds."""
        return min(self.visibility_s / 3, 1.0)


class ToAsk(NamedTuple):
    """A call of SQS about a message, and what to log if it fails."""

    method: str
    message: Any
    given: dict[str, Any]
    failure: str


@contextlib.contextmanager
def reported(to_ask: ToAsk) -> Iterator[None]:
    """Log how a call failed, and go on."""
    try:
        yield
    except AWS_ERRORS as error:
        _LOG.error(to_ask.failure, to_ask.message["MessageId"], error)


class Hold:
    """A message while it is served: when its visibility is renewed, and when it is handed back."""

    def __init__(self, calls: Calls, message: Any, log: Request) -> None:
        self._calls, self._message, self._log = calls, message, log
        self._renewed_at: float | None = None
        self.is_over = False
        """Whether the message was handed back."""

    def step(self, now: float) -> ToAsk | None:
        """Give the call to make now: a renewal, or a hand-back."""
        calls = self._calls
        if calls.worker.must_hand_back:
            self.is_over, self._log.status = True, "timeout"
            _LOG.warning(
                "%s was returned to the queue: the machine goes", self._message["MessageId"]
            )
            return calls.show_again(self._message, 0)
        if self._renewed_at is None:
            self._renewed_at = now
        elif now - self._renewed_at >= calls.visibility_s / 3:
            self._renewed_at = now
            return calls.show_again(self._message, calls.visibility_s)
        return None


@dataclass
class _SqsLoop:
    calls: Calls
    handle: Callable[[str], Any]
    client: Any

    def run(self) -> None:
        worker = self.calls.worker
        while not worker.stopping:
            if not self.step():
                worker.wait(0.2)

    def step(self) -> bool:
        """Take a message and deal with it; False while the machine may take none."""
        calls = self.calls
        if not calls.worker.may_take:
            return False
        try:
            answer = self.client.receive_message(**calls.receive())
        except AWS_ERRORS as error:
            calls.worker.wait(calls.refused(error))
            return True
        for message in calls.received(answer):
            if message["MessageId"] in calls.served:
                self._ask(calls.delete(message))
            elif not calls.worker.may_take:
                # The drain began during the long poll.
                self._ask(calls.show_again(message, 0))
            else:
                self._serve(message)
        return True

    def _serve(self, message: Any) -> None:
        calls = self.calls
        try:
            request = calls.worker.request(*calls.named(message))
            with request as log, self._held(Hold(calls, message, log)):
                self.handle(message["Body"])
        except Exception:  # noqa: BLE001 - whatever a request raises, the worker goes on
            _LOG.exception("request %s failed; SQS delivers it again", message["MessageId"])
            return
        except BaseException:
            self._ask(calls.show_again(message, 0))
            raise
        self._ask(calls.delete(message))

    @contextlib.contextmanager
    def _held(self, hold: Hold) -> Iterator[None]:
        """Hold a message while it is served, from a thread of its own."""
        served = threading.Event()

        def run() -> None:
            while not hold.is_over:
                to_ask = hold.step(time.monotonic())
                if to_ask:
                    self._ask(to_ask)
                if served.wait(self.calls.look_s):
                    return

        thread = threading.Thread(target=run, name="hold", daemon=True)
        thread.start()
        try:
            yield
        finally:
            served.set()
            thread.join()

    def _ask(self, to_ask: ToAsk) -> None:
        with reported(to_ask):
            getattr(self.client, to_ask.method)(**to_ask.given)
