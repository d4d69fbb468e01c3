"""What arrived, slot by slot: how much the requests cost by when they were enqueued.

Sizing to an objective looks at these slots, since they come before the workers' answer to them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.load.histogram import added_up, merged
from spotkeeper.domain.load.load import SLOT_MS, LoadDigest, milliseconds, unique


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalWindow:
    """Finished requests of a window by slots of 10 s from `first_slot` on, oldest first.

    The current slot is left out. `work_ms` is their service time. The moments of the service time
    are those of all logs that came in, 0 without any; `newest_start` is when the last request
    started, after it waited for `newest_wait_s`.
    """

    first_slot: int
    requests: tuple[int, ...]
    work_ms: tuple[int, ...]
    service_mean_s: float = 0.0
    service_second_moment_s2: float = 0.0
    newest_start: datetime | None = None
    newest_wait_s: float = 0.0


def arrival_window(digests: Iterable[LoadDigest], now: datetime, window_s: int) -> ArrivalWindow:
    """Sum up what arrived in the last `window_s` seconds (to the slot)."""
    end_ms = milliseconds(now)
    first_slot = (end_ms - window_s * 1000) // SLOT_MS
    received = [one for one in unique(digests) if milliseconds(one.sent_at) >= first_slot * SLOT_MS]
    requests = added_up(one.arrivals for one in received)
    work_ms = added_up(one.work_ms for one in received)
    slots = range(first_slot, end_ms // SLOT_MS)
    count = sum(one.count for one in received) or 1
    newest, waited_ms = max(
        ((one.newest_start, one.newest_wait_ms) for one in received if one.newest_start),
        default=(None, 0),
    )
    waited_ms = min(waited_ms, _usual_ms(received, newest))
    return ArrivalWindow(
        first_slot=first_slot,
        requests=tuple(requests.get(slot, 0) for slot in slots),
        work_ms=tuple(work_ms.get(slot, 0) for slot in slots),
        service_mean_s=sum(one.service.total_ms for one in received) / count / 1000,
        service_second_moment_s2=sum(one.service.squares for one in received) / count / 1_000_000,
        newest_start=newest,
        newest_wait_s=waited_ms / 1000,
    )


def _usual_ms(received: Iterable[LoadDigest], newest: datetime | None) -> int:
    """Return the median wait of what was sent in the same slots as the newest start.

    One request may wait for long by itself: delivered again, or enqueued by a clock that is behind.
    Where there is a queue all wait.
    """
    slots = {_sent_slot(one) for one in received if one.newest_start == newest}
    waits = merged(one.waits for one in received if _sent_slot(one) in slots)
    return round(1000 * waits.quantile_s(0.5))


def _sent_slot(one: LoadDigest) -> int:
    return milliseconds(one.sent_at) // SLOT_MS
