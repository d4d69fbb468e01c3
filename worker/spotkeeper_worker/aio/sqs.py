"""The loop of asyncio over an SQS request queue, with the promises of `spotkeeper_worker.sqs`.

    await serve(worker, QUEUE_URL, answer)

or, with a task for each message:

    async for message in take(worker, QUEUE_URL):
        group.create_task(one(message))  # `async with message: await answer(message.body)`

Needs aiobotocore (`pip install 'spotkeeper-worker[asyncio-sqs]'`).
"""

from __future__ import annotations

import contextlib
import importlib
import time
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.aio.loops import Loop, Message, serve_each
from spotkeeper_worker.extras import needs

with needs("asyncio-sqs"):
    from spotkeeper_worker.sqs import VISIBILITY_S, WAIT_S, Calls, Hold, ToAsk, reported

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from spotkeeper_worker.aio import AsyncWorker

_MOST_AT_ONCE = 10


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
    return _SqsLoop(worker, Calls(worker, queue_url, visibility_s, wait_s), client).messages()


class _SqsLoop(Loop[str]):
    def __init__(self, worker: AsyncWorker, calls: Calls, client: Any) -> None:
        super().__init__(worker, calls.look_s)
        self._calls, self._client = calls, client
        self._ending = contextlib.AsyncExitStack()

    async def receive(self, at_most: int) -> list[Message[str]]:
        calls = self._calls
        if self._client is None:
            with needs("asyncio-sqs"):
                session = importlib.import_module("aiobotocore.session").get_session()
            client = session.create_client("sqs")
            self._client = await self._ending.enter_async_context(client)
        try:
            asked = calls.receive(min(at_most, _MOST_AT_ONCE))
            answer = await self._client.receive_message(**asked)
        except Exception as error:  # noqa: BLE001 - aiohttp's own, too
            await self.change.pause(calls.refused(error))
            return []
        taken: list[Message[str]] = []
        own = {message.id: message for message in self.running}
        for raw in calls.received(answer):
            message = Message(self, *calls.named(raw), raw["Body"], raw)
            message.hold = Hold(calls, raw, message.log)
            if message.id in own:
                # Its hold ran out: it is served already, and its newest handle is the one to use.
                own[message.id].raw.update(raw)
            elif message.id in calls.served:
                await self.served(message)
            else:
                taken.append(message)
        return taken

    async def look_after(self, message: Message[str]) -> None:
        if not message.is_returned:
            hold: Hold = message.hold
            to_ask = hold.step(time.monotonic())
            message.is_returned = hold.is_over
            if to_ask:
                await self._ask(to_ask)

    async def served(self, message: Message[str]) -> None:
        await self._ask(self._calls.delete(message.raw))

    async def failed(self, message: Message[str]) -> None:
        """Leave it invisible for the rest of its time, as the loop of threads does."""

    async def give_back(self, message: Message[str]) -> None:
        await self._ask(self._calls.show_again(message.raw, 0))

    async def close(self) -> None:
        await self._ending.aclose()

    async def _ask(self, to_ask: ToAsk) -> None:
        with reported(to_ask):
            await getattr(self._client, to_ask.method)(**to_ask.given)
