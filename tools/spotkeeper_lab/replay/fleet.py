"""Workers of a replay: a heap of when each is free, in instances that start late and are billed.

A worker may serve several requests at once, in as many slots. The more share it, the longer each
takes: as NVIDIA measured it for Llama 3.3 70B on two H100, 5,000 tokens in and 500 out, NIM 1.8.0
(https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

ONPREM = -1
# Tokens a second by requests at once; each request takes (requests / tokens a second) as long.
TOKENS_PER_S = ((1, 51.67), (5, 218.48), (25, 623.4), (50, 814.37), (100, 917.26), (250, 920.12))


def slower(at_once: float) -> float:
    """Return how many times as long a request takes as alone when it shares a worker."""
    alone_s = 1 / TOKENS_PER_S[0][1]
    for (low, low_rate), (high, high_rate) in pairwise(TOKENS_PER_S):
        if at_once <= high:
            part = (max(at_once, low) - low) / (high - low)
            return (low / low_rate * (1 - part) + high / high_rate * part) / alone_s
    return at_once / TOKENS_PER_S[-1][1] / alone_s


@dataclass(slots=True)
class ReplayedInstance:
    """An instance that was launched at `launched_s` and whose workers serve from `ready_s` on."""

    launched_s: float
    ready_s: float


class ReplayFleet:
    """On-premises workers and cloud instances of equal size.

    `free` is a heap of (when a slot is free, instance, request it is busy with); the engine
    takes its first entry. A worker that starts is free when it is ready.
    """

    def __init__(
        self, onprem: int, workers_per_instance: int, cold_start_s: float, slots: int = 1
    ) -> None:
        self.free: list[tuple[float, int, int]] = [(0.0, ONPREM, -1)] * onprem * slots
        self.instances: dict[int, ReplayedInstance] = {}
        self.onprem = onprem
        self._size = workers_per_instance
        self._cold_start_s = cold_start_s
        self._launched = 0
        self._billed_s = 0.0
        self._slots = slots
        self._ends: dict[int, list[float]] = {}

    @property
    def workers(self) -> int:
        return len(self.free) // self._slots

    def serve(self, name: int, begin_s: float, service_s: float) -> float:
        """Return when a request ends that an instance begins; alone it takes `service_s`.

        How many share its worker then counts for all of it.
        """
        if self._slots == 1:
            return begin_s + service_s
        ends = self._ends.setdefault(name, [])
        while ends and ends[0] <= begin_s:
            heappop(ends)
        workers = self.onprem if name == ONPREM else self._size
        end_s = begin_s + service_s * slower((len(ends) + 1) / workers)
        heappush(ends, end_s)
        return end_s

    def booting(self, now_s: float) -> int:
        """Return the workers whose instance is not ready yet."""
        waiting = sum(1 for instance in self.instances.values() if instance.ready_s > now_s)
        return waiting * self._size

    def running(self, now_s: float) -> int:
        """Return the requests that are being served."""
        return sum(1 for free_s, _, request in self.free if request >= 0 and free_s > now_s)

    def resize(self, workers: int, now_s: float, grace_s: float) -> list[int]:
        """Launch or release whole instances; return the requests cut off after `grace_s`."""
        cloud = -(-max(0, workers - self.onprem) // self._size)
        if cloud >= len(self.instances):
            self.launch(cloud - len(self.instances), now_s, now_s + self._cold_start_s)
            return []
        return self._release(len(self.instances) - cloud, now_s, grace_s)

    def launch(self, instances: int, now_s: float, ready_s: float) -> None:
        """Add instances whose workers are free from `ready_s` on."""
        for _ in range(instances):
            self.instances[self._launched] = ReplayedInstance(now_s, ready_s)
            self.free += [(ready_s, self._launched, -1)] * self._size * self._slots
            self._launched += 1
        heapify(self.free)

    def _release(self, count: int, now_s: float, grace_s: float) -> list[int]:
        """Release booting instances first (newest first), then those that are idle soonest."""
        until = {name: now_s for name in self.instances}
        for free_s, name, request in self.free:
            if request >= 0 and name != ONPREM:
                until[name] = max(until[name], free_s)
        order = sorted(
            (instance.ready_s <= now_s, until[name], -name)
            for name, instance in self.instances.items()
        )
        gone = {-name for _, _, name in order[:count]}
        cut = [
            request
            for free_s, name, request in self.free
            if name in gone and free_s > now_s + grace_s and request >= 0
        ]
        for name in gone:
            ends_s = min(until[name], now_s + grace_s)
            self._billed_s += ends_s - self.instances.pop(name).launched_s
        self.free = [entry for entry in self.free if entry[1] not in gone]
        heapify(self.free)
        return cut

    def worker_hours(self, end_s: float) -> float:
        """Return the hours billed up to `end_s`, per worker, on-premises workers left out."""
        held = sum(max(0.0, end_s - one.launched_s) for one in self.instances.values())
        return (self._billed_s + held) * self._size / 3600.0

    def idle_at(self) -> float:
        """Return when the last request that is being served ends."""
        return max((entry[0] for entry in self.free if entry[2] >= 0), default=0.0)
