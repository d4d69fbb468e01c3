"""One rule on one trace: a first-in, first-out queue, workers that start late, late logs."""

from __future__ import annotations

import math
from collections import defaultdict
from heapq import heapreplace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from spotkeeper_lab.replay.fleet import ReplayFleet
from spotkeeper_lab.replay.seen import Seen, SeenLogs
from spotkeeper_lab.replay.values import Row, Run, Timeline

if TYPE_CHECKING:
    from spotkeeper_lab.replay.values import Floats, ReplaySettings
    from spotkeeper_lab.traces.requests import RequestTrace

DRAIN_LIMIT_S = 4 * 3600.0
WARM_LOAD_RATE = 0.7
PICTURE_S = 60.0


class Rule(Protocol):
    """A sizing rule that decides every `every_s`; a released worker has `grace_s` to finish."""

    name: str
    every_s: float
    grace_s: float
    reason: str

    def workers(self, seen: Seen) -> int:
        """Return the workers to have in all, on-premises and booting ones included."""
        ...


def warm_start(trace: RequestTrace, settings: ReplaySettings) -> int:
    """Return the workers to start with: the warm-up's load at a load rate of 0.7, or as set."""
    if settings.initial_workers is not None:
        return settings.initial_workers
    length_s = max(min(settings.warmup_s, trace.end_s), 60.0)
    work_s = float(trace.service_s[trace.arrival_s < length_s].sum())
    load = work_s / length_s / settings.slots
    return min(max(1, math.ceil(load / WARM_LOAD_RATE)), settings.max_workers)


def replay(trace: RequestTrace, rule: Rule, settings: ReplaySettings) -> Run:
    """Serve the whole trace with the fleet that the rule asks for."""
    return _Replay(trace, rule, settings).run()


class _Replay:
    def __init__(self, trace: RequestTrace, rule: Rule, settings: ReplaySettings) -> None:
        self.trace, self.rule, self.settings = trace, rule, settings
        self.fleet = ReplayFleet(
            settings.onprem, settings.workers_per_instance, settings.cold_start_s, settings.slots
        )
        initial = warm_start(trace, settings) - settings.onprem
        self.fleet.launch(-(-max(0, initial) // settings.workers_per_instance), 0.0, 0.0)
        self.logs = SeenLogs(trace.end_s, settings.wait_s)
        self.start_s: list[float] = [math.inf] * len(trace)
        self.took: dict[int, tuple[float, int]] = {}
        self.coming: defaultdict[int, list[int]] = defaultdict(list)
        self.lost: list[int] = []
        self.scale_outs = self.scale_ins = 0
        self.at_most = False
        start = self.fleet.workers
        self.picture: list[tuple[float, int, int, str]] = [(0.0, start, start, "start")]

    def run(self) -> Run:
        """Give each request to the worker that is free first, and the rule its turns between."""
        requests = zip(self.trace.arrival_s.tolist(), self.trace.service_s.tolist(), strict=True)
        limit_s, every_s, turn = self.trace.end_s + DRAIN_LIMIT_S, self.rule.every_s, 1
        batch_s, delay_s = self.settings.log_batch_s, self.settings.log_delay_s
        fleet, coming, starts = self.fleet, self.coming, self.start_s
        for request, (arrival_s, service_s) in enumerate(requests):
            while True:
                free_s, name, _ = fleet.free[0] if fleet.free else (math.inf, 0, 0)
                begin_s = max(free_s, arrival_s)
                if begin_s < turn * every_s or turn * every_s > limit_s:
                    break
                self._turn(turn, request)
                turn += 1
            if begin_s >= turn * every_s:
                break
            end_s = fleet.serve(name, begin_s, service_s)
            self.took[request] = end_s - begin_s, name
            heapreplace(fleet.free, (end_s, name, request))
            starts[request] = begin_s
            readable_s = math.ceil(end_s / batch_s) * batch_s + delay_s
            coming[math.ceil(readable_s / every_s)].append(request)
        return self._result()

    def _turn(self, turn: int, next_request: int) -> None:
        now_s = turn * self.rule.every_s
        finished = self.coming.pop(turn, [])
        if finished:
            starts = np.array([self.start_s[request] for request in finished])
            took = [self.took.pop(request) for request in finished]
            took_s = np.array([each_s for each_s, _ in took])
            self.logs.add(self.trace.arrival_s[finished], starts, took_s)
            if self.settings.slots > 1:
                self.logs.share(starts, took_s, [name for _, name in took])
        seen = self._look(now_s, next_request)
        wanted = min(self.rule.workers(seen), self.settings.max_workers)
        self.at_most |= wanted == self.settings.max_workers
        before = len(self.fleet.instances)
        self.lost += self.fleet.resize(wanted, now_s, self.rule.grace_s)
        self.scale_outs += len(self.fleet.instances) > before
        self.scale_ins += len(self.fleet.instances) < before
        if now_s - self.picture[-1][0] >= PICTURE_S:
            self.picture.append((now_s, wanted, seen.live, self.rule.reason))

    def _look(self, now_s: float, next_request: int) -> Seen:
        booting = self.fleet.booting(now_s)
        arrived = int(self.trace.arrival_s.searchsorted(now_s, side="right"))
        return Seen(
            now_s=now_s,
            live=self.fleet.workers - booting,
            booting=booting,
            queue=arrived - next_request,
            running=self.fleet.running(now_s),
            arrived_s=self.trace.arrival_s[:arrived],
            logs=self.logs,
            slots=self.settings.slots,
        )

    def _result(self) -> Run:
        wait_s = np.array(self.start_s) - self.trace.arrival_s
        wait_s[self.lost] = math.inf
        row = self._row(wait_s)
        time_s, wanted, serving, reasons = zip(*self.picture, strict=True)
        timeline = Timeline(
            time_s=np.array(time_s),
            wanted=np.array(wanted, dtype=np.float64),
            serving=np.array(serving, dtype=np.float64),
            reasons=reasons,
        )
        return Run(row=row, wait_s=wait_s, timeline=timeline)

    def _row(self, wait_s: Floats) -> Row:
        counted = wait_s[self.trace.arrival_s >= self.settings.warmup_s]
        counted = counted if counted.size else wait_s
        share = float(np.mean(counted <= self.settings.wait_s))
        p50, p95, p99 = np.quantile(counted, (0.5, 0.95, 0.99), method="higher").tolist()
        return Row(
            trace=self.trace.name,
            rule=self.rule.name,
            objective_met=share >= self.settings.share,
            share_in_time=round(share, 6),
            wait_p50=round(p50, 3),
            wait_p95=round(p95, 3),
            wait_p99=round(p99, 3),
            worker_hours=round(
                self.fleet.worker_hours(max(self.trace.end_s, self.fleet.idle_at())), 3
            ),
            scale_outs=self.scale_outs,
            scale_ins=self.scale_ins,
            lost=int(np.isinf(wait_s).sum()),
            requests=len(self.trace),
            at_most=self.at_most,
            settings=self.settings,
        )
