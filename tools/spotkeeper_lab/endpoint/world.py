"""The simulated cloud in real time: its seconds are those since the endpoint came up."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudEvent, GroupSpec, Physics
from spotkeeper_lab.local_aws.answers import Answers, LifecycleAnswers
from spotkeeper_lab.local_aws.events import Event, Events
from spotkeeper_lab.local_aws.wire import VirtualTime, WireAction
from spotkeeper_lab.traces.market import market_of

# The cloud needs an end of its market; a lab is not up for so long.
A_MONTH_S = 30 * 86_400.0
# A market has one capacity at a time.
LEAST_S = 1e-6


class World:
    """A cloud that many threads look at; every look first brings it up to now.

    `seconds` is a clock that counts from 0.
    """

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        capacities: dict[str, int],
        physics: Physics,
        time: VirtualTime,
        seconds: Callable[[], float],
    ) -> None:
        self.time = time
        self._clock = seconds
        self._ahead_s = 0.0
        self._events = Events(time)
        self._lock = threading.RLock()
        self.begin(groups, capacities, physics)

    def begin(
        self, groups: Sequence[GroupSpec], capacities: dict[str, int], physics: Physics
    ) -> None:
        """Begin anew, with these groups as they are when they were made just now."""
        with self._lock:
            self.capacities = dict(capacities)
            start = {pool: [(0.0, capacity)] for pool, capacity in capacities.items()}
            self._cloud = Cloud(market_of("lab", A_MONTH_S, start), groups, physics)
            self._told: list[CloudEvent] = []
            answers = Answers(self._cloud, self.time)
            self.actions: Mapping[str, Mapping[str, WireAction]] = {
                "autoscaling": answers.auto_scaling() | LifecycleAnswers(self._cloud).actions(),
                "ec2": answers.ec2(over_the_wire=True),
            }

    @contextmanager
    def now(self) -> Iterator[Cloud]:
        """The cloud as it is now, for nobody else meanwhile."""
        with self._lock:
            self._advance()
            try:
                yield self._cloud
            finally:
                self._advance()

    def due(self) -> list[Event]:
        """The events that are to be delivered by now, in the order of their delivery."""
        with self.now() as cloud:
            due = sorted(
                (event for event in self._told if event.deliver_s <= cloud.now_s),
                key=lambda event: event.deliver_s,
            )
            self._told = [event for event in self._told if event.deliver_s > cloud.now_s]
            return [self._events.of_cloud(event) for event in due]

    def set_capacity(self, pools: Iterable[str], capacity: int, in_s: float = 0.0) -> None:
        """Let pools hold so many from `in_s` seconds on; a drop is announced as AWS does."""
        with self.now() as cloud:
            steps = {name: [(0.0, held)] for name, held in self.capacities.items()}
            for pool in pools:
                at_s = max(cloud.now_s + in_s, LEAST_S)
                steps.setdefault(pool, [(0.0, 0)]).append((at_s, capacity))
                self.capacities[pool] = capacity
            cloud.set_market(market_of("lab", A_MONTH_S, steps))

    def create_group(self, spec: GroupSpec, capacity: int) -> None:
        """Make a group; a pool that was not known holds `capacity`."""
        if unknown := [pool for pool in spec.pools if pool not in self.capacities]:
            self.set_capacity(unknown, capacity)
        with self.now() as cloud:
            cloud.create_group(spec)

    def delete_group(self, group: str) -> None:
        """Delete a group and end its instances."""
        with self.now() as cloud:
            cloud.delete_group(group)

    def seconds(self) -> float:
        """The lab's clock."""
        return self._clock() + self._ahead_s

    def skip(self, seconds: float) -> None:
        """Let a time be over at once, for whom only the cloud's own clock matters."""
        with self._lock:
            self._ahead_s += seconds
            self._advance()

    def _advance(self) -> None:
        self._told.extend(self._cloud.advance(self.seconds()))
