"""The workers of a lab: they serve requests in real time and log each one.

Requests come by chance at a steady rate and are served first come first served, one at a time on
each instance that is in service and not draining. What a lost instance was serving comes back to
the head of the queue.
"""

import json
import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from spotkeeper_lab.cloud.values import InstanceView
from spotkeeper_lab.cloud.words import IN_SERVICE
from spotkeeper_lab.local_aws.answers import VirtualTime

SERVICE_S = 2.0
MOST_LOGS_A_MESSAGE = 100


@dataclass(slots=True)
class _Worker:
    request: int
    enqueued_s: float
    started_s: float
    finished_s: float


@dataclass(slots=True)
class Workers:
    """What is offered, waits, is served, and was logged and not yet shipped."""

    time: VirtualTime
    erlangs: float = 0.0
    stopped: bool = False
    seed: int = 0
    served: int = 0
    lost: int = 0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    _now_s: float = 0.0
    _next_s: float | None = None
    _queue: deque[tuple[int, float]] = field(default_factory=deque)
    _busy: dict[str, _Worker] = field(default_factory=dict)
    _logs: list[str] = field(default_factory=list)
    _numbered: int = 0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def busy(self) -> Collection[str]:
        """The instances whose worker serves a request."""
        return self._busy.keys()

    def offer(self, erlangs: float) -> None:
        """Change the load from now on."""
        self.erlangs, self._next_s = erlangs, None

    def stop(self, stopped: bool) -> None:
        """Log nothing from now on, or log again."""
        self.stopped = stopped

    def advance(self, to_s: float, instances: tuple[InstanceView, ...]) -> None:
        """Serve until a moment on the instances that there are."""
        self._leave({one.instance_id for one in instances})
        hired = [
            one.instance_id for one in instances if one.state == IN_SERVICE and not one.draining
        ]
        self._dispatch(hired)
        while (at_s := self._happens_s()) <= to_s:
            self._now_s = at_s
            self._finish()
            self._arrive()
            self._dispatch(hired)
        self._now_s = to_s
        self._dispatch(hired)

    def ship(self) -> list[str]:
        """The messages to send now."""
        lines, self._logs = self._logs, []
        if self.stopped:
            return []
        return [
            "\n".join(lines[at : at + MOST_LOGS_A_MESSAGE])
            for at in range(0, len(lines), MOST_LOGS_A_MESSAGE)
        ]

    def _leave(self, there: set[str]) -> None:
        for instance_id in [one for one in self._busy if one not in there]:
            worker = self._busy.pop(instance_id)
            self._queue.appendleft((worker.request, worker.enqueued_s))
            self.lost += 1

    def _happens_s(self) -> float:
        if self.erlangs and self._next_s is None:
            self._next_s = self._now_s + self._chance.expovariate(self.erlangs / SERVICE_S)
        finished = min((one.finished_s for one in self._busy.values()), default=float("inf"))
        return min(finished, float("inf") if self._next_s is None else self._next_s)

    def _finish(self) -> None:
        for instance_id, worker in list(self._busy.items()):
            if worker.finished_s <= self._now_s:
                del self._busy[instance_id]
                self.served += 1
                self._logs.append(self._line(instance_id, worker))

    def _arrive(self) -> None:
        if self._next_s is not None and self._next_s <= self._now_s:
            self._numbered += 1
            self._queue.append((self._numbered, self._now_s))
            self._next_s = None

    def _dispatch(self, hired: list[str]) -> None:
        idle = deque(one for one in hired if one not in self._busy)
        while self._queue and idle:
            request, enqueued_s = self._queue.popleft()
            self.waits.append(self._now_s - enqueued_s)
            due_s = self._now_s + self._chance.expovariate(1 / SERVICE_S)
            self._busy[idle.popleft()] = _Worker(request, enqueued_s, self._now_s, due_s)

    def _line(self, instance_id: str, worker: _Worker) -> str:
        return json.dumps(
            {
                "version": 1,
                "request_id": f"r-{worker.request:08d}",
                "worker_id": f"{instance_id}/0",
                "cluster": "aws",
                "instance_id": instance_id,
                "enqueued_at": self._at(worker.enqueued_s),
                "started_at": self._at(worker.started_s),
                "finished_at": self._at(worker.finished_s),
                "status": "ok",
            }
        )

    def _at(self, seconds: float) -> str:
        return self.time.at(seconds).isoformat(timespec="milliseconds")
