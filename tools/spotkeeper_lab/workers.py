"""Workers that take requests from one queue, in order of arrival.

A request whose worker is lost, or hangs, returns to the head of the queue when its visibility ends,
and is given up after its last try. Times are float seconds on the world's clock.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from spotkeeper_lab.machines import Served

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VISIBILITY_S = 30.0
"""A worker renews its hold on a request while it serves; this long after the last time it ends."""
MAX_RECEIVES = 3


class _Kind(IntEnum):
    FINISH = 0
    RETURN = 1


@dataclass(slots=True)
class _Worker:
    worker_id: str
    instance_id: str
    request: int | None = None
    started_s: float = 0.0
    accepts: bool = True
    hangs: bool = False


@dataclass(slots=True)
class ServiceLedger:
    """What became of each request; one entry per request, NaN where it did not happen."""

    arrival_s: "NDArray[np.float64]"
    started_s: "NDArray[np.float64]"
    finished_s: "NDArray[np.float64]"
    receives: "NDArray[np.int32]"
    lost: list[int] = field(default_factory=list)

    def waits(self, end_s: float) -> "NDArray[np.float64]":
        """Seconds from arrival to the start that led to an answer, or to `end_s` without one."""
        import numpy as np

        return np.where(np.isnan(self.started_s), end_s, self.started_s) - self.arrival_s

    def late(self, end_s: float, objective_s: float) -> int:
        """How many requests started later than the objective; a lost one is not late but lost."""
        late = self.waits(end_s) > objective_s
        late[self.lost] = False
        return int(late.sum())


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
        self.lost: list[int] = []
        self._arrivals: list[float] = []
        self._service: list[float] = []
        self._started: list[float] = []
        self._finished: list[float] = []
        self._receives: list[int] = []
        for arrival_s, service_s in requests:
            self.offer(arrival_s, service_s)
        self._next_arrival = 0
        self._on_served = on_served
        self._chance = chance
        self._per_instance = workers_per_instance
        self._queue: deque[int] = deque()
        self._idle: dict[str, _Worker] = {}
        self._workers: dict[str, _Worker] = {}
        self._instances: dict[str, list[_Worker]] = {}
        self._due: list[tuple[float, _Kind, int, str]] = []
        self._hire("", [f"onprem-{n}" for n in range(onprem_workers)])

    def offer(self, arrival_s: float, service_s: float) -> None:
        """Add a request, which arrives after all others."""
        self._arrivals.append(arrival_s)
        self._service.append(service_s)
        self._started.append(math.nan)
        self._finished.append(math.nan)
        self._receives.append(0)

    @property
    def ledger(self) -> ServiceLedger:
        import numpy as np

        return ServiceLedger(
            arrival_s=np.array(self._arrivals, dtype=np.float64),
            started_s=np.array(self._started, dtype=np.float64),
            finished_s=np.array(self._finished, dtype=np.float64),
            receives=np.array(self._receives, dtype=np.int32),
            lost=self.lost,
        )

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
        """Requests that are being served, or were when their worker was lost and still count."""
        return self.busy + sum(kind is _Kind.RETURN for _, kind, _, _ in self._due)

    @property
    def accepting(self) -> int:
        """Workers that take requests, idle or not."""
        return sum(worker.accepts for worker in self._workers.values())

    def workers(self, instance_id: str) -> list[str]:
        return [worker.worker_id for worker in self._instances.get(instance_id, ())]

    def serving(self, instance_id: str) -> bool:
        """Whether an instance has a worker that takes requests."""
        return any(worker.accepts for worker in self._instances.get(instance_id, ()))

    def join(self, instance_id: str) -> None:
        if instance_id not in self._instances:
            self._hire(instance_id, [f"{instance_id}/{n}" for n in range(self._per_instance)])
            self._dispatch()

    def drain(self, instance_ids: Iterable[str]) -> None:
        """Let workers finish what they serve and take nothing more; strangers are ignored."""
        for instance_id in instance_ids:
            self.take(instance_id, takes=False)

    def take(self, instance_id: str, *, takes: bool) -> None:
        """Have the workers of an instance take requests from now on, or no more."""
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

    def resume(self, instance_id: str) -> None:
        """Let the workers of an instance take requests again; others are left alone."""
        for worker in self._instances.get(instance_id, ()):
            if not worker.accepts:
                worker.accepts = True
                if worker.request is None:
                    self._idle[worker.worker_id] = worker
        self._dispatch()

    def hang(self, instance_id: str) -> None:
        """Hang the workers of an instance for ever; its requests return to the queue later."""
        self.drain([instance_id])
        for worker in self._instances.get(instance_id, ()):
            worker.hangs = True
            self._drop(worker)

    def lose(self, instance_id: str) -> None:
        """Remove an instance; the requests that it was serving return to the queue later."""
        self.hang(instance_id)
        for worker in self._instances.pop(instance_id, ()):
            del self._workers[worker.worker_id]

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
        if self._next_arrival < len(self._arrivals):
            return min(due_s, self._arrivals[self._next_arrival])
        return due_s

    def _step(self, at_s: float) -> None:
        if self._due and self._due[0][0] <= at_s:
            _, kind, request, worker_id = heapq.heappop(self._due)
            if kind is _Kind.RETURN:
                self._come_back(request)
            else:
                self._finish(request, worker_id)
        else:
            self._queue.append(self._next_arrival)
            self._next_arrival += 1

    def _finish(self, request: int, worker_id: str) -> None:
        """Finish a request, unless its worker was lost or hangs."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.request != request:
            return
        worker.request = None
        self._started[request] = worker.started_s
        self._finished[request] = self.now_s
        if worker.accepts:
            self._idle[worker_id] = worker
        self._on_served(
            Served(
                request=request,
                worker_id=worker_id,
                instance_id=worker.instance_id,
                enqueued_s=self._arrivals[request],
                started_s=worker.started_s,
                finished_s=self.now_s,
            )
        )

    def _come_back(self, request: int) -> None:
        if self._receives[request] >= MAX_RECEIVES:
            self.lost.append(request)
        else:
            self._queue.appendleft(request)

    def _drop(self, worker: _Worker) -> None:
        if worker.request is not None:
            entry = (self.now_s + VISIBILITY_S, _Kind.RETURN, worker.request, worker.worker_id)
            heapq.heappush(self._due, entry)
            worker.request = None

    def _dispatch(self) -> None:
        """Give waiting requests to idle workers."""
        while self._queue and self._idle:
            worker = self._idle.pop(self._next_idle())
            request = self._queue.popleft()
            worker.request, worker.started_s = request, self.now_s
            self._receives[request] += 1
            due_s = self.now_s + self._service[request]
            heapq.heappush(self._due, (due_s, _Kind.FINISH, request, worker.worker_id))

    def _next_idle(self) -> str:
        if self._chance is None:
            return next(iter(self._idle))
        return self._chance.choice(list(self._idle))
