"""Which workers are busy, and how many run at one time, read off the search logs."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import BusyShares
from spotkeeper.domain.load.flow import UNHEARD
from spotkeeper.domain.load.load import Cluster, Load, LoadDigest, WorkerLoad
from spotkeeper.domain.load.summarise import summarise


def busy_shares(
    digests: Iterable[LoadDigest], now: datetime, window: timedelta, slots: int
) -> BusyShares:
    """Return the busiest worker's load rate of each instance that finished something."""
    shares: defaultdict[str, float] = defaultdict(float)
    for worker in summarise(digests, now, int(window.total_seconds()), slots=slots).workers:
        if worker.instance_id:
            shares[worker.instance_id] = max(shares[worker.instance_id], worker.load_rate)
    return shares


def onprem_at_once(load: Load) -> int:
    """Count the most workers on premises that ran at one time of the window.

    A restart may give each a new id: of 20 processes the window then has 40 ids, and 20 that ran at
    once. One runs from its first request until its last, and then for as long as it may be
    idle by chance, `UNHEARD` requests of its share: where requests are rare, each id counts.
    """
    workers = on_premises(load)
    finished = sum(worker.finished for worker in workers)
    if not finished:
        return len(workers)
    gap_s = load.window_s * _most_at_once(workers, timedelta(0)) / finished
    return _most_at_once(workers, timedelta(seconds=UNHEARD * gap_s))


def hears_of_all(load: Load, workers: int) -> bool:
    """Say whether so many on premises had so many requests that hardly any had none by chance."""
    return sum(worker.finished for worker in on_premises(load)) >= UNHEARD * workers


def on_premises(load: Load) -> list[WorkerLoad]:
    """Give the workers of the window that run on premises, by id."""
    return [worker for worker in load.workers if worker.cluster is Cluster.ONPREM]


def _most_at_once(workers: Sequence[WorkerLoad], idle: timedelta) -> int:
    begins = sorted(worker.began or worker.last_finished for worker in workers)
    ends = sorted(worker.last_finished + idle for worker in workers)
    most = ended = 0
    for begun, at in enumerate(begins, 1):
        while ends[ended] < at:
            ended += 1
        most = max(most, begun - ended)
    return most
