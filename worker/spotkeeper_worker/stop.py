"""An order to stop, as a signal gives it."""

from __future__ import annotations

import contextlib
import threading


class Stop:
    """What `threading.Event` is, but for handlers of signals: `set` waits for no lock.

    A handler runs within the main thread, and would wait for ever for what that has locked.
    """

    def __init__(self) -> None:
        self._told = False
        # Locked until told.
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether it was told."""
        return self._told

    def set(self) -> None:
        """Tell it, from any thread or handler, and as often as one likes."""
        self._told = True
        with contextlib.suppress(RuntimeError):
            self._gate.release()

    def wait(self, seconds: float) -> bool:
        """Wait, or until told; answers whether."""
        if self._gate.acquire(timeout=max(0.0, seconds)):
            # Others wait, too.
            self.set()
        return self._told
