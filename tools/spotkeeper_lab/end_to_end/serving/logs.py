"""Search logs on their way: each machine's agent sends them, a queue brings them to the function.

What a log must be, when a message is due and what it looks like is the worker distribution's own
code. The queue behaves as SQS behind an event source mapping does: what a batch could not take
comes back after the visibility timeout, and after its last receive it is a dead letter.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import batched
from uuid import UUID

from spotkeeper_lab.end_to_end.serving.served import Served
from spotkeeper_lab.local_aws.answers import ACCOUNT, REGION, VirtualTime
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.logs.intake import Origin, take
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.logs.pace import MOST_LOGS, Pace, PaceSettings

CLAMP_S = Settings.clamp_s
# As in template.yaml.
BATCH_SIZE = 100
VISIBILITY_TIMEOUT_S = 360.0
MAX_RECEIVES = 5


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
        return {
            "request_id": f"r-{served.request:08d}",
            "worker_id": served.worker_id,
            "enqueued_at": self._at(served.enqueued_s + self.ahead_s),
            "started_at": self._at(served.started_s),
            "finished_at": self._at(served.finished_s),
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
    """The queue of search logs and its dead letters."""

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
            elif message.receives >= MAX_RECEIVES:
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
