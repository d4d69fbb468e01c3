"""Time in the simulated cloud: what is due when, and the events that tell of it."""

import heapq
import math
import random
from collections.abc import Callable

from spotkeeper_lab.cloud.values import Activity, CloudEvent, EventKind, Physics

LOSS, START, END, RETRY = range(4)

type _Task = tuple[float, int, int, Callable[[], None]]


class CloudEngine:
    """Tasks in the order of their time and rank; `now_s` is as far as the cloud was advanced."""

    def __init__(self, physics: Physics, seed: int) -> None:
        self.now_s = 0.0
        self.physics = physics
        self._seed = seed
        self._delays = random.Random(f"{seed}/delays")
        self._tasks: list[_Task] = []
        self._tasked = 0
        self._events: list[CloudEvent] = []
        self._deliveries: list[float] = []

    def advance(self, to_s: float) -> list[CloudEvent]:
        """Let time pass; answers what happened since the last call, in time order."""
        while (next_s := self._next_happening()) <= to_s:
            self.now_s = next_s
            self._happen()
        self.now_s = max(self.now_s, to_s)
        told, self._events = self._events, []
        return told

    def next_s(self) -> float | None:
        """The next instant at which something happens or is delivered."""
        if self._events:
            return self.now_s
        while self._deliveries and self._deliveries[0] <= self.now_s:
            heapq.heappop(self._deliveries)
        delivery = self._deliveries[0] if self._deliveries else math.inf
        soonest = min(self._next_happening(), delivery)
        return None if soonest == math.inf else soonest

    def _next_happening(self) -> float:
        return self._tasks[0][0] if self._tasks else math.inf

    def _happen(self) -> None:
        """Do all that is due now."""
        self._work(RETRY)

    def _work(self, rank: int) -> None:
        while self._tasks and self._tasks[0][:2] <= (self.now_s, rank):
            heapq.heappop(self._tasks)[3]()

    def _at(self, at_s: float, rank: int, task: Callable[[], None]) -> None:
        self._tasked += 1
        heapq.heappush(self._tasks, (at_s, rank, self._tasked, task))

    def _tell(
        self, kind: EventKind, group: str, instance_id: str = "", activity: Activity | None = None
    ) -> None:
        """Send an event on its way: once, or by the cloud's physics twice, or never."""
        physics = self.physics
        if physics.event_lost and self._delays.random() < physics.event_lost:
            return
        twice = bool(physics.event_twice) and self._delays.random() < physics.event_twice
        for _ in range(1 + twice):
            delay = physics.event_delay_s
            deliver_s = self.now_s + (self._delays.uniform(0.0, delay) if delay else 0.0)
            heapq.heappush(self._deliveries, deliver_s)
            self._events.append(
                CloudEvent(
                    kind=kind,
                    at_s=self.now_s,
                    deliver_s=deliver_s,
                    group=group,
                    instance_id=instance_id,
                    activity=activity,
                )
            )
