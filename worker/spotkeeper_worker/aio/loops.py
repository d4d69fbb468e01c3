"""What the loops over SQS and RabbitMQ share: messages that run, and a task that watches them."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from spotkeeper_worker.aio import Change
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from spotkeeper_worker.worker import Request, When, Worker

_LOG = get_logger("worker")
Body = TypeVar("Body")


class Message(Generic[Body]):
    """A message that a loop has taken: `async with message as log:` serves it."""

    def __init__(
        self, loop: Loop[Body], request_id: str, enqueued_at: When, body: Body, raw: Any
    ) -> None:
        self.id = request_id
        self.body = body
        self.raw = raw
        """The message, as the queue's client gave it."""
        self.hold: Any = None
        """What its loop keeps for it."""
        self.log = loop.worker.request(request_id, enqueued_at)
        self.is_begun = self.is_entered = self.is_returned = False
        self._loop = loop

    def begin(self) -> None:
        """Begin to measure: from now on the machine waits for it."""
        self.log.__enter__()
        self.is_begun = True

    async def __aenter__(self) -> Request:
        if self.is_returned:
            raise RuntimeError(f"{self.id} was returned to the queue before it was entered")
        self.is_entered = True
        return self.log

    async def __aexit__(self, kind: Any, error: BaseException | None, _: object) -> bool:
        """Tell the queue how it went; an exception is logged, and the loop goes on."""
        self.log.__exit__(kind)
        try:
            if error is None:
                await self._loop.served(self)
            elif isinstance(error, Exception):
                _LOG.error("request %s failed", self.id, exc_info=error)
                await self._loop.failed(self)
            else:
                await self.give_back()
        finally:
            self._loop.forget(self)
        return isinstance(error, Exception)

    async def give_back(self) -> None:
        """Return it to the queue, for another worker."""
        if not self.is_returned:
            self.is_returned = True
            await self._loop.give_back(self)


class Loop(ABC, Generic[Body]):
    """A loop over a queue; a queue's own says how to ask it."""

    def __init__(self, worker: Worker, look_s: float, at_once: int = 0) -> None:
        """`at_once` is how many messages run at once: as many as the worker has slots."""
        self.worker = worker
        self.look_s = look_s
        self.at_once = at_once or worker.slots or 1
        self.change = Change(lambda: worker.stopping)
        self.running: set[Message[Body]] = set()

    @abstractmethod
    async def receive(self, at_most: int) -> list[Message[Body]]:
        """Wait a while for messages; reports what fails, and raises nothing."""

    @abstractmethod
    async def served(self, message: Message[Body]) -> None:
        """Tell the queue that a message was served; raises nothing."""

    @abstractmethod
    async def failed(self, message: Message[Body]) -> None:
        """Tell the queue that a request raised an exception; raises nothing."""

    @abstractmethod
    async def give_back(self, message: Message[Body]) -> None:
        """Have the queue deliver a message to another worker; raises nothing."""

    @abstractmethod
    async def close(self) -> None:
        """End the connection to the queue; raises nothing."""

    async def renew(self, message: Message[Body], now: float) -> None:
        """Renew the hold on a message that runs, where the queue needs it; raises nothing."""

    async def look(self) -> None:
        """Look at the machine, and at every message that runs."""
        await asyncio.gather(*map(self._look_after, self.running))

    async def _look_after(self, message: Message[Body]) -> None:
        if message.is_returned:
            return
        if self.worker.must_hand_back:
            message.log.status = "timeout"
            _LOG.warning("%s was returned to the queue: the machine goes", message.id)
            await message.give_back()
        else:
            await self.renew(message, time.monotonic())

    def forget(self, message: Message[Body]) -> None:
        """Free the slot of a message."""
        self.running.discard(message)
        self.change.wake()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.look_s)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - without it nothing would hold the messages
                _LOG.exception("the messages that run could not be looked after")

    @property
    def _room(self) -> int:
        return self.at_once - len(self.running) if self.worker.may_take else 0

    async def messages(self) -> AsyncGenerator[Message[Body], None]:
        """Give messages until `worker.stop`, and end once those are served."""
        watch = asyncio.create_task(self._watch())
        try:
            while await self.change.until(lambda: self._room > 0):
                taken = await self.receive(self._room)
                self.running.update(taken)
                for message in taken:
                    # The drain may have begun meanwhile.
                    if message.is_returned or not self.worker.is_in_time:
                        await message.give_back()
                        self.forget(message)
                    else:
                        message.begin()
                        yield message
            await self._all_served()
        except GeneratorExit:
            await self._all_served()
            raise
        finally:
            for message in list(self.running):
                await message.give_back()
            watch.cancel()
            await self.close()

    async def _all_served(self) -> None:
        """Wait for the messages that are served; what nobody began goes back."""
        # A task that was made for a message has not run yet.
        await self.change.wait()
        for message in [each for each in self.running if not each.is_entered]:
            await message.give_back()
            if message.is_begun:
                message.log.drop()
            self.forget(message)
        while self.running:
            await self.change.wait()


async def serve_each(
    messages: AsyncGenerator[Message[Body], None], handle: Callable[[Body], Awaitable[Any]]
) -> None:
    """Serve each message in a task of its own. A cancellation returns those that run."""
    tasks: set[asyncio.Task[None]] = set()

    async def one(message: Message[Body]) -> None:
        async with message:
            answer = handle(message.body)
            if not inspect.isawaitable(answer):
                raise TypeError(f"{handle!r} should be a coroutine function: async def")
            await answer

    try:
        async for message in messages:
            task = asyncio.create_task(one(message))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            # It enters before the next message is taken.
            await asyncio.sleep(0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await messages.aclose()


def serve_here(
    messages: AsyncGenerator[Message[Body], None], handle: Callable[[Body], Any]
) -> None:
    """Serve each message in this thread, one after another; the loop has a thread of its own.

    What ends the thread, such as KeyboardInterrupt, first returns the message that runs.
    """
    taken: SimpleQueue[tuple[Body, Future[Exception | None]] | None] = SimpleQueue()
    began: Future[tuple[asyncio.AbstractEventLoop, Any]] = Future()

    async def hand_over(body: Body) -> None:
        answered: Future[Exception | None] = Future()
        taken.put((body, answered))
        error = await asyncio.wrap_future(answered)
        if error is not None:
            raise error

    async def run() -> None:
        began.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        await serve_each(messages, hand_over)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loop") as pool:
        ended = pool.submit(lambda: asyncio.run(run()))
        ended.add_done_callback(lambda _: taken.put(None))
        try:
            while (one := taken.get()) is not None:
                body, answered = one
                error: Exception | None = None
                try:
                    answer = handle(body)
                    if inspect.iscoroutine(answer):
                        answer.close()
                        raise TypeError(f"{handle!r} is a coroutine function: see docs/asyncio.md")
                except Exception as raised:  # noqa: BLE001 - the loop logs it, and goes on
                    error = raised
                # A loop that has failed no longer waits for it.
                with contextlib.suppress(InvalidStateError):
                    answered.set_result(error)
        except BaseException:
            loop, task = began.result()
            loop.call_soon_threadsafe(task.cancel)
            raise
    ended.result()
