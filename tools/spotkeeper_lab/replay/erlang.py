"""Erlang's delay formula, exact, for the textbook rule and the fixed fleet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotkeeper_lab.replay.values import ReplaySettings


def erlang_workers(load: float, service_mean_s: float, settings: ReplaySettings) -> int:
    """Return the fewest c with P(wait > wait_s) <= 1 - share in M/M/c (Erlang 1917).

    At most `max_workers`, whatever the load.
    """
    blocked = 1.0
    for count in range(1, settings.max_workers):
        blocked = load * blocked / (count + load * blocked)
        if count <= load:
            continue
        delayed = blocked / (1.0 - load / count * (1.0 - blocked))
        late = delayed * math.exp(-(count - load) * settings.wait_s / max(service_mean_s, 1e-9))
        if late <= 1.0 - settings.share:
            return count
    return settings.max_workers
