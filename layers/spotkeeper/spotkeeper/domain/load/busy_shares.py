"""Which instances are busy, read off the search logs."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import BusyShares
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.summarise import summarise


def busy_shares(digests: Iterable[LoadDigest], now: datetime, window: timedelta) -> BusyShares:
    """Give the busiest worker's load rate of each instance that finished something."""
    shares: defaultdict[str, float] = defaultdict(float)
    for worker in summarise(digests, now, int(window.total_seconds())).workers:
        if worker.instance_id:
            shares[worker.instance_id] = max(shares[worker.instance_id], worker.load_rate)
    return shares
