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
    from spotkeeper_worker.sqs import (
        NOT_CHANGED,
        NOT_DELETED,
        VISIBILITY_S,
        WAIT_S,
        Calls,
        Hold,
        reported,
    )

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


async def take(
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
    async with contextlib.AsyncExitStack() as ending:
        if client is None:
            with needs("asyncio-sqs"):
                session = importlib.import_module("aiobotocore.session").get_session()
            client = await ending.enter_async_context(session.create_client("sqs"))
        loop = _SqsLoop(worker, Calls(worker, queue_url, visibility_s, wait_s), client)
        messages = loop.messages()
        ending.push_async_callback(messages.aclose)
        async for message in messages:
            yield message


class _SqsLoop(Loop[str]):
    def __init__(self, worker: AsyncWorker, calls: Calls, client: Any) -> None:
        super().__init__(worker, min(calls.visibility_s / 3, 1.0))
        self._calls, self._client = calls, client

    async def receive(self, at_most: int) -> list[Message[str]]:
        calls = self._calls
        try:
            answer = await self._client.receive_message(
                **calls.receive(min(at_most, _MOST_AT_ONCE))
            )
        except Exception as error:  # noqa: BLE001 - aiohttp's own, too
            await self.worker.pause(calls.refused(error))
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
        hold: Hold = message.hold
        seconds = None if message.is_returned else hold.step(time.monotonic())
        if hold.is_over:
            await message.give_back()
        elif seconds is not None:
            await self._show_again(message.raw, seconds)

    async def served(self, message: Message[str]) -> None:
        with reported(NOT_DELETED, message.raw):
            await self._client.delete_message(**self._calls.delete(message.raw))

    async def failed(self, message: Message[str]) -> None:
        """Leave it invisible for the rest of its time, as the loop of threads does."""

    async def give_back(self, message: Message[str]) -> None:
        await self._show_again(message.raw, 0)

    async def _show_again(self, raw: Any, seconds: float) -> None:
        with reported(NOT_CHANGED, raw):
            await self._client.change_message_visibility(**self._calls.show_again(raw, seconds))
