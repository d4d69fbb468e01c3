"""A worker of asyncio, which serves many requests at once in one process (docs/asyncio.md)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import cached_property
from typing import Callable

from spotkeeper_worker.worker import Worker

__all__ = ["AsyncWorker"]
LOOK_S = 0.2


class Change:
    """Waits of an event loop: for a request that ends, a message that arrives, or a time."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self._stopping = stopping
        # Made when it is waited for: Python 3.9 binds it to the loop that runs.
        self._event: asyncio.Event | None = None

    def wake(self) -> None:
        """End what waits for a change; call it from the event loop's thread."""
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait for a change: 0.2 s at most."""
        self._event = self._event or asyncio.Event()
        self._event.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), LOOK_S)

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds; False once the process is to stop."""
        while not self._stopping():
            if holds():
                return True
            await self.wait()
        return False

    async def pause(self, seconds: float) -> bool:
        """Wait; False once the process is to stop."""
        ends = time.monotonic() + seconds
        return await self.until(lambda: time.monotonic() >= ends)


class AsyncWorker(Worker):
    """A `Worker` for one event loop; `slots` is how many requests it serves at once."""

    @cached_property
    def _change(self) -> Change:
        return Change(lambda: self.stopping)

    async def may_begin(self) -> bool:
        """Wait until a request may begin (`may_take`); False once the worker is to stop."""
        return await self._change.until(lambda: self.may_take)

    async def pause(self, seconds: float) -> None:
        """Wait, at most until `stop`; `wait` would stop the event loop."""
        await self._change.pause(seconds)

    def took(self, seconds: float) -> None:
        """Learn how long a request took, and that a slot is free."""
        super().took(seconds)
        self._change.wake()

    async def aclose(self, timeout_s: float = 2.0) -> None:
        """Leave the roster, and hand over the last logs within `timeout_s`."""
        await asyncio.get_running_loop().run_in_executor(None, self.close, timeout_s)

    async def __aenter__(self) -> AsyncWorker:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
