"""Workers that take requests from one queue, the agents of their machines, and their search logs.

A request whose worker is lost, or hangs, returns to the head of the queue when its visibility ends,
and is given up after its last try. Times are float seconds on the world's clock.
"""

import heapq
import math
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import batched
from uuid import UUID

from spotkeeper_lab.aws.wire import ACCOUNT, REGION, VirtualTime
from spotkeeper_lab.cloud.values import IN_SERVICE, TERMINATING, InstanceView
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.logs.intake import Origin, take
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.logs.pace import MOST_LOGS, Pace, PaceSettings
from spotkeeper_worker.notice import Notice
from spotkeeper_worker.states import Leave, Seen, State, leaving
from spotkeeper_worker.worker import LAST_REQUESTS, MARGIN_S


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


@dataclass(slots=True)
class _Machine:
    seen: Seen
    leave: Leave | None
    polls_s: float | None = None
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_REQUESTS))


class Machines:
    """Which instances take requests, by their metadata."""

    def __init__(self, force: "Workforce", notice_s: float, poll_s: float = POLL_S) -> None:
        """Manage the workers of `force`; EC2 takes an instance `notice_s` after its warning."""
        self.notice_s = notice_s
        self._force = force
        self._poll_s = poll_s
        self._machines: dict[str, _Machine] = {}

    def served(self, served: Served) -> None:
        """Remember how long a request took."""
        if machine := self._machines.get(served.instance_id):
            machine.durations_s.append(served.finished_s - served.started_s)

    def update(self, views: Iterable[InstanceView], now_s: float) -> float | None:
        """Start and drain workers; return when to call it next, or None."""
        there = {view.instance_id: view for view in views}
        for instance_id in self._machines.keys() - there.keys():
            del self._machines[instance_id]
        for instance_id, view in there.items():
            if view.state == IN_SERVICE and instance_id not in self._machines:
                current = self._metadata_of(view)
                self._machines[instance_id] = _Machine(current, _leave(current))
                self._force.join(instance_id)
        looks = [self._look(machine, there[i], now_s) for i, machine in self._machines.items()]
        return min((at_s for at_s in looks if at_s is not None), default=None)

    def _look(self, machine: _Machine, view: InstanceView, now_s: float) -> float | None:
        """Follow the metadata once a poll is due; return when to call it next, or None."""
        current = self._metadata_of(view)
        if current == machine.seen:
            machine.polls_s = None
        elif machine.polls_s is None:
            # Each machine's polls began at an instant of its own.
            phase_s = zlib.crc32(view.instance_id.encode()) % 1000 / 1000 * self._poll_s
            machine.polls_s = now_s + self._poll_s - (now_s - phase_s) % self._poll_s
        elif now_s >= machine.polls_s:
            machine.seen, machine.polls_s, machine.leave = current, None, _leave(current)
        stops_s = None
        if machine.leave is not None:
            until_s = machine.leave.serve_until
            notice = Notice(State.DRAINING, 0.0, draining=True, serve_until=until_s)
            stops_s = notice.last_start(machine.durations_s, MARGIN_S)
        takes = stops_s is None or now_s < stops_s
        self._force.take(view.instance_id, takes=takes)
        due = [at_s for at_s in (machine.polls_s, stops_s if takes else None) if at_s is not None]
        return min(due, default=None)

    def _metadata_of(self, view: InstanceView) -> Seen:
        target = "Terminated" if view.state == TERMINATING else "InService"
        return Seen(
            target=target if view.group else "Detached",
            taken_at=None if view.warned_s is None else view.warned_s + self.notice_s,
            tagged_until=view.gone_s,
        )


def _leave(seen: Seen) -> Leave | None:
    return leaving(seen, "", rebalance_drains=False)


CLAMP_S = Settings().clamp_s
# As in template.yaml.
BATCH_SIZE = 100
AGED_RECEIVES = 3
VISIBILITY_TIMEOUT_S = 190.0
MESSAGE_RECEIVES = 5


@dataclass(slots=True)
class _Outbox:
    """What the agent of one machine has not sent yet."""

    origin: Origin
    pace: Pace
    lines: list[str] = field(default_factory=list)
    written: int = 0


class SearchLogs:
    """The search logs of each machine that are not sent yet; the one on premises is called ""."""

    def __init__(self, time: VirtualTime, fleet: str = "") -> None:
        self.fleet = fleet
        self.stopped = False
        self.ahead_s = 0.0
        """How far the clock that stamps the arrival is ahead of the workers' own."""
        self.off_s: dict[str, float] = {}
        """How far the clocks of some machines are ahead of the true time."""
        self.failing: set[str] = set()
        """The machines whose requests all fail."""
        self.failing_each: dict[str, int] = {}
        """The machines of which one in this many requests fails."""
        self.slots = 1
        """How many requests the one worker of a machine serves at once."""
        self.messages = 0
        """The number of messages sent."""
        self._time = time
        self._machines: dict[str, _Outbox] = {}

    def write(self, served: Served) -> None:
        """Pass a finished request to the agent of its machine."""
        machine = self._machines.get(served.instance_id)
        if machine is None:
            cluster = "aws" if served.instance_id else "onprem"
            origin = Origin(cluster, served.instance_id, self.fleet)
            machine = _Outbox(origin, Pace(PaceSettings(), served.finished_s))
            self._machines[served.instance_id] = machine
        off_s = self.off_s.get(served.instance_id, 0.0)
        every = self.failing_each.get(served.instance_id)
        machine.written += 1
        failed = served.instance_id in self.failing or (every and machine.written % every == 0)
        log = {
            "request_id": f"r-{served.request:08d}",
            "worker_id": served.instance_id if self.slots > 1 else served.worker_id,
            "enqueued_at": self._at(served.enqueued_s + self.ahead_s + off_s),
            "started_at": self._at(served.started_s + off_s),
            "finished_at": self._at(served.finished_s + off_s),
            "status": "error" if failed else "ok",
        }
        taken = take(log, machine.origin, CLAMP_S)
        machine.lines.append(taken.line)
        machine.pace.add(len(taken.line), taken.wait_s, served.finished_s, failed=taken.failed)

    def completed(self, served: Served) -> list[str]:
        """Return the message that the request just written completes, if it completes one."""
        machine = self._machines[served.instance_id]
        complete = machine.pace.due(served.finished_s)
        return self.ship(served.instance_id, served.finished_s) if complete else []

    def due(self, now_s: float) -> list[str]:
        """Return the messages that agents send now, because of the time."""
        due = [name for name, machine in self._machines.items() if machine.pace.due(now_s)]
        return [body for name in due for body in self.ship(name, now_s)]

    def ship(self, instance_id: str | None = None, now_s: float = 0.0) -> list[str]:
        """Return the unsent logs of one machine, or of all, as messages; none while stopped."""
        if self.stopped:
            return []
        bodies: list[str] = []
        for name in list(self._machines) if instance_id is None else [instance_id]:
            if machine := self._machines.get(name):
                machine.pace.sent(now_s)
                parts = batched(machine.lines, MOST_LOGS, strict=False)
                bodies += [Segment(None, some).body() for some in parts]
                machine.lines = []
        self.messages += len(bodies)
        return bodies

    def lose(self, instance_id: str) -> None:
        """Drop the unsent logs of a machine that is gone."""
        self._machines.pop(instance_id, None)

    def dismiss(self, instance_id: str, force: "Workforce", now_s: float) -> list[str]:
        """Remove a machine that is gone; return the messages that it sent before its end.

        A machine that drained has sent its logs. The logs of one that did not are lost.
        """
        bodies = [] if force.serving(instance_id) else self.ship(instance_id, now_s)
        self.lose(instance_id)
        force.lose(instance_id)
        return bodies

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

    def age_s(self, at_s: float) -> float:
        """Return for how long the oldest message has been in the queue; 0 where there is none.

        One that was received more than three times is at the back of the queue and in no age.
        """
        sent = [one.sent_s for one in self._messages.values() if one.receives <= AGED_RECEIVES]
        return at_s - min(sent, default=at_s)

    def receive(self, at_s: float) -> dict[str, object] | None:
        """Return the next batch as the function gets it; None if no message is visible."""
        due = [message for message in self._messages.values() if message.visible_s <= at_s]
        batch = due[:BATCH_SIZE]
        for message in batch:
            message.receives += 1
            message.visible_s = at_s + VISIBILITY_TIMEOUT_S
        return {"Records": [self._record(message) for message in batch]} if batch else None

    def _record(self, message: _Message) -> dict[str, object]:
        sent_ms = int(self._time.at(message.sent_s).timestamp() * 1000)
        return sqs_record(
            "demo-SearchLogQueue", message.message_id, message.body, sent_ms, message.receives
        )

    def settle(self, event: Mapping[str, object], failed: Iterable[str]) -> None:
        """Delete the messages of a batch that succeeded; the last failure makes a dead letter."""
        kept = set(failed)
        records = event["Records"]
        assert isinstance(records, list)
        for record in records:
            message = self._messages[record["messageId"]]
            if message.message_id not in kept:
                del self._messages[message.message_id]
            elif message.receives >= MESSAGE_RECEIVES:
                self.dead_letters.append(self._messages.pop(message.message_id).body)


def sqs_record(
    queue: str, message_id: str, body: str, sent_ms: int = 0, receives: int = 1
) -> dict[str, object]:
    """A message as a function gets it from SQS."""
    return {
        "messageId": message_id,
        "receiptHandle": message_id,
        "body": body,
        "attributes": {"ApproximateReceiveCount": str(receives), "SentTimestamp": str(sent_ms)},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}",
        "awsRegion": REGION,
    }


VISIBILITY_S = 30.0
"""A request returns to the queue this long after its worker last renewed its visibility."""
MAX_RECEIVES = 3


@dataclass(slots=True)
class Request:
    """A request; `started_s` is the start that led to an answer."""

    arrival_s: float
    service_s: float
    started_s: float | None = None
    receives: int = 0


@dataclass(slots=True)
class _Worker:
    worker_id: str
    instance_id: str
    request: int | None = None
    started_s: float = 0.0
    accepts: bool = True
    hangs: bool = False


class Workforce:
    """The queue of requests and all workers, on premises and on instances."""

    def __init__(
        self,
        requests: Iterable[tuple[float, float]],
        on_served: Callable[[Served], None],
        *,
        workers_per_instance: int = 1,
        onprem_workers: int = 0,
        chance: random.Random | None = None,
    ) -> None:
        """Start with the on-premises workers only; `on_served` gets every finished request.

        `requests` are seconds of arrival, in order, and of service; more may be offered. A request
        goes to the worker that was idle the longest, or by `chance` to any idle one.
        """
        self.now_s = 0.0
        self.slower: dict[str, float] = {}
        """The instances on which requests take this many times as long."""
        self.holds = False
        """Whether a worker that hangs keeps its request, as one that renews it in a thread does."""
        self.lost: list[int] = []
        self.requests = [Request(*request) for request in requests]
        self._next_arrival = 0
        self._on_served = on_served
        self._chance = chance
        self._per_instance = workers_per_instance
        self._queue: deque[int] = deque()
        self._idle: dict[str, _Worker] = {}
        self._workers: dict[str, _Worker] = {}
        self._instances: dict[str, list[_Worker]] = {}
        # When a worker finishes a request, or it returns to the queue (no worker).
        self._due: list[tuple[float, bool, int, str]] = []
        self._hire("", [f"onprem-{n}" for n in range(onprem_workers)])

    def offer(self, arrival_s: float, service_s: float) -> None:
        """Add a request, which arrives after all others."""
        self.requests.append(Request(arrival_s, service_s))

    @property
    def instances(self) -> frozenset[str]:
        return frozenset(self._instances) - {""}

    @property
    def queued(self) -> int:
        """Requests that wait for a worker."""
        return len(self._queue)

    @property
    def busy(self) -> int:
        """Workers that serve a request at this moment."""
        return sum(worker.request is not None for worker in self._workers.values())

    @property
    def busy_instances(self) -> frozenset[str]:
        """The instances with a worker that serves a request."""
        return frozenset(
            one.instance_id for one in self._workers.values() if one.request is not None
        )

    @property
    def in_flight(self) -> int:
        """Requests that are being served, and those of lost workers that are not visible again."""
        return self.busy + sum(returns for _, returns, _, _ in self._due)

    @property
    def accepting(self) -> int:
        """Workers that take requests, idle or not."""
        return sum(worker.accepts for worker in self._workers.values())

    def serving(self, instance_id: str) -> bool:
        """Whether an instance has a worker that takes requests."""
        return any(worker.accepts for worker in self._instances.get(instance_id, ()))

    def join(self, instance_id: str) -> None:
        if instance_id not in self._instances:
            self._hire(instance_id, [f"{instance_id}/{n}" for n in range(self._per_instance)])
            self._dispatch()

    def take(self, instance_id: str, *, takes: bool) -> None:
        """Let the workers of an instance take requests, or only finish those they serve."""
        changed = [
            worker
            for worker in self._instances.get(instance_id, ())
            if worker.accepts is not takes and not worker.hangs
        ]
        for worker in changed:
            worker.accepts = takes
            if not takes:
                self._idle.pop(worker.worker_id, None)
            elif worker.request is None:
                self._idle[worker.worker_id] = worker
        if changed and takes:
            self._dispatch()

    def hang(self, instance_id: str) -> None:
        """Hang the workers of an instance for ever; without `holds` its requests return later."""
        self.take(instance_id, takes=False)
        for worker in self._instances.get(instance_id, ()):
            worker.hangs = True
            if not self.holds:
                self._give_back(worker)

    def lose(self, instance_id: str) -> None:
        """Remove an instance; the requests that it was serving return to the queue later."""
        self.take(instance_id, takes=False)
        for worker in self._instances.pop(instance_id, ()):
            self._give_back(worker)
            del self._workers[worker.worker_id]

    def _give_back(self, worker: _Worker) -> None:
        if worker.request is not None:
            entry = (self.now_s + VISIBILITY_S, True, worker.request, worker.worker_id)
            heapq.heappush(self._due, entry)
            worker.request = None

    def advance(self, until_s: float) -> None:
        """Serve until a moment, in order of time."""
        while (at_s := self._next_s()) <= until_s:
            self.now_s = at_s
            self._step(at_s)
            self._dispatch()
        self.now_s = until_s

    def _hire(self, instance_id: str, worker_ids: list[str]) -> None:
        hired = [_Worker(worker_id, instance_id) for worker_id in worker_ids]
        self._instances[instance_id] = hired
        for worker in hired:
            self._workers[worker.worker_id] = self._idle[worker.worker_id] = worker

    def _next_s(self) -> float:
        due_s = self._due[0][0] if self._due else math.inf
        if self._next_arrival < len(self.requests):
            return min(due_s, self.requests[self._next_arrival].arrival_s)
        return due_s

    def _step(self, at_s: float) -> None:
        if not self._due or self._due[0][0] > at_s:
            self._queue.append(self._next_arrival)
            self._next_arrival += 1
            return
        _, returns, request, worker_id = heapq.heappop(self._due)
        if not returns:
            self._finish(request, worker_id)
        elif self.requests[request].receives >= MAX_RECEIVES:
            self.lost.append(request)
        else:
            self._queue.appendleft(request)

    def _finish(self, request: int, worker_id: str) -> None:
        """Finish a request, unless its worker was lost or hangs."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.hangs or worker.request != request:
            return
        worker.request = None
        self.requests[request].started_s = worker.started_s
        if worker.accepts:
            self._idle[worker_id] = worker
        self._on_served(
            Served(
                request=request,
                worker_id=worker_id,
                instance_id=worker.instance_id,
                enqueued_s=self.requests[request].arrival_s,
                started_s=worker.started_s,
                finished_s=self.now_s,
            )
        )

    def _dispatch(self) -> None:
        """Give waiting requests to idle workers."""
        while self._queue and self._idle:
            if self._chance is None:
                chosen = next(iter(self._idle))
            else:
                chosen = self._chance.choice(list(self._idle))
            worker, number = self._idle.pop(chosen), self._queue.popleft()
            request = self.requests[number]
            request.receives += 1
            worker.request, worker.started_s = number, self.now_s
            due_s = self.now_s + request.service_s * self.slower.get(worker.instance_id, 1.0)
            heapq.heappush(self._due, (due_s, False, number, worker.worker_id))
