"""An order to stop, which a signal handler may give."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Callable


def on_signals(stop: Callable[[], None]) -> None:
    """Have SIGTERM and SIGINT call `stop`; call it from the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


class Stop:
    """What `threading.Event` is, but for handlers of signals: `set` waits for no lock.

    A handler runs in the main thread, so it would wait for ever for a lock which that holds.
    """

    def __init__(self) -> None:
        self._given = False
        # Locked until the order.
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether the order was given."""
        return self._given

    def set(self) -> None:
        """Give the order, from any thread or handler; more than once does no harm."""
        self._given = True
        with contextlib.suppress(RuntimeError):
            self._gate.release()

    def wait(self, seconds: float) -> bool:
        """Wait, at most until the order; return whether it was given."""
        if self._gate.acquire(timeout=max(0.0, seconds)):
            # Others wait, too.
            self.set()
        return self._given
