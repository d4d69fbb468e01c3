"""The sizing rules in use elsewhere, as their documents describe them, and Spotkeeper's.

The peers' platforms see the true queue and concurrency at once; Spotkeeper sees search logs.
Numbers that a rule needs and its documents leave open are the promise's or 0.7 of a worker.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from spotkeeper.domain.load.history import FADE, SETTLED_SLOTS, STEP_SLOTS, Scores
from spotkeeper.domain.load.request_queue import QueueLength, known_waiting, quiet_s, watch_queue
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper.domain.sizing.shadows import (
    FAMILY,
    Choice,
    Member,
    ObjectivePolicy,
    advanced,
    choose,
)
from spotkeeper.domain.sizing.size import (
    Need,
    PastNeed,
    size_to_objective,
    to_drain,
)
from spotkeeper_lab.replay.erlang import erlang_workers
from spotkeeper_lab.replay.fleet import slower
from spotkeeper_lab.replay.seen import EPOCH, SLOT_S, STALE_S

if TYPE_CHECKING:
    from spotkeeper.domain.load.history import LoadSummary
    from spotkeeper.domain.load.request_queue import QueueMemory
    from spotkeeper_lab.replay.seen import Seen
    from spotkeeper_lab.replay.values import ReplaySettings
    from spotkeeper_lab.traces.requests import RequestTrace

TARGET = 0.7
KUBERNETES_GRACE_S = 30.0
LOAD_WINDOW_S = 300.0
SETTLED_S = 30.0
QUIET_AFTER_S = SizingPolicy().quiet_after_s


class Highest:
    """The highest value of the last `window_s`: how most rules scale in slowly."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._values: deque[tuple[float, int]] = deque()

    def of(self, now_s: float, value: int) -> int:
        """Add a value and return the highest that is not too old."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while self._values[0][0] <= now_s - self._window_s:
            self._values.popleft()
        return self._values[0][1]


@dataclass(slots=True, kw_only=True)
class FixedRule:
    """`fixed-peak`: Erlang C for the trace's highest five minutes, from the start, for good."""

    name: str
    count: int
    every_s: float = 60.0
    grace_s: float = math.inf
    reason: str = "fixed"

    def workers(self, seen: Seen) -> int:
        """Return the same count always."""
        del seen
        return self.count


def fixed_peak(trace: RequestTrace, settings: ReplaySettings) -> FixedRule:
    """Size for the highest five minutes of the trace, known beforehand."""
    slots = (trace.arrival_s // LOAD_WINDOW_S).astype(np.int64)
    load = float(np.bincount(slots, weights=trace.service_s).max()) / LOAD_WINDOW_S
    mean_s = float(trace.service_s.mean())
    load, mean_s = (each * slower(settings.slots) for each in (load, mean_s))
    count = math.ceil(erlang_workers(load, mean_s, settings) / settings.slots)
    return FixedRule(name="fixed-peak", count=count)


@dataclass(slots=True, kw_only=True)
class LogRule(ABC):
    """Rules that read the search logs once a minute; scale-in after `down_s` of less need."""

    settings: ReplaySettings
    down_s: ClassVar[float] = 300.0
    every_s: float = 60.0
    grace_s: float = math.inf
    reason: str = ""
    _kept: Highest = field(init=False)

    def __post_init__(self) -> None:
        self._kept = Highest(self.down_s)

    def workers(self, seen: Seen) -> int:
        """Return the rule's count for the logged load, or hold while there is no log."""
        mean_s, _ = seen.logs.moments(seen.now_s)
        if mean_s == 0:
            return seen.have
        want = max(1, math.ceil(self.count(seen, mean_s) / seen.slots))
        young = seen.now_s < self.down_s
        self.reason = f"{want} for the load"
        return self._kept.of(seen.now_s, max(want, seen.have) if young else want)

    @abstractmethod
    def count(self, seen: Seen, mean_s: float) -> int:
        """Return the slots for what is seen, given the mean service time."""


def offered_load(seen: Seen) -> float:
    """Return the work that arrived in five minutes, per second, from logs.

    The window ends half a minute ago, when most of its requests have finished.
    """
    last = int((seen.now_s - SETTLED_S) / SLOT_S)
    length = int(min(LOAD_WINDOW_S / SLOT_S, last))
    return float(seen.logs.work_s[last - length : last].sum()) / (SLOT_S * length)


class LoadRate(LogRule):
    """`load-rate`: ceil(busy time / (window x 0.7)) over five minutes, down after fifteen."""

    name: str = "load-rate"
    down_s = 900.0

    def count(self, seen: Seen, mean_s: float) -> int:
        """Return busy workers over the target load rate."""
        last = int(seen.now_s / SLOT_S)
        length = int(min(LOAD_WINDOW_S, seen.now_s) / SLOT_S)
        busy_s = float(seen.logs.finished_work_s[last - length : last].sum())
        return math.ceil(busy_s / (SLOT_S * length) / TARGET)


class ErlangC(LogRule):
    """`erlang-c`: the fewest c with P(wait > T) <= 1 - share in M/M/c, for five minutes' load."""

    name: str = "erlang-c"

    def count(self, seen: Seen, mean_s: float) -> int:
        """Return M/M/c's workers."""
        return erlang_workers(offered_load(seen), mean_s, self.settings)


class SquareRoot(LogRule):
    """`square-root`: R + 1.645 sqrt(R), the 95th percentile of Poisson concurrency."""

    name: str = "square-root"

    def count(self, seen: Seen, mean_s: float) -> int:
        """Return load plus safety."""
        load = offered_load(seen)
        return math.ceil(load + 1.645 * math.sqrt(load))


def objective_policy(settings: ReplaySettings, slots: int) -> ObjectivePolicy:
    """Return what the production rule is given, for workers with this number of slots."""
    return ObjectivePolicy(
        wait_s=settings.wait_s,
        share=settings.share,
        min_workers=settings.min_workers * slots,
        max_workers=settings.max_workers * slots,
        start_up_s=settings.cold_start_s,
        onprem=settings.onprem * slots,
        per_instance=settings.workers_per_instance * slots,
        slots=slots,
    )


class Spotkeeper:
    """`spotkeeper`: the production rule on what the search logs say, and the queue if known.

    With a `member` it follows that one of the family always, and needs no shadows. `followed` are
    the choices and when they began.
    """

    name = "spotkeeper"
    every_s = 60.0
    grace_s = math.inf

    def __init__(self, settings: ReplaySettings, member: Member | None = None) -> None:
        self.reason = ""
        self.followed: list[tuple[float, Choice]] = []
        self._member = member
        self._late = np.zeros(len(FAMILY))
        self._hours = np.zeros(len(FAMILY))
        self._requests = 0.0
        self._settings = settings
        self._policy = objective_policy(settings, settings.slots)
        self._scores = Scores()
        self._needs: deque[tuple[float, int, bool]] = deque(maxlen=60)
        self._queue: QueueMemory | None = None
        self._queue_known = settings.queue_known

    def workers(self, seen: Seen) -> int:
        """Run one turn of the production rule."""
        past = [
            PastNeed(seen.now_s - time_s, workers, held) for time_s, workers, held in self._needs
        ]
        slots = seen.logs.as_if_full(seen.now_s, self._settings.slots)
        if slots != self._policy.slots:
            self._policy = objective_policy(self._settings, slots)
        summary, quiet = seen.logs.summary(seen.now_s), 0.0
        if self._queue_known:
            self._look(seen)
            summary = replace(summary, queued=known_waiting(self._queue))
            quiet = quiet_s(self._queue, EPOCH + timedelta(seconds=seen.now_s))
        choice = Choice() if self._member else self._choice(seen)
        if not self.followed or choice.index != self.followed[-1][1].index:
            self.followed.append((seen.now_s, choice))
        member = self._member or choice.member
        live, booting = seen.live * slots, seen.booting * slots
        silent = seen.now_s - seen.logs.newest_log_s > STALE_S and (summary.queued or not seen.live)
        held = False
        if quiet >= QUIET_AFTER_S:
            least = self._policy.min_workers
            need = Need(workers=least, load_workers=0, reason=f"no request for {quiet:.0f} s")
        elif silent or seen.logs.are_missing(seen.now_s):
            held = True
            need = self._held(summary, live + booting, past)
        else:
            need = size_to_objective(summary, live, booting, past, self._policy, member)
        self._needs.append((seen.now_s, need.load_workers, held))
        self.reason = f"{need.reason} ({self._member or choice})"
        return math.ceil(need.workers / slots)

    def _held(self, summary: LoadSummary, have: int, past: list[PastNeed]) -> Need:
        """Hold without logs, but have what clears the requests that are known to wait."""
        waking = to_drain(summary.queued, summary.service_mean_s)
        wanted = max(have, self._policy.min_workers, waking)
        workers = min(wanted, self._policy.max_workers)
        known = past[-1].workers if past else workers
        reason = f"no search log is fresh: {'wake' if waking > have else 'hold'} {workers}"
        return Need(workers=workers, load_workers=known, reason=reason)

    def known_afterwards(self) -> list[Member]:
        """Return the members whose shadows kept the promise over all, the cheapest first."""
        late = self._late / max(1.0, self._requests)
        kept = np.flatnonzero(late <= 1.0 - self._policy.share)
        return [FAMILY[at] for at in kept[np.argsort(self._hours[kept], kind="stable")]]

    def _choice(self, seen: Seen) -> Choice:
        """Let the shadows serve what has settled, as the deployed rule does."""
        stop = (int(seen.now_s / SLOT_S) - SETTLED_SLOTS) // STEP_SLOTS - 1
        if stop > self._scores.next_step:
            own = {step: seen.logs.own(step) for step in range(self._scores.next_step, stop)}
            log, variation = seen.logs.log(seen.now_s), seen.logs.variation(seen.now_s)
            before = self._scores
            self._scores = after = advanced(before, log, stop, self._policy, variation, own)
            fade = FADE ** (after.next_step - before.next_step) if before.late else 0.0
            self._late += np.array(after.late) - fade * np.array(before.late or 0.0)
            self._hours += np.array(after.hours) - fade * np.array(before.hours or 0.0)
            self._requests += after.requests - fade * before.requests
        return choose(self._scores)

    def _look(self, seen: Seen) -> None:
        """Add this turn's look at the queue, as check_health does."""
        length = QueueLength(waiting=seen.queue, in_flight=seen.running)
        now, newest_s = EPOCH + timedelta(seconds=seen.now_s), seen.logs.newest_log_s
        newest = EPOCH + timedelta(seconds=newest_s) if math.isfinite(newest_s) else None
        self._queue = watch_queue(self._queue, length, newest, offered_load(seen), now)
