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
from typing import TYPE_CHECKING, Any, Callable

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

    def delete(self, message: Any) -> dict[str, Any]:
        """Give the parameters of DeleteMessage; if that fails, it is not served once more."""
        self.served.append(message["MessageId"])
        return {"QueueUrl": self.url, "ReceiptHandle": message["ReceiptHandle"]}

    def show_again(self, message: Any, seconds: float) -> dict[str, Any]:
        """Give the parameters of ChangeMessageVisibility."""
        handle = message["ReceiptHandle"]
        return {"QueueUrl": self.url, "ReceiptHandle": handle, "VisibilityTimeout": int(seconds)}


@contextlib.contextmanager
def reported(text: str, message: Any) -> Iterator[None]:
    """Log how a call about a message failed, and go on."""
    try:
        yield
    except AWS_ERRORS as error:
        _LOG.error(text, message["MessageId"], error)


NOT_DELETED = "%s was served and could not be deleted: %s"
NOT_CHANGED = "the hold on %s was not changed: %s"


class Hold:
    """A message while it is served: when its visibility is renewed, and when it is handed back."""

    def __init__(self, calls: Calls, message: Any, log: Request) -> None:
        self.message = message
        self._calls, self._log = calls, log
        self._renewed_at: float | None = None
        self.is_over = False
        """Whether the message was handed back."""

    def step(self, now: float) -> float | None:
        """Give the visibility to set now, in seconds: 0 hands it back, None changes nothing."""
        if self._calls.worker.must_hand_back:
            self.is_over, self._log.status = True, "timeout"
            _LOG.warning(
                "%s was returned to the queue: the machine goes", self.message["MessageId"]
            )
            return 0.0
        if self._renewed_at is None:
            self._renewed_at = now
        elif now - self._renewed_at >= self._calls.visibility_s / 3:
            self._renewed_at = now
            return self._calls.visibility_s
        return None

    @property
    def look_s(self) -> float:
        """How often to step."""
        return min(self._calls.visibility_s / 3, 1.0)


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
                self._delete(message)
            elif not calls.worker.may_take:
                # The drain began during the long poll.
                self._show_again(message, 0)
            else:
                self._serve(message)
        return True

    def _serve(self, message: Any) -> None:
        try:
            request = self.calls.worker.request(*self.calls.named(message))
            with request as log, self._held(Hold(self.calls, message, log)):
                self.handle(message["Body"])
        except Exception:  # noqa: BLE001 - whatever a request raises, the worker goes on
            _LOG.exception("request %s failed; SQS delivers it again", message["MessageId"])
            return
        except BaseException:
            self._show_again(message, 0)
            raise
        self._delete(message)

    @contextlib.contextmanager
    def _held(self, hold: Hold) -> Iterator[None]:
        """Hold a message while it is served, from a thread of its own."""
        served = threading.Event()

        def run() -> None:
            while not hold.is_over:
                seconds = hold.step(time.monotonic())
                if seconds is not None:
                    self._show_again(hold.message, seconds)
                if served.wait(hold.look_s):
                    return

        thread = threading.Thread(target=run, name="hold", daemon=True)
        thread.start()
        try:
            yield
        finally:
            served.set()
            thread.join()

    def _delete(self, message: Any) -> None:
        with reported(NOT_DELETED, message):
            self.client.delete_message(**self.calls.delete(message))

    def _show_again(self, message: Any, seconds: float) -> None:
        with reported(NOT_CHANGED, message):
            self.client.change_message_visibility(**self.calls.show_again(message, seconds))
