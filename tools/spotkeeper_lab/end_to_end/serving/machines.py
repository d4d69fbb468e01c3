"""Instances as their workers see them: the agent's own rules, in virtual time or in real.

Each machine asks its metadata every few seconds, at an instant of its own, and decides by the
tables of the distribution that users install: who drains, why, and until when requests are taken.
"""

import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from spotkeeper_lab.cloud.values import InstanceView
from spotkeeper_lab.cloud.words import IN_SERVICE, STANDBY, TERMINATING
from spotkeeper_lab.end_to_end.serving.served import Served
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.notice import Notice
from spotkeeper_worker.states import Leave, Local, Seen, State, leaving
from spotkeeper_worker.worker import LAST_REQUESTS, MARGIN_S, last_start

POLL_S = Settings.poll_s
_TARGETS = {TERMINATING: "Terminated", STANDBY: "Standby"}


class Force(Protocol):
    """Who serves on the machines."""

    def join(self, instance_id: str) -> None:
        """Start the workers of an instance."""

    def take(self, instance_id: str, *, takes: bool) -> None:
        """Have the workers of an instance take requests from now on, or no more."""


@dataclass(slots=True)
class _Machine:
    seen: Seen = field(default_factory=Seen)
    leave: Leave | None = None
    polls_s: float | None = None
    took: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_REQUESTS))


class Machines:
    """Who takes requests, by what each instance has been told."""

    def __init__(self, force: Force, notice_s: float, poll_s: float = POLL_S) -> None:
        """Look after the workers of `force`; EC2 takes an instance `notice_s` after its warning."""
        self.notice_s = notice_s
        self._force = force
        self._poll_s = poll_s
        self._machines: dict[str, _Machine] = {}

    def served(self, served: Served) -> None:
        """Learn how long a request took."""
        machine = self._machines.get(served.instance_id)
        if machine is not None:
            machine.took.append(served.finished_s - served.started_s)

    def muster(self, views: Iterable[InstanceView], now_s: float) -> float | None:
        """Start and drain workers; answers when to look again, None where nothing is in sight."""
        there = {view.instance_id: view for view in views}
        for instance_id in self._machines.keys() - there.keys():
            del self._machines[instance_id]
        for instance_id, view in there.items():
            if view.state == IN_SERVICE and instance_id not in self._machines:
                told = self._told(view)
                self._machines[instance_id] = _Machine(told, _leave(told))
                self._force.join(instance_id)
        found = [self._look(machine, there[i], now_s) for i, machine in self._machines.items()]
        return min((at_s for at_s in found if at_s is not None), default=None)

    def _look(self, machine: _Machine, view: InstanceView, now_s: float) -> float | None:
        """Poll when it is time, and follow the notice; answers when there is more to do."""
        told = self._told(view)
        if told == machine.seen:
            machine.polls_s = None
        elif machine.polls_s is None:
            machine.polls_s = self._next_poll_s(view.instance_id, now_s)
        elif now_s >= machine.polls_s:
            machine.seen, machine.polls_s = told, None
            machine.leave = _leave(told)
        stops_s = self._stops_s(machine)
        takes = stops_s is None or now_s < stops_s
        self._force.take(view.instance_id, takes=takes)
        due = [at_s for at_s in (machine.polls_s, stops_s if takes else None) if at_s is not None]
        return min(due, default=None)

    def _told(self, view: InstanceView) -> Seen:
        """What the metadata of an instance says."""
        target = _TARGETS.get(view.state, "InService")
        return Seen(
            target=target if view.group else "Detached",
            taken_at=None if view.warned_s is None else view.warned_s + self.notice_s,
            tagged_until=view.gone_s,
        )

    @staticmethod
    def _stops_s(machine: _Machine) -> float | None:
        leave = machine.leave
        if leave is None:
            return None
        notice = Notice(State.DRAINING, 0.0, draining=True, serve_until=leave.serve_until)
        return last_start(notice, machine.took, MARGIN_S)

    def _next_poll_s(self, instance_id: str, now_s: float) -> float:
        """The machine's next poll: each began at an instant of its own."""
        phase_s = zlib.crc32(instance_id.encode()) % 1000 / 1000 * self._poll_s
        return now_s + self._poll_s - (now_s - phase_s) % self._poll_s


def _leave(told: Seen) -> Leave | None:
    return leaving(told, Local(), rebalance_drains=False)
