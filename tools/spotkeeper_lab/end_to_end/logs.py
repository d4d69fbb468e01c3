"""Search logs on their way: workers ship them in batches, a queue brings them to the function.

The queue behaves as SQS behind an event source mapping does: what a batch could not take comes back
after the visibility timeout, and after its last receive it is a dead letter.
"""

import base64
import gzip
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from spotkeeper_lab.end_to_end.workers import Served
from spotkeeper_lab.local_aws.answers import ACCOUNT, REGION, VirtualTime

# Real workers ship every few seconds; here every batch is a call of AWS in process.
SHIP_EVERY_S = 60.0
MOST_LOGS_A_MESSAGE = 100
# As in template.yaml.
BATCH_SIZE = 100
VISIBILITY_TIMEOUT_S = 360.0
MAX_RECEIVES = 5
GZIP_EVERY = 3
"""Every third worker packs what it ships: both forms are in use."""


class SearchLogs:
    """What workers have served and not yet shipped."""

    def __init__(self, time: VirtualTime) -> None:
        self.stopped = False
        self.ahead_s = 0.0
        """How far the clock that stamps the arrival is ahead of the workers' own."""
        self._time = time
        self._waiting: dict[str, list[str]] = {}
        self._packs: dict[str, bool] = {}

    def write(self, served: Served) -> None:
        """Note a finished request; the format is that of docs/architecture.md."""
        self._packs.setdefault(served.worker_id, len(self._packs) % GZIP_EVERY == 0)
        self._waiting.setdefault(served.worker_id, []).append(self._line(served))

    def ship(self, worker_ids: Iterable[str] | None = None) -> list[str]:
        """The messages to send now, of some workers or of all; none while shipping is stopped."""
        if self.stopped:
            return []
        found = list(self._waiting) if worker_ids is None else worker_ids
        return [body for worker_id in found for body in self._bodies(worker_id)]

    def lose(self, worker_ids: Iterable[str]) -> None:
        """Forget what workers that are gone had not shipped."""
        for worker_id in worker_ids:
            self._waiting.pop(worker_id, None)

    def _bodies(self, worker_id: str) -> list[str]:
        lines = self._waiting.pop(worker_id, [])
        most = MOST_LOGS_A_MESSAGE
        texts = ["\n".join(lines[at : at + most]) for at in range(0, len(lines), most)]
        return [_packed(text) for text in texts] if self._packs.get(worker_id) else texts

    def _line(self, served: Served) -> str:
        where = (
            f'"cluster": "aws", "instance_id": "{served.instance_id}"'
            if served.instance_id
            else '"cluster": "onprem"'
        )
        return (
            f'{{"version": 1, "request_id": "r-{served.request:08d}", '
            f'"worker_id": "{served.worker_id}", {where}, '
            f'"enqueued_at": "{self._at(served.enqueued_s + self.ahead_s)}", '
            f'"started_at": "{self._at(served.started_s)}", '
            f'"finished_at": "{self._at(served.finished_s)}", "status": "ok"}}'
        )

    def _at(self, seconds: float) -> str:
        instant = self._time.start + timedelta(milliseconds=int(seconds * 1000))
        return f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1000:03d}Z"


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=1, mtime=0)).decode()


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
