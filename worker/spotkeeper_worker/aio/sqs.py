"""The loop over an SQS request queue: take messages, serve them, delete them (docs/asyncio.md).

Needs aiobotocore (`pip install 'spotkeeper-worker[asyncio-sqs]'`).
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.aio.loops import Loop, Message, serve_each
from spotkeeper_worker.extras import needs, region_of_queue
from spotkeeper_worker.log import get_logger

with needs("asyncio-sqs"):
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Iterator

    from spotkeeper_worker.aio import AsyncWorker
    from spotkeeper_worker.worker import Worker

_LOG = get_logger("worker")
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 30.0
_REMEMBERED = 1000
_MOST_AT_ONCE = 10
VISIBILITY_S = 60.0
WAIT_S = 10


async def serve(
    worker: AsyncWorker,
    queue_url: str,
    handle: Callable[[str], Awaitable[Any]],
    *,
    client: Any = None,
    visibility_s: float = VISIBILITY_S,
    wait_s: int = WAIT_S,
) -> None:
    """Serve until `worker.stop`, as many at once as the worker has slots.

    What `handle` raises is logged; the message is received again. A cancellation returns the
    messages that run.
    """
    taken = take(worker, queue_url, client=client, visibility_s=visibility_s, wait_s=wait_s)
    await serve_each(taken, handle)


def take(
    worker: AsyncWorker,
    queue_url: str,
    *,
    client: Any = None,
    visibility_s: float = VISIBILITY_S,
    wait_s: int = WAIT_S,
) -> AsyncGenerator[Message[str], None]:
    """Give messages until `worker.stop`; each is to be entered (`async with message`).

    `visibility_s` is renewed from the moment when a message is taken.
    """
    return SqsLoop(worker, queue_url, client, visibility_s, wait_s).messages()


class SqsLoop(Loop[str]):
    """The loop over a queue by a client whose calls are awaited; without one, aiobotocore's."""

    def __init__(
        self,
        worker: Worker,
        queue_url: str,
        client: Any,
        visibility_s: float,
        wait_s: int,
        at_once: int = 0,
    ) -> None:
        super().__init__(worker, min(visibility_s / 3, 1.0), at_once)
        self._queue, self._region = {"QueueUrl": queue_url}, region_of_queue(queue_url)
        self._client, self._visibility_s, self._wait_s = client, visibility_s, wait_s
        self._retry_s = _FIRST_RETRY_S
        self._served: deque[str] = deque(maxlen=_REMEMBERED)
        self._ending = contextlib.AsyncExitStack()

    async def receive(self, at_most: int) -> list[Message[str]]:
        """Receive messages by a long poll."""
        if self._client is None:
            with needs("asyncio-sqs"):
                session = importlib.import_module("aiobotocore.session").get_session()
            client = session.create_client("sqs", region_name=self._region or None)
            self._client = await self._ending.enter_async_context(client)
        try:
            answer = await self._client.receive_message(
                **self._queue,
                AttributeNames=["SentTimestamp"],
                MaxNumberOfMessages=min(at_most, _MOST_AT_ONCE),
                WaitTimeSeconds=self._wait_s,
                VisibilityTimeout=int(self._visibility_s),
            )
        except NoCredentialsError:
            raise  # This client never has any: the next process has another.
        except Exception as error:  # noqa: BLE001 - aiohttp's own, too
            wait_s, self._retry_s = self._retry_s, min(2 * self._retry_s, _LAST_RETRY_S)
            where = self._queue["QueueUrl"]
            _LOG.error("no request from %s; retrying in %g s: %s", where, wait_s, error)
            await self.change.pause(wait_s)
            return []
        self._retry_s = _FIRST_RETRY_S
        taken: list[Message[str]] = []
        own = {message.id: message for message in self.running}
        for raw in answer.get("Messages", []):
            sent_at = int(raw["Attributes"]["SentTimestamp"]) / 1000
            message = Message(self, raw["MessageId"], sent_at, raw["Body"], raw)
            message.hold = time.monotonic()  # When its visibility was set.
            if message.id in own:
                # Its hold ran out: it is served already, and its newest handle is the one to use.
                own[message.id].raw.update(raw)
            elif message.id in self._served:
                await self.served(message)
            else:
                taken.append(message)
        return taken

    async def renew(self, message: Message[str], now: float) -> None:
        """Keep a message invisible for another while, once a third of its time is over."""
        if now - message.hold >= self._visibility_s / 3:
            message.hold = now
            await self._show_again(message, self._visibility_s)

    async def served(self, message: Message[str]) -> None:
        """Delete a message; if that fails, it is not served once more."""
        self._served.append(message.id)
        with _reported("%s was served and could not be deleted: %s", message):
            handle = message.raw["ReceiptHandle"]
            await self._client.delete_message(**self._queue, ReceiptHandle=handle)

    async def failed(self, message: Message[str]) -> None:
        """Leave it invisible for the rest of its time."""

    async def give_back(self, message: Message[str]) -> None:
        """Show it to others at once."""
        await self._show_again(message, 0)

    async def _show_again(self, message: Message[str], seconds: float) -> None:
        with _reported("the hold on %s was not changed: %s", message):
            await self._client.change_message_visibility(
                **self._queue,
                ReceiptHandle=message.raw["ReceiptHandle"],
                VisibilityTimeout=int(seconds),
            )

    async def close(self) -> None:
        """Close the client, if it is the loop's own."""
        await self._ending.aclose()


@contextlib.contextmanager
def _reported(text: str, message: Message[str]) -> Iterator[None]:
    """Log how a call about a message failed, and go on."""
    try:
        yield
    except (BotoCoreError, ClientError, OSError) as error:
        _LOG.error(text, message.id, error)
