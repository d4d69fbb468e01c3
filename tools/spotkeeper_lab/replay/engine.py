"""One rule on one trace: a first-in, first-out queue, workers that start late, late logs.

A worker may serve several requests at once, in as many slots. The more share it, the longer each
takes: as NVIDIA measured it for Llama 3.3 70B on two H100, 5,000 tokens in and 500 out, NIM 1.8.0
(https://docs.nvidia.com/nim/benchmarking/llm/1.0.0/performance).
"""

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise

import numpy as np

from spotkeeper.domain.sizing.shadows import Choice
from spotkeeper_lab.replay.seen import Finished, Seen, SeenLogs
from spotkeeper_lab.replay.values import ReplaySettings, Row, Run
from spotkeeper_lab.traces.requests import RequestTrace

DRAIN_LIMIT_S = 4 * 3600.0
WARM_LOAD_RATE = 0.7
PICTURE_S = 60.0
ONPREM = -1
# Tokens a second by requests at once; each request takes (requests / tokens a second) as long.
TOKENS_PER_S = ((1, 51.67), (5, 218.48), (25, 623.4), (50, 814.37), (100, 917.26), (250, 920.12))


class Rule:
    """A sizing rule that decides every `every_s`; a released worker has `grace_s` to finish.

    `reason` is that of its last decision. It may say with how many workers to `start`, and which
    choices it `followed`, each from a second on.
    """

    name = ""
    every_s = 60.0
    grace_s = math.inf
    reason = ""
    start: int | None = None
    followed: Sequence[tuple[float, Choice]] = ()

    def __init__(self, settings: ReplaySettings) -> None:
        self.settings = settings

    def turn(self, seen: Seen, fleet: "ReplayFleet") -> tuple[int, list[int]]:
        """Resize the fleet; returns the workers to have in all, and the requests cut off."""
        wanted = min(self.workers(seen), self.settings.max_workers)
        return wanted, fleet.resize(wanted, seen.now_s, self.grace_s)

    def workers(self, seen: Seen) -> int:
        """Return the workers to have in all, on-premises and booting ones included."""
        raise NotImplementedError


def slower(at_once: float) -> float:
    """Return how many times as long a request takes as alone when it shares a worker."""
    alone_s = 1 / TOKENS_PER_S[0][1]
    for (low, low_rate), (high, high_rate) in pairwise(TOKENS_PER_S):
        if at_once <= high:
            part = (max(at_once, low) - low) / (high - low)
            return (low / low_rate * (1 - part) + high / high_rate * part) / alone_s
    return at_once / TOKENS_PER_S[-1][1] / alone_s


class ReplayFleet:
    """On-premises workers and cloud instances of equal size, which start late and are billed.

    `free` is a heap of (when a slot is free, instance and worker, request it is busy with); the
    replay takes its first entry. A worker that starts is free when it is ready. `instances` have
    the second of their launch and the one from which on their workers serve.
    """

    def __init__(self, settings: ReplaySettings) -> None:
        self.free: list[tuple[float, tuple[int, int], int]] = [
            (0.0, (ONPREM, worker), -1)
            for worker in range(settings.onprem)
            for _ in range(settings.slots)
        ]
        self.instances: dict[int, tuple[float, float]] = {}
        self._settings = settings
        self._launched = 0
        self._billed_s = 0.0
        self._ends: defaultdict[int, list[float]] = defaultdict(list)

    @property
    def workers(self) -> int:
        return len(self.free) // self._settings.slots

    def serve(self, name: int, begin_s: float, service_s: float) -> float:
        """Return when a request ends that an instance begins; alone it takes `service_s`.

        How many share its worker then counts for all of it.
        """
        if self._settings.slots == 1:
            return begin_s + service_s
        ends = self._ends[name]
        while ends and ends[0] <= begin_s:
            heappop(ends)
        settings = self._settings
        workers = settings.onprem if name == ONPREM else settings.workers_per_instance
        end_s = begin_s + service_s * slower((len(ends) + 1) / workers)
        heappush(ends, end_s)
        return end_s

    def booting(self, now_s: float) -> int:
        """Return the workers whose instance is not ready yet."""
        waiting = sum(ready_s > now_s for _, ready_s in self.instances.values())
        return waiting * self._settings.workers_per_instance

    def running(self, now_s: float) -> int:
        """Return the requests that are being served."""
        return sum(request >= 0 and free_s > now_s for free_s, _, request in self.free)

    def resize(self, workers: int, now_s: float, grace_s: float) -> list[int]:
        """Launch or release whole instances; return the requests cut off after `grace_s`."""
        settings = self._settings
        cloud = -(-max(0, workers - settings.onprem) // settings.workers_per_instance)
        if cloud >= len(self.instances):
            self.launch(cloud - len(self.instances), now_s, now_s + settings.cold_start_s)
            return []
        return self._release(len(self.instances) - cloud, now_s, grace_s)

    def launch(self, instances: int, now_s: float, ready_s: float) -> None:
        """Add instances whose workers are free from `ready_s` on."""
        workers = range(self._settings.workers_per_instance)
        for name in range(self._launched, self._launched + instances):
            self.instances[name] = now_s, ready_s
            for worker in workers:
                self.free += [(ready_s, (name, worker), -1)] * self._settings.slots
        self._launched += instances
        heapify(self.free)

    def _release(self, count: int, now_s: float, grace_s: float) -> list[int]:
        """Release booting instances first (newest first), then those that are idle soonest."""
        until = self._busy_until(now_s)
        order = sorted(
            (ready_s <= now_s, until[name], -name) for name, (_, ready_s) in self.instances.items()
        )
        return self.end({-name for _, _, name in order[:count]}, now_s, grace_s)

    def _busy_until(self, now_s: float) -> dict[int, float]:
        until = dict.fromkeys(self.instances, now_s)
        for free_s, (name, _), request in self.free:
            if request >= 0 and name != ONPREM:
                until[name] = max(until[name], free_s)
        return until

    def end(self, names: Set[int], now_s: float, grace_s: float) -> list[int]:
        """End instances; return the requests cut off after `grace_s`."""
        until = self._busy_until(now_s)
        cut = [
            request
            for free_s, (name, _), request in self.free
            if name in names and free_s > now_s + grace_s and request >= 0
        ]
        for name in names:
            launched_s, _ = self.instances.pop(name)
            self._billed_s += min(until[name], now_s + grace_s) - launched_s
        self.free = [entry for entry in self.free if entry[1][0] not in names]
        heapify(self.free)
        return cut

    def worker_hours(self, trace_end_s: float) -> float:
        """Return the hours billed, per worker, until trace and last request end."""
        idle_s = max((free_s for free_s, _, request in self.free if request >= 0), default=0.0)
        end_s = max(trace_end_s, idle_s)
        held = sum(max(0.0, end_s - launched_s) for launched_s, _ in self.instances.values())
        return (self._billed_s + held) * self._settings.workers_per_instance / 3600.0


def replay(trace: RequestTrace, rule: Rule, settings: ReplaySettings) -> Run:
    """Serve the whole trace with the fleet that the rule asks for.

    Each request goes to the worker that is free first. The rule has its turns between. The fleet
    starts as the rule or the settings say, else with what the warm-up needs at a load rate of 0.7.
    """
    fleet, logs = ReplayFleet(settings), SeenLogs(trace.end_s)
    warm_s = max(min(settings.warmup_s, trace.end_s), 60.0)
    load = float(trace.service_s[trace.arrival_s < warm_s].sum()) / warm_s / settings.slots
    warm = min(max(1, math.ceil(load / WARM_LOAD_RATE)), settings.max_workers)
    start = settings.initial_workers if rule.start is None else rule.start
    initial = warm if start is None else start
    cloud = max(0, initial - settings.onprem)
    fleet.launch(-(-cloud // settings.workers_per_instance), 0.0, 0.0)
    starts = [math.inf] * len(trace)
    sent: defaultdict[int, list[Finished]] = defaultdict(list)
    lost: list[int] = []
    outs, ins, at_most = 0, 0, False
    picture = [(0.0, fleet.workers, fleet.workers, "start")]
    turn, every_s, limit_s = 1, rule.every_s, trace.end_s + DRAIN_LIMIT_S
    requests = zip(trace.arrival_s.tolist(), trace.service_s.tolist(), strict=True)
    for request, (arrival_s, service_s) in enumerate(requests):
        while True:
            free_s, slot, _ = fleet.free[0] if fleet.free else (math.inf, (0, 0), 0)
            begin_s, now_s = max(free_s, arrival_s), turn * every_s
            if begin_s < now_s or now_s > limit_s:
                break
            if finished := sent.pop(turn, []):
                logs.add(finished)
            booting = fleet.booting(now_s)
            arrived = int(trace.arrival_s.searchsorted(now_s, side="right"))
            seen = Seen(
                now_s=now_s,
                live=fleet.workers - booting,
                booting=booting,
                queue=arrived - request,
                running=fleet.running(now_s),
                arrived_s=trace.arrival_s[:arrived],
                logs=logs,
                finished=finished,
                slots=settings.slots,
            )
            before = len(fleet.instances)
            wanted, cut = rule.turn(seen, fleet)
            at_most |= wanted == settings.max_workers
            lost += cut
            outs += len(fleet.instances) > before
            ins += len(fleet.instances) < before
            if now_s - picture[-1][0] >= PICTURE_S:
                picture.append((now_s, wanted, seen.live, rule.reason))
            turn += 1
        if begin_s >= now_s:
            break
        end_s = fleet.serve(slot[0], begin_s, service_s)
        heapreplace(fleet.free, (end_s, slot, request))
        starts[request] = begin_s
        sent_s = math.ceil(end_s / settings.log_batch_s) * settings.log_batch_s
        log = Finished(request, arrival_s, begin_s, end_s, sent_s, slot)
        sent[math.ceil((sent_s + settings.log_delay_s) / every_s)].append(log)
    wait_s = np.array(starts) - trace.arrival_s
    wait_s[lost] = math.inf
    counted = wait_s[trace.arrival_s >= settings.warmup_s]
    counted = counted if counted.size else wait_s
    share = float(np.mean(counted <= settings.wait_s))
    p50, p95, p99 = np.quantile(counted, (0.5, 0.95, 0.99), method="higher").tolist()
    row = Row(
        trace=trace.name,
        rule=rule.name,
        objective_met=share >= settings.share,
        share_in_time=round(share, 6),
        wait_p50=round(p50, 3),
        wait_p95=round(p95, 3),
        wait_p99=round(p99, 3),
        worker_hours=round(fleet.worker_hours(trace.end_s), 3),
        scale_outs=outs,
        scale_ins=ins,
        lost=int(np.isinf(wait_s).sum()),
        requests=len(trace),
        at_most=at_most,
        settings=settings,
    )
    *counts, reasons = zip(*picture, strict=True)
    time_s, wanted_at, serving = np.array(counts, dtype=np.float64)
    return Run(
        row=row,
        wait_s=wait_s,
        time_s=time_s,
        wanted=wanted_at,
        serving=serving,
        reasons=reasons,
        choices=rule.followed,
    )
