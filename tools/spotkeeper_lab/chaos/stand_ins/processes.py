"""Invocations that take virtual time: one runs at a time, and each hands over while it waits."""

import threading
from collections.abc import Callable


class Killed(BaseException):
    """The function's time is up: it dies where it stands, and nobody catches that."""


class Process:
    """A piece of work on a thread of its own, which runs only between `resume` and `pause`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.done = False
        self._work = work
        self._killed = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def resume(self) -> None:
        """Let it run until it pauses or is done."""
        self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        """Hand over, from inside; goes on when it is resumed, or dies there."""
        self._back.release()
        self._go.acquire()
        self.live()

    def live(self) -> None:
        """Die here, from inside, when it was killed."""
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """Have it die at its next step."""
        self._killed = True

    def _run(self) -> None:
        self._go.acquire()
        try:
            self.live()
            self._work()
        except Killed:
            pass
        finally:
            self.done = True
            self._back.release()
