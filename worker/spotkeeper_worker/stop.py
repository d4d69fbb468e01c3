"""An order to stop, which a signal handler may give."""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from typing import Callable


def on_signals(stop: Callable[[], None]) -> None:
    """Have SIGTERM and SIGINT call `stop`; call it from the main thread."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop())


class Stop(threading.Event):
    """An event that a handler of signals may set: `set` waits for no lock.

    A handler runs in the main thread, so it would wait for ever for a lock which that holds.
    """

    _is_given = False

    def is_set(self) -> bool:
        """Whether the order was given."""
        return self._is_given

    def set(self) -> None:
        """Give the order, from any thread or handler; more than once does no harm."""
        self._is_given = True
        with contextlib.suppress(RuntimeError):  # at the interpreter's exit nobody waits
            _thread.start_new_thread(super().set, ())
