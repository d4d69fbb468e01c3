"""Invocations that take virtual time: one runs at a time, and each hands over while it waits."""

import threading
from collections.abc import Callable
from typing import ClassVar


class Killed(BaseException):
    """The function's time is up: it dies where it stands, and nobody catches that."""


class Process:
    """A piece of work on a thread of its own, which runs only between `resume` and `pause`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.done = False
        self._work = work
        self._killed = False
        self._go, self._back = _closed(), _closed()
        _Thread.run(self._run)

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


class _Thread:
    """A thread that does one work after another: to start one costs as much as a short function."""

    idle: ClassVar[list["_Thread"]] = []

    def __init__(self) -> None:
        self._work: Callable[[], None] = _nothing
        self._given = _closed()
        threading.Thread(target=self._live, daemon=True).start()

    @classmethod
    def run(cls, work: Callable[[], None]) -> None:
        """Have a thread do some work."""
        thread = cls.idle.pop() if cls.idle else cls()
        thread._work = work
        thread._given.release()

    def _live(self) -> None:
        while True:
            self._given.acquire()
            self._work()
            self._work = _nothing
            self.idle.append(self)


def _closed() -> threading.Lock:
    """A lock that whoever comes waits at; another opens it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def _nothing() -> None:
    """Hold nothing of what was done."""
