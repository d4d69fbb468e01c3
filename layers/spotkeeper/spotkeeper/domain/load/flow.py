"""How the search logs flow: since when they are known without a gap, and up to when.

Silence is either an idle fleet or missing logs. Which of the two is judged by chance: with requests
that come independently at a rate, none comes for so long with the probability exp(-rate x time).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median_low

from spotkeeper.domain.load.load import SLOT_MS, Load, LoadDigest, slot_begins, slot_of

# That so many expected requests all fail to come is chance once in a million: exp(-14).
CERTAIN = 14.0
# Workers ship logs every few seconds and messages travel: a shorter silence is nothing.
SHORTEST_GAP = timedelta(seconds=30)
SETTLED_SLOTS = 3
# Turns come once a minute, not to the second.
UNWATCHED_SLOTS = 12
# Workers send each minute. Logs that are older when sent come from a slow clock, or are held up.
LATE_S = 60.0
# How late logs come is read off the messages that were sent within so long.
LATELY = timedelta(seconds=60)
# So many requests pass one by chance once in twenty times: exp(-3).
UNHEARD = 3.0
# Workers that are warned take no more requests for two minutes, and logs take one to arrive.
STOPPED_AFTER = timedelta(seconds=180)
SLOT_S, HOUR_S = SLOT_MS / 1000, 3600.0
HOUR = timedelta(seconds=HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlow:
    """What is known of a fleet's search logs.

    Every log since `known_since` has arrived, up to `newest`, when the last one finished; of those
    sent before `in_order_since` some may be delivered again. The median worker's newest log is
    `late_s` old when it is sent; those of `late_workers` are over a minute older. `rate` is the
    requests a second that come independently: 5 a second in batches of 10 are 0.5. They were
    counted up to the slot `counted`, and it is known who had a log since `watched_since`. `lately`
    is the mean of that time, each hour counting e times less than the next. `partly_until` is the
    last turn at which the logs told only a part of the load.
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
        """Give the end of what is known: now, unless logs are late, or certainly on their way."""
        if self.newest is None:
            return now
        if self._is_gap(now - self.newest):
            return self.newest
        late = timedelta(seconds=self.late_s)
        return max(min(now, self.newest), now - late) if late > SHORTEST_GAP else now

    def is_whole(self, window_s: float, now: datetime) -> bool:
        """Tell whether a whole window is known, and that the logs in it are everybody's."""
        if self.known_since is None or self.watched_since is None:
            return False
        since = max(self.known_since, self.watched_since, self.in_order_since or self.known_since)
        return self.ends_at(now) - since >= timedelta(seconds=window_s)

    def is_missing(self, now: datetime) -> bool:
        """Tell whether requests certainly came that no log tells of."""
        return self.newest is not None and self._is_gap(now - self.newest)

    def stopped_by(self, at: datetime, expected: float) -> bool:
        """Tell whether so many expected requests, of minutes at least, had not come by then."""
        if self.newest is None or at - self.newest < STOPPED_AFTER:
            return False
        return (at - self.newest).total_seconds() * self._pace() >= expected

    def _is_gap(self, silence: timedelta) -> bool:
        return silence > SHORTEST_GAP and silence.total_seconds() * self._pace() >= CERTAIN

    def _pace(self) -> float:
        """Give how many requests a second came until the newest one, no more than in its hour.

        In a few minutes one may have come by chance where hardly any do.
        """
        if not self.newest or not self.watched_since or self.newest - self.watched_since < HOUR:
            return self.rate
        return min(self.rate, self._lately_awake())

    def _lately_awake(self) -> float:
        """Give how many requests a second came lately, as of the newest: a night is left out."""
        if self.newest is None or not self.counted:
            return self.lately
        since_s = (slot_begins(self.counted) - self.newest).total_seconds()
        return self.lately * math.exp(max(0.0, since_s) / HOUR_S)


def follow(before: LogFlow, digests: Sequence[LoadDigest], now: datetime) -> LogFlow:
    """Bring what is known up to the newest digest; a gap that chance does not explain begins anew.

    A fleet that is met for the first time, or whose memory was lost, is known since its oldest log.
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
    """Tell whether logs that were missing come now, the newest ones maybe before the older.

    A message that could not be stored is delivered again minutes later, after those of now. Where
    nobody looked for over two minutes, they may have been missing.
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
    """Say how late logs are sent: of one worker in two they come as soon as that, or sooner."""
    sent = max(one.sent_at for one in digests)
    late = _ages_s(one for one in digests if sent - one.sent_at < LATELY)
    return max(0.0, median_low(late)) if late else 0.0


def _ages_s(digests: Iterable[LoadDigest]) -> Collection[float]:
    """Give the age of each worker's newest log when it was sent, at its least."""
    ages: defaultdict[tuple[str, str], float] = defaultdict(lambda: math.inf)
    for one in digests:
        for worker in one.workers:
            name = worker.instance_id, worker.worker_id
            ages[name] = min(ages[name], (one.sent_at - worker.last_finished).total_seconds())
    return ages.values()


def _busy_slots(digests: Iterable[LoadDigest], after: int) -> Iterable[int]:
    """Give slots after one in which a worker was busy, or finished."""
    for one in digests:
        for worker in one.workers:
            slot = slot_of(worker.last_finished)
            if slot > after:
                yield min((at for at in worker.busy_ms if at > after), default=slot)


def paced(before: LogFlow, flow: LogFlow, load: Load) -> LogFlow:
    """Remember how fast requests came as of the newest log; batches count as one.

    A silence since then says nothing about how fast they came before it. The requests of a backlog
    came before the window: their logs come as fast as they finish.
    """
    if load.newest is None or flow.newest == before.newest:
        return flow
    rate = max(load.arrival_rate, load.finished / load.window_s)
    return replace(flow, rate=rate / max(1.0, *load.dispersion.values(), 1.0))


def requests_since(
    flow: LogFlow, digests: Iterable[LoadDigest], now: datetime, read_from: datetime
) -> tuple[LogFlow, int]:
    """Count the requests of slots that settled since the last count; unread ones are left out."""
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
