"""Which part of the search logs is known without a gap: since when, and up to when.

Silence means an idle fleet or missing logs. Its probability decides which: where requests arrive
independently at a rate, a time without any has the probability exp(-rate x time).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median_low

from spotkeeper.domain.load.load import SLOT_MS, Load, LoadDigest, slot_begins, slot_of

# By chance, this many expected requests all fail to arrive once in a million times: exp(-14).
CERTAIN = 14.0
# Workers send logs every few seconds, and messages take time: a shorter silence is no gap.
SHORTEST_GAP = timedelta(seconds=30)
SETTLED_SLOTS = 3
# Turns run about once a minute. After more slots than this without one, logs were not watched.
UNWATCHED_SLOTS = 12
# Workers send each minute. Logs that are older when sent come from a slow clock, or are held up.
LATE_S = 60.0
# The messages of this time before the newest one show how late logs are sent.
LATELY = timedelta(seconds=60)
# By chance, a worker gets none of this many expected requests once in twenty times: exp(-3).
UNHEARD = 3.0
# Workers that are warned take no more requests for two minutes, and logs take one to arrive.
STOPPED_AFTER = timedelta(seconds=180)
SLOT_S, HOUR_S = SLOT_MS / 1000, 3600.0
HOUR = timedelta(seconds=HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlow:
    """What is known of a fleet's search logs.

    Every log since `known_since` has arrived, up to `newest`, when the last request finished. Some
    that were sent before `in_order_since` may still be delivered again. The median worker's newest
    log is `late_s` old when it is sent; those of `late_workers` are over a minute older. `rate` is
    independent arrivals a second: 5 requests a second in batches of 10 are 0.5. Requests are
    counted since `watched_since`, up to the slot `counted`. `lately` is their mean a second, each
    hour weighing e times less than the next. `partly_until` is the last turn at which the logs
    showed only a part of the load.
    """

    known_since: datetime | None = None
    newest: datetime | None = None
    late_s: float = 0.0
    rate: float = 0.0
    counted: int = 0
    watched_since: datetime | None = None
    lately: float = 0.0
    in_order_since: datetime | None = None
    late_workers: int = 0
    partly_until: datetime | None = None

    def ends_at(self, now: datetime) -> datetime:
        """Return the end of what is known: now, unless logs are late, or certainly missing."""
        if self.newest is None:
            return now
        if self._is_gap(now - self.newest):
            return self.newest
        late = timedelta(seconds=self.late_s)
        return max(min(now, self.newest), now - late) if late > SHORTEST_GAP else now

    def is_whole(self, window_s: float, now: datetime) -> bool:
        """Tell whether a whole window is known, with the logs of every worker."""
        return self.known_for(now) >= timedelta(seconds=window_s)

    def known_for(self, now: datetime) -> timedelta:
        """Return for how long the logs of every worker are known without a gap."""
        if self.known_since is None or self.watched_since is None:
            return timedelta()
        since = max(self.known_since, self.watched_since, self.in_order_since or self.known_since)
        return max(timedelta(), self.ends_at(now) - since)

    def is_missing(self, now: datetime) -> bool:
        """Tell whether requests have certainly arrived without a log."""
        return self.newest is not None and self._is_gap(now - self.newest)

    def stopped_by(self, at: datetime, expected: float) -> bool:
        """Tell whether logs had stopped: for minutes, and for this many expected requests."""
        if self.newest is None or at - self.newest < STOPPED_AFTER:
            return False
        return (at - self.newest).total_seconds() * self._pace() >= expected

    def _is_gap(self, silence: timedelta) -> bool:
        return silence > SHORTEST_GAP and silence.total_seconds() * self._pace() >= CERTAIN

    def _pace(self) -> float:
        """Return the requests a second up to the newest log, at most the mean of its last hours.

        Where requests are rare, the rate of a few minutes may be high by chance.
        """
        if not self.newest or not self.watched_since or self.newest - self.watched_since < HOUR:
            return self.rate
        return min(self.rate, self._lately_awake())

    def _lately_awake(self) -> float:
        """Return the recent requests a second as of the newest log; a silence since is left out."""
        if self.newest is None or not self.counted:
            return self.lately
        since_s = (slot_begins(self.counted) - self.newest).total_seconds()
        return self.lately * math.exp(max(0.0, since_s) / HOUR_S)


def follow(before: LogFlow, digests: Sequence[LoadDigest], now: datetime) -> LogFlow:
    """Extend what is known to the newest digest; start again after a gap that is not chance.

    The logs of a new fleet, or after a lost memory, are known since the oldest one.
    """
    finished = [worker.last_finished for one in digests for worker in one.workers]
    if not finished:
        return before
    after = slot_of(before.newest) if before.newest else -1
    first = min(_busy_slots(digests, after), default=None)
    late_s = _late_s(digests)
    late_workers = sum(age_s > late_s + LATE_S for age_s in _ages_s(digests))
    before = replace(before, late_s=late_s, late_workers=late_workers)
    newest = max(finished)
    if first is None:
        return replace(before, newest=max(newest, before.newest or newest))
    begins = slot_begins(first)
    if before.newest is None or before.known_since is None:
        return replace(before, known_since=begins, newest=newest)
    gap = before._is_gap(begins - before.newest)
    ordered = now if _is_out_of_order(before, digests, now) else before.in_order_since
    return replace(
        before,
        known_since=begins if gap else before.known_since,
        newest=max(newest, before.newest),
        in_order_since=ordered,
        lately=before._lately_awake() if gap else before.lately,
    )


def _is_out_of_order(before: LogFlow, digests: Sequence[LoadDigest], now: datetime) -> bool:
    """Tell whether missing logs arrive now, so that newer ones may precede older ones.

    A message that could not be stored is delivered again minutes later, after newer ones. After
    two minutes without a turn, logs may have been missing unseen.
    """
    if before.newest is None or not before.is_missing(now):
        return False
    looked = before.counted + SETTLED_SLOTS
    late = any(
        slot_of(one.sent_at) < before.counted
        and any(worker.last_finished > before.newest for worker in one.workers)
        for one in digests
    )
    return late or slot_of(now) - looked > UNWATCHED_SLOTS


def _late_s(digests: Sequence[LoadDigest]) -> float:
    """Return how old logs are when they are sent: the median of the workers."""
    sent = max(one.sent_at for one in digests)
    late = _ages_s(one for one in digests if sent - one.sent_at < LATELY)
    return max(0.0, median_low(late)) if late else 0.0


def _ages_s(digests: Iterable[LoadDigest]) -> Collection[float]:
    """Return the least age, over its messages, of each worker's newest log when it was sent."""
    ages: defaultdict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    for one in digests:
        for worker in one.workers:
            name = worker.instance_id, worker.worker_id
            ages[name] = min(ages[name], (one.sent_at - worker.last_finished).total_seconds())
    return ages.values()


def _busy_slots(digests: Iterable[LoadDigest], after: int) -> Iterable[int]:
    """Return slots after one in which a worker was busy, or finished."""
    for one in digests:
        for worker in one.workers:
            slot = slot_of(worker.last_finished)
            if slot > after:
                yield min((at for at in worker.busy_ms if at > after), default=slot)


def paced(before: LogFlow, flow: LogFlow, load: Load) -> LogFlow:
    """Remember the rate of requests as of the newest log; a batch counts as one.

    A silence since then does not lower it. The requests of a backlog arrived before the window:
    then the rate at which requests finish counts.
    """
    if load.newest is None or flow.newest == before.newest:
        return flow
    rate = max(load.arrival_rate, load.finished / load.window_s)
    return replace(flow, rate=rate / max(1.0, *load.dispersion.values(), 1.0))


def requests_since(
    flow: LogFlow, digests: Iterable[LoadDigest], now: datetime, read_from: datetime
) -> tuple[LogFlow, int]:
    """Count the requests of slots that settled since the last count, without unread slots."""
    settled = slot_of(now) - SETTLED_SLOTS
    counted, first = max(settled, flow.counted), max(flow.counted, slot_of(read_from) + 1)
    if not flow.counted or counted == flow.counted:
        return replace(flow, counted=counted, watched_since=flow.watched_since or now), 0
    count = sum(one.count for one in digests if first <= slot_of(one.sent_at) < settled)
    since = (flow.watched_since or now) + timedelta(seconds=(first - flow.counted) * SLOT_S)
    lately = _lately(flow.lately, count, counted - first, slot_of(now) - slot_of(since))
    return replace(flow, counted=counted, watched_since=since, lately=lately), count


def _lately(before: float, count: int, slots: int, watched: int) -> float:
    """Average requests a second over the last hour or so; over what was watched, if that is less.

    Weights of e^(-age / 1 h) add up to 1 - e^(-watched / 1 h) hours.
    """
    new, known = (1 - math.exp(-n * SLOT_S / HOUR_S) for n in (slots, max(slots, watched)))
    old = 1 - math.exp(-max(0, watched - slots) * SLOT_S / HOUR_S)
    return (before * old * (1 - new) + count / (slots * SLOT_S) * new) / known
