"""The sizing rules in use elsewhere, as their documents describe them.

Their platforms see the true queue and concurrency at once.
Numbers that a rule needs and its documents leave open are the promise's or 0.7 of a worker.
"""

import math
from abc import ABC, abstractmethod
from collections import deque

import numpy as np

from spotkeeper.domain.sizing import shadows
from spotkeeper_lab.replay.engine import Rule, slower
from spotkeeper_lab.replay.seen import SLOT_S, Seen
from spotkeeper_lab.replay.values import ReplaySettings
from spotkeeper_lab.traces.requests import RequestTrace

TARGET = 0.7
KUBERNETES_GRACE_S = 30.0
LOAD_WINDOW_S = 300.0
SETTLED_S = 30.0
TOLERANCE = 0.1


def erlang_workers(load: float, service_mean_s: float, settings: ReplaySettings) -> int:
    """Return the workers of Erlang C for the promise, within the bound."""
    most = shadows.erlang_workers(load, service_mean_s, settings.wait_s, settings.share)
    return min(most, settings.max_workers)


class Highest:
    """The highest value of the last `window_s`: how most rules scale in slowly."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, int]] = deque()

    def of(self, now_s: float, value: int) -> int:
        """Add a value and return the highest that is not too old."""
        self._values.append((now_s, value))
        while self._values[0][0] <= now_s - self._window_s:
            self._values.popleft()
        return max(value for _, value in self._values)


class FixedPeak(Rule):
    """`fixed-peak`: Erlang C for the trace's highest five minutes, from the start, for good."""

    name = "fixed-peak"
    reason = "fixed"

    def __init__(self, settings: ReplaySettings, trace: RequestTrace) -> None:
        super().__init__(settings)
        slots = (trace.arrival_s // LOAD_WINDOW_S).astype(np.int64)
        load = float(np.bincount(slots, weights=trace.service_s).max()) / LOAD_WINDOW_S
        mean_s = float(trace.service_s.mean())
        load, mean_s = (each * slower(settings.slots) for each in (load, mean_s))
        self.count = math.ceil(erlang_workers(load, mean_s, settings) / settings.slots)
        self.start = self.count

    def workers(self, seen: Seen) -> int:
        """Return the same count always."""
        return self.count


def offered_load(seen: Seen) -> float:
    """Return the work that arrived in five minutes, per second, from logs.

    The window ends half a minute ago, when most of its requests have finished.
    """
    last = int((seen.now_s - SETTLED_S) / SLOT_S)
    length = int(min(LOAD_WINDOW_S / SLOT_S, last))
    return float(seen.logs.work_s[last - length : last].sum()) / (SLOT_S * length)


class LogRule(Rule, ABC):
    """Rules that read the search logs once a minute; scale-in after `down_s` of less need."""

    down_s = 300.0

    def __init__(self, settings: ReplaySettings) -> None:
        super().__init__(settings)
        self._kept = Highest(self.down_s)

    def workers(self, seen: Seen) -> int:
        """Return the rule's count for the logged load, or hold while there is no log."""
        mean_s = seen.logs.mean_s(seen.now_s)
        if mean_s == 0:
            return seen.have
        want = max(1, math.ceil(math.ceil(self.slots(seen, mean_s)) / seen.slots))
        young = seen.now_s < self.down_s
        self.reason = f"{want} for the load"
        return self._kept.of(seen.now_s, max(want, seen.have) if young else want)

    @abstractmethod
    def slots(self, seen: Seen, mean_s: float) -> float:
        """Return the slots for what is seen, given the mean service time."""


class LoadRate(LogRule):
    """`load-rate`: ceil(busy time / (window x 0.7)) over five minutes, down after fifteen."""

    name = "load-rate"
    down_s = 900.0

    def slots(self, seen: Seen, mean_s: float) -> float:
        last = int(seen.now_s / SLOT_S)
        length = int(min(LOAD_WINDOW_S, seen.now_s) / SLOT_S)
        busy_s = float(seen.logs.finished_work_s[last - length : last].sum())
        return busy_s / (SLOT_S * length) / TARGET


class ErlangC(LogRule):
    """`erlang-c`: the fewest c with P(wait > T) <= 1 - share in M/M/c, for five minutes' load."""

    name = "erlang-c"

    def slots(self, seen: Seen, mean_s: float) -> float:
        return erlang_workers(offered_load(seen), mean_s, self.settings)


class SquareRoot(LogRule):
    """`square-root`: R + 1.645 sqrt(R), the 95th percentile of Poisson concurrency."""

    name = "square-root"

    def slots(self, seen: Seen, mean_s: float) -> float:
        return (load := offered_load(seen)) + 1.645 * math.sqrt(load)


class AwsBacklog(Rule):
    """`aws-backlog`: target tracking of queue / in-service instances at wait / service time.

    Out when three one-minute points are above the target, in by at most a tenth when fifteen are
    below nine tenths of it. Instances that boot are not in service, so they are requested again.
    Source: EC2 Auto Scaling user guide, "Scaling policy based on Amazon SQS".
    """

    name = "aws-backlog"

    def __init__(self, settings: ReplaySettings) -> None:
        super().__init__(settings)
        self._points: deque[float] = deque(maxlen=15)

    def workers(self, seen: Seen) -> int:
        """Return in-service workers times metric over target, added to what boots."""
        mean_s = seen.logs.mean_s(seen.now_s)
        target = max(self.settings.wait_s / max(mean_s, 1e-9), 1e-9) if mean_s else math.inf
        target *= seen.slots
        self._points.append(seen.queue / max(1, seen.live) / target)
        recent = list(self._points)
        self.reason = f"backlog per worker is {recent[-1]:.2f} of its target"
        if len(recent) >= 3 and min(recent[-3:]) > 1:  # noqa: PLR2004  three points of the alarm
            return seen.have + max(0, math.ceil(seen.live * recent[-1]) - seen.live)
        if len(recent) == self._points.maxlen and max(recent) < 1 - TOLERANCE:
            self._points.clear()
            return max(1, math.ceil(seen.have * max(0.9, recent[-1])))
        return seen.have


class _PodRule(Rule):
    """A rule of Kubernetes; in after 300 s of less, from the pods that it finds on."""

    every_s = 15.0
    grace_s = KUBERNETES_GRACE_S

    def __init__(self, settings: ReplaySettings) -> None:
        super().__init__(settings)
        self._kept = Highest(300.0)

    def _held(self, seen: Seen, pods: int, reason: str) -> int:
        if not self.reason:
            self._kept.of(seen.now_s, seen.have)
        self.reason = reason
        return self._kept.of(seen.now_s, max(1, pods))


class KedaQueue(_PodRule):
    """`keda-queue`: ceil((visible + in flight) / 5) every 15 s, in after 300 s of less.

    Of workers that serve more than 5 at once, as many as they serve.

    Source: KEDA aws-sqs-queue scaler (queueLength 5) and the stabilisation of the HPA it drives.
    """

    name = "keda-queue"

    def workers(self, seen: Seen) -> int:
        """Return a worker for five messages."""
        messages = seen.queue + seen.running
        pods = math.ceil(messages / max(5, seen.slots))
        return self._held(seen, pods, f"{messages} messages")


class Hpa(_PodRule):
    """`hpa`: ceil(ready x utilisation / 0.7) every 15 s, 10 % dead band, in after 300 s of less.

    Utilisation is the mean of the last minute; pods that boot count as idle when scaling out; out
    by at most double or four pods in 15 s. Source: Kubernetes, "Horizontal Pod Autoscaling".
    """

    name = "hpa"

    def __init__(self, settings: ReplaySettings) -> None:
        super().__init__(settings)
        self._running: deque[float] = deque(maxlen=4)

    def workers(self, seen: Seen) -> int:
        """Return the recommendation, held at the highest of five minutes."""
        self._running.append(seen.running / seen.slots)
        busy = sum(self._running) / len(self._running)
        ratio = busy / max(1, seen.live) / TARGET
        want = math.ceil(busy / TARGET)
        if ratio > 1:
            ratio = busy / max(1, seen.have) / TARGET
        if abs(ratio - 1) <= TOLERANCE or (ratio < 1 and seen.live * TARGET < busy):
            want = seen.have
        held = self._held(seen, want, f"utilisation {busy / max(1, seen.live):.0%}")
        return min(max(2 * seen.have, seen.have + 4), held)


class Kpa(Rule):
    """`kpa`: concurrency / 0.7 over 60 s, over 6 s in panic, every 2 s.

    Panic from twice the ready workers on; no scale-in while it lasts or before the first window
    is full; at most halved at once.
    Source: Knative, "Additional autoscaling configuration for Knative Pod Autoscaler".
    """

    name = "kpa"
    every_s = 2.0
    grace_s = KUBERNETES_GRACE_S

    def __init__(self, settings: ReplaySettings) -> None:
        super().__init__(settings)
        self._concurrency: deque[float] = deque(maxlen=30)
        self._panic_until_s = -math.inf
        self._panic_workers = 0

    def workers(self, seen: Seen) -> int:
        """Return the stable count, or the panic's highest."""
        self._concurrency.append((seen.queue + seen.running) / seen.slots)
        values = list(self._concurrency)
        stable = math.ceil(sum(values) / len(values) / TARGET)
        panic = math.ceil(sum(values[-3:]) / len(values[-3:]) / TARGET)
        if panic >= 2 * max(1, seen.live):
            self._panic_until_s = seen.now_s + 60.0
        self.reason = f"{values[-1]:g} requests at once for each slot"
        if seen.now_s < self._panic_until_s:
            self._panic_workers = max(self._panic_workers, panic, stable, seen.have)
            return self._panic_workers
        self._panic_workers = 0
        young = len(values) < (self._concurrency.maxlen or 0)
        return max(1, stable, seen.have if young else seen.live // 2)


class SkyServe(Rule):
    """`skyserve`: ceil(request rate / target) every 20 s; up after 300 s, down after 1,200 s.

    The target is 0.7 of what one worker serves. Source: SkyPilot, SkyServe autoscaling.
    """

    name = "skyserve"
    every_s = 20.0

    def __init__(self, settings: ReplaySettings) -> None:
        super().__init__(settings)
        self._above = self._below = 0

    def workers(self, seen: Seen) -> int:
        """Return the count once it was wanted for long enough."""
        mean_s = seen.logs.mean_s(seen.now_s)
        first = int(np.searchsorted(seen.arrived_s, seen.now_s - 60.0))
        rate_per_s = (len(seen.arrived_s) - first) / min(60.0, max(seen.now_s, 1.0))
        load = rate_per_s * mean_s / seen.slots
        want = max(1, math.ceil(load / TARGET)) if mean_s else seen.have
        self._above = self._above + 1 if want > seen.have else 0
        self._below = self._below + 1 if want < seen.have else 0
        self.reason = f"{rate_per_s:.2f} requests per second"
        above_s, below_s = self._above * self.every_s, self._below * self.every_s
        if above_s >= 300.0 or below_s >= 1200.0:  # noqa: PLR2004
            self._above = self._below = 0
            return want
        return seen.have
