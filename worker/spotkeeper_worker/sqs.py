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

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from spotkeeper_worker.worker import Request, Worker

_LOG = get_logger("worker")
_AWS_ERRORS = (BotoCoreError, ClientError)
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0
_REMEMBERED = 1000


def serve(
    worker: Worker,
    queue_url: str,
    handle: Callable[[str], Any],
    *,
    client: Any = None,
    visibility_s: float = 60.0,
    wait_s: int = 10,
) -> None:
    """Serve until `worker.stop`. What `handle` raises is logged; the message is received again.

    `visibility_s` is renewed while a message is served: the message of a worker that dies
    is visible again after it. `wait_s` is the length of a long poll, and the longest that a stop
    takes.
    """
    _SqsLoop(worker, queue_url, handle, client or boto3.client("sqs"), visibility_s, wait_s).run()


@dataclass
class _SqsLoop:
    worker: Worker
    url: str
    handle: Callable[[str], Any]
    client: Any
    visibility_s: float
    wait_s: int
    retry_s: float = _FIRST_RETRY_S
    served: deque[str] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def run(self) -> None:
        while not self.worker.stopping:
            if not self.step():
                self.worker.wait(0.2)

    def step(self) -> bool:
        """Take a message and deal with it; False while the machine may take none."""
        if not self.worker.may_take:
            return False
        try:
            answer = self.client.receive_message(
                QueueUrl=self.url,
                AttributeNames=["SentTimestamp"],
                MaxNumberOfMessages=1,
                WaitTimeSeconds=self.wait_s,
                VisibilityTimeout=int(self.visibility_s),
            )
        except _AWS_ERRORS as error:
            _LOG.error("no request could be received; retrying in %g s: %s", self.retry_s, error)
            self.worker.wait(self.retry_s)
            self.retry_s = min(2 * self.retry_s, _LAST_RETRY_S)
            return True
        self.retry_s = _FIRST_RETRY_S
        for message in answer.get("Messages", []):
            if message["MessageId"] in self.served:
                self._delete(message)
            elif not self.worker.may_take:
                # The drain began during the long poll.
                self.show_again_in(0, message)
            else:
                self._serve(message)
        return True

    def _serve(self, message: Any) -> None:
        sent_at = int(message["Attributes"]["SentTimestamp"]) / 1000
        try:
            request = self.worker.request(message["MessageId"], sent_at)
            with request as log, Hold(self, message, log):
                self.handle(message["Body"])
        except Exception:  # noqa: BLE001 - whatever a request raises, the worker goes on
            _LOG.exception("request %s failed; SQS delivers it again", message["MessageId"])
            return
        except BaseException:
            self.show_again_in(0, message)
            raise
        self._delete(message)

    def _delete(self, message: Any) -> None:
        """Delete a served message; where that fails, it is not served when it is received again."""
        self.served.append(message["MessageId"])
        try:
            self.client.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
        except _AWS_ERRORS as error:
            _LOG.error("%s was served and could not be deleted: %s", message["MessageId"], error)

    def show_again_in(self, seconds: float, message: Any) -> None:
        try:
            self.client.change_message_visibility(
                QueueUrl=self.url,
                ReceiptHandle=message["ReceiptHandle"],
                VisibilityTimeout=int(seconds),
            )
        except _AWS_ERRORS as error:
            _LOG.error("the hold on %s was not changed: %s", message["MessageId"], error)


class Hold:
    """Holds a message while it is served, from a thread of its own."""

    def __init__(self, loop: _SqsLoop, message: Any, log: Request) -> None:
        self._loop = loop
        self._message = message
        self._log = log
        self._renewed_at: float | None = None
        self._served = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hold", daemon=True)

    def step(self, now: float) -> bool:
        """Renew the visibility, or hand the message back; False once there is nothing to hold."""
        loop, message = self._loop, self._message
        if loop.worker.must_hand_back:
            loop.show_again_in(0, message)
            self._log.status = "timeout"
            _LOG.warning("%s was returned to the queue: the machine goes", message["MessageId"])
            return False
        if self._renewed_at is None:
            self._renewed_at = now
        elif now - self._renewed_at >= loop.visibility_s / 3:
            loop.show_again_in(loop.visibility_s, message)
            self._renewed_at = now
        return True

    def _run(self) -> None:
        look_s = min(self._loop.visibility_s / 3, 1.0)
        while self.step(time.monotonic()) and not self._served.wait(look_s):
            pass

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._served.set()
        self._thread.join()
