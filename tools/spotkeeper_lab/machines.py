"""Machines of a world: when their workers drain, and the search logs that they send.

What an agent decides is the worker distribution's own code. Times are float seconds on the world's
clock.
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import batched
from typing import Protocol
from uuid import UUID

from spotkeeper_lab.cloud.values import InstanceView
from spotkeeper_lab.cloud.words import IN_SERVICE, TERMINATING
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION, VirtualTime
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.logs.intake import Origin, take
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.logs.pace import MOST_LOGS, Pace, PaceSettings
from spotkeeper_worker.notice import Notice
from spotkeeper_worker.states import Leave, Local, Seen, State, leaving
from spotkeeper_worker.worker import LAST_REQUESTS, MARGIN_S, last_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request that a worker finished; `instance_id` is empty on premises."""

    request: int
    worker_id: str
    instance_id: str
    enqueued_s: float
    started_s: float
    finished_s: float


POLL_S = Settings().poll_s
_TARGETS = {TERMINATING: "Terminated"}


class Force(Protocol):
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
    """Which instances take requests, by what their metadata says."""

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


CLAMP_S = Settings().clamp_s
# As in template.yaml.
BATCH_SIZE = 100
VISIBILITY_TIMEOUT_S = 360.0
MESSAGE_RECEIVES = 5


@dataclass(slots=True)
class _Outbox:
    """What the agent of one machine has not sent yet."""

    origin: Origin
    pace: Pace
    lines: list[str] = field(default_factory=list)


class SearchLogs:
    """What machines have served and not yet sent; the one on premises is called ""."""

    def __init__(self, time: VirtualTime, pace: PaceSettings | None = None) -> None:
        self.stopped = False
        self.ahead_s = 0.0
        """How far the clock that stamps the arrival is ahead of the workers' own."""
        self.off_s: dict[str, float] = {}
        """How far the clocks of some machines are ahead of the true time."""
        self.messages = 0
        """How many were sent so far."""
        self._time = time
        self._pace = pace or PaceSettings()
        self._machines: dict[str, _Outbox] = {}

    def write(self, served: Served) -> None:
        """Give a finished request to the agent of its machine."""
        machine = self._machines.get(served.instance_id)
        if machine is None:
            origin = Origin("aws" if served.instance_id else "onprem", served.instance_id)
            machine = _Outbox(origin, Pace(self._pace, served.finished_s))
            self._machines[served.instance_id] = machine
        taken = take(self._log(served), machine.origin, CLAMP_S)
        machine.lines.append(taken.line)
        machine.pace.add(len(taken.line), taken.wait_s, served.finished_s)

    def completed(self, served: Served) -> list[str]:
        """Give the message that a request which was just written completes, if it does."""
        machine = self._machines[served.instance_id]
        complete = machine.pace.due(served.finished_s)
        return self.ship(served.instance_id, served.finished_s) if complete else []

    def due(self, now_s: float) -> list[str]:
        """Give the messages that agents send now by themselves."""
        found = [name for name, machine in self._machines.items() if machine.pace.due(now_s)]
        return [body for name in found for body in self.ship(name, now_s)]

    def ship(self, instance_id: str | None = None, now_s: float = 0.0) -> list[str]:
        """Give all that one machine, or every one, has not sent; nothing while it is stopped."""
        if self.stopped:
            return []
        found = list(self._machines) if instance_id is None else [instance_id]
        bodies = [body for name in found for body in self._bodies(name, now_s)]
        self.messages += len(bodies)
        return bodies

    def lose(self, instance_id: str) -> None:
        """Forget what a machine that is gone had not sent."""
        self._machines.pop(instance_id, None)

    def _bodies(self, instance_id: str, now_s: float) -> list[str]:
        machine = self._machines.get(instance_id)
        if machine is None:
            return []
        machine.pace.sent(now_s)
        lines, machine.lines = machine.lines, []
        return [Segment(None, some).body() for some in batched(lines, MOST_LOGS, strict=False)]

    def _log(self, served: Served) -> dict[str, str]:
        off_s = self.off_s.get(served.instance_id, 0.0)
        return {
            "request_id": f"r-{served.request:08d}",
            "worker_id": served.worker_id,
            "enqueued_at": self._at(served.enqueued_s + self.ahead_s + off_s),
            "started_at": self._at(served.started_s + off_s),
            "finished_at": self._at(served.finished_s + off_s),
            "status": "ok",
        }

    def _at(self, seconds: float) -> str:
        instant = self._time.start + timedelta(milliseconds=int(seconds * 1000))
        return f"{instant.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


@dataclass(slots=True)
class _Message:
    message_id: str
    body: str
    sent_s: float
    visible_s: float
    receives: int = 0


class SearchLogQueue:
    def __init__(self, time: VirtualTime) -> None:
        self.dead_letters: list[str] = []
        self._time = time
        self._messages: dict[str, _Message] = {}
        self._sent = 0

    def send(self, bodies: Iterable[str], at_s: float) -> None:
        """Put messages into the queue."""
        for body in bodies:
            self._sent += 1
            message_id = str(UUID(int=self._sent))
            self._messages[message_id] = _Message(message_id, body, at_s, at_s)

    def receive(self, at_s: float) -> dict[str, object] | None:
        """The next batch as the function gets it; None when nothing is visible."""
        due = [message for message in self._messages.values() if message.visible_s <= at_s]
        batch = due[:BATCH_SIZE]
        for message in batch:
            message.receives += 1
            message.visible_s = at_s + VISIBILITY_TIMEOUT_S
        return {"Records": [self._record(message) for message in batch]} if batch else None

    def settle(self, event: Mapping[str, object], failed: Iterable[str]) -> None:
        """Delete what a batch has done; what failed for the last time becomes a dead letter."""
        kept = set(failed)
        records = event["Records"]
        assert isinstance(records, list)
        for record in records:
            message = self._messages[record["messageId"]]
            if message.message_id not in kept:
                del self._messages[message.message_id]
            elif message.receives >= MESSAGE_RECEIVES:
                self.dead_letters.append(self._messages.pop(message.message_id).body)

    def _record(self, message: _Message) -> dict[str, object]:
        sent_ms = int(self._time.at(message.sent_s).timestamp() * 1000)
        return {
            "messageId": message.message_id,
            "receiptHandle": message.message_id,
            "body": message.body,
            "attributes": {
                "ApproximateReceiveCount": str(message.receives),
                "SentTimestamp": str(sent_ms),
                "SenderId": "AIDAIENQZJOLO23YVJ4VO",
                "ApproximateFirstReceiveTimestamp": str(sent_ms),
            },
            "messageAttributes": {},
            "md5OfBody": hashlib.md5(message.body.encode(), usedforsecurity=False).hexdigest(),
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:demo-SearchLogQueue",
            "awsRegion": REGION,
        }
