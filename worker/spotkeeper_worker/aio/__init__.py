"""A worker of asyncio, which serves many requests at once in one process.

from spotkeeper_worker.aio import AsyncWorker
from spotkeeper_worker.aio.sqs import serve

async with AsyncWorker(slots=16) as worker:
    await load_model()
    worker.ready()
    worker.stop_on_signals()
    await serve(worker, QUEUE_URL, answer)
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.worker import Request, When, Worker

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["AsyncRequest", "AsyncWorker"]
LOOK_S = 0.2


class AsyncRequest(Request):
    """A request that also takes `async with`."""

    async def __aenter__(self) -> AsyncRequest:
        self.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, trace)


class AsyncWorker(Worker):
    """A `Worker` for one event loop; `slots` is how many requests it serves at once."""

    _changed: asyncio.Event | None = None

    async def may_begin(self) -> bool:
        """Wait until a request may begin (`may_take`); False once the worker is to stop."""
        return await self.until(lambda: self.may_take)

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds; False once the worker is to stop."""
        while not self.stopping:
            if holds():
                return True
            await self.change()
        return False

    async def pause(self, seconds: float) -> None:
        """Wait, at most until `stop`; `wait` would stop the event loop."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while not self.stopping and (left := ends - loop.time()) > 0:
            await asyncio.sleep(min(left, LOOK_S))

    async def change(self) -> None:
        """Wait until a request has ended, or `wake` was called: 0.2 s at most."""
        self._changed = self._changed or asyncio.Event()
        self._changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), LOOK_S)

    def wake(self) -> None:
        """End what waits for a change; call it from the event loop's thread."""
        if self._changed is not None:
            self._changed.set()

    def request(self, request_id: str, enqueued_at: When) -> AsyncRequest:
        """Measure a request: `async with worker.request(id, enqueued_at) as log:`."""
        self._must_be_own()
        return AsyncRequest(self, self._place, self._emitter, request_id, enqueued_at)

    def took(self, seconds: float) -> None:
        """Learn how long a request took, and that a slot is free."""
        super().took(seconds)
        self.wake()

    def stop_on_signals(self) -> None:
        """Have SIGTERM and SIGINT do what `stop` does; call it in the main thread's event loop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)

    async def aclose(self, timeout_s: float = 2.0) -> None:
        """Leave the roster, and hand over the last logs within `timeout_s`."""
        await asyncio.get_running_loop().run_in_executor(None, self.close, timeout_s)

    async def __aenter__(self) -> AsyncWorker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
