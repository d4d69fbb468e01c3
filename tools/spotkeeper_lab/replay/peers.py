"""Autoscalers of other platforms, by their documents; each sees its platform's own meters."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from spotkeeper_lab.replay.rules import KUBERNETES_GRACE_S, TARGET, Highest

if TYPE_CHECKING:
    from spotkeeper_lab.replay.seen import Seen
    from spotkeeper_lab.replay.values import ReplaySettings

TOLERANCE = 0.1


class AwsBacklog:
    """`aws-backlog`: target tracking of queue / in-service instances at wait / service time.

    Out when three one-minute points are above the target, in by at most a tenth when fifteen are
    below nine tenths of it. Instances that boot are not in service, so they are requested again.
    Source: EC2 Auto Scaling user guide, "Scaling policy based on Amazon SQS".
    """

    name = "aws-backlog"
    every_s = 60.0
    grace_s = math.inf

    def __init__(self, settings: ReplaySettings) -> None:
        self.reason = ""
        self._wait_s = settings.wait_s
        self._points: deque[float] = deque(maxlen=15)

    def workers(self, seen: Seen) -> int:
        """Return in-service workers times metric over target, added to what boots."""
        mean_s, _ = seen.logs.moments(seen.now_s)
        target = max(self._wait_s / max(mean_s, 1e-9), 1e-9) if mean_s else math.inf
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


class KedaQueue:
    """`keda-queue`: ceil((visible + in flight) / 5) every 15 s, in after 300 s of less.

    Of workers that serve more than 5 at once, as many as they serve.

    Source: KEDA aws-sqs-queue scaler (queueLength 5) and the stabilisation of the HPA it drives.
    """

    name = "keda-queue"
    every_s = 15.0
    grace_s = KUBERNETES_GRACE_S

    def __init__(self) -> None:
        self.reason = ""
        self._kept = Highest(300.0)

    def workers(self, seen: Seen) -> int:
        """Return a worker for five messages."""
        if not self.reason:
            self._kept.of(seen.now_s, seen.have)
        messages = seen.queue + seen.running
        self.reason = f"{messages} messages"
        return self._kept.of(seen.now_s, max(1, math.ceil(messages / max(5, seen.slots))))


class Hpa:
    """`hpa`: ceil(ready x utilisation / 0.7) every 15 s, 10 % dead band, in after 300 s of less.

    Utilisation is the mean of the last minute; pods that boot count as idle when scaling out; out
    by at most double or four pods in 15 s. Source: Kubernetes, "Horizontal Pod Autoscaling".
    """

    name = "hpa"
    every_s = 15.0
    grace_s = KUBERNETES_GRACE_S

    def __init__(self) -> None:
        self.reason = ""
        self._kept = Highest(300.0)
        self._running: deque[float] = deque(maxlen=4)

    def workers(self, seen: Seen) -> int:
        """Return the recommendation, held at the highest of five minutes."""
        if not self.reason:
            self._kept.of(seen.now_s, seen.have)
        self._running.append(seen.running / seen.slots)
        busy = sum(self._running) / len(self._running)
        ratio = busy / max(1, seen.live) / TARGET
        want = math.ceil(busy / TARGET)
        if ratio > 1:
            ratio = busy / max(1, seen.have) / TARGET
        if abs(ratio - 1) <= TOLERANCE or (ratio < 1 and seen.live * TARGET < busy):
            want = seen.have
        self.reason = f"utilisation {busy / max(1, seen.live):.0%}"
        limit = max(2 * seen.have, seen.have + 4)
        return min(limit, self._kept.of(seen.now_s, max(1, want)))


class Kpa:
    """`kpa`: concurrency / 0.7 over 60 s, over 6 s in panic, every 2 s.

    Panic from twice the ready workers on; no scale-in while it lasts or before the first window
    is full; at most halved at once.
    Source: Knative, "Additional autoscaling configuration for Knative Pod Autoscaler".
    """

    name = "kpa"
    every_s = 2.0
    grace_s = KUBERNETES_GRACE_S

    def __init__(self) -> None:
        self.reason = ""
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


class SkyServe:
    """`skyserve`: ceil(request rate / target) every 20 s; up after 300 s, down after 1,200 s.

    The target is 0.7 of what one worker serves. Source: SkyPilot, SkyServe autoscaling.
    """

    name = "skyserve"
    every_s = 20.0
    grace_s = math.inf

    def __init__(self) -> None:
        self.reason = ""
        self._above = self._below = 0

    def workers(self, seen: Seen) -> int:
        """Return the count once it was wanted for long enough."""
        mean_s, _ = seen.logs.moments(seen.now_s)
        load = seen.rate_per_s(60.0) * mean_s / seen.slots
        want = max(1, math.ceil(load / TARGET)) if mean_s else seen.have
        self._above = self._above + 1 if want > seen.have else 0
        self._below = self._below + 1 if want < seen.have else 0
        self.reason = f"{seen.rate_per_s(60.0):.2f} requests per second"
        above_s, below_s = self._above * self.every_s, self._below * self.every_s
        if above_s >= 300.0 or below_s >= 1200.0:  # noqa: PLR2004
            self._above = self._below = 0
            return want
        return seen.have
