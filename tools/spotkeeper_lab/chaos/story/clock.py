"""The time of a run: what is due when, over the simulated cloud, and the story of what happened."""

import heapq
import random
from collections.abc import Callable
from datetime import datetime

from spotkeeper_lab.chaos.story.scenario import Fault, Kind, Scenario
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudEvent
from spotkeeper_lab.fakes.virtual_time import EPOCH
from spotkeeper_lab.local_aws.wire import VirtualTime


class Timeline:
    """An agenda over a cloud; what passes with time is filled in by the floors above."""

    def __init__(self, scenario: Scenario, cloud: Cloud) -> None:
        self.scenario = scenario
        self.cloud = cloud
        self.rng = random.Random(f"{scenario.seed}/world")
        self.time = VirtualTime(EPOCH)
        self.active: dict[Kind, Fault] = {}
        self.story: list[str] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._entered = 0

    @property
    def now_s(self) -> float:
        """The second of the run."""
        return self.cloud.now_s

    def now(self) -> datetime:
        """The clock that the functions read."""
        return self.time.at(self.now_s)

    def enter(self, at_s: float, task: Callable[[], None]) -> None:
        """Have something happen at an instant."""
        self._entered += 1
        heapq.heappush(self._agenda, (max(at_s, self.now_s), self._entered, task))

    def tell(self, line: str) -> None:
        """Add a line to the story."""
        minutes, seconds = divmod(self.now_s, 60.0)
        self.story.append(f"{minutes:4.0f}:{seconds:04.1f}  {line}")

    def _next_s(self) -> float:
        cloud_s = self.cloud.next_s()
        return self._agenda[0][0] if cloud_s is None else min(cloud_s, self._agenda[0][0])

    def _go_through(self, end_s: float) -> None:
        """Do all that is due up to an instant."""
        while (at_s := self._next_s()) <= end_s:
            self._pass(at_s)
            while self._agenda and self._agenda[0][0] <= self.now_s:
                heapq.heappop(self._agenda)[2]()

    def _pass(self, to_s: float) -> None:
        """Let time pass to an instant before which nothing is due."""
        for event in self.cloud.advance(to_s):
            self._happened(event)

    def _happened(self, event: CloudEvent) -> None:
        """Take note of an event of the cloud."""
        raise NotImplementedError
