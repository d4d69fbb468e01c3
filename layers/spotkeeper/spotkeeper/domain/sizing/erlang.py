"""Erlang's delay formula: the fewest workers for a load and a promise about waiting."""

import math
from functools import lru_cache

# Beyond so many erlangs what chance adds is a few hundredths of the load.
LARGEST_LOAD = 5_000.0


def erlang_workers(load: float, service_mean_s: float, wait_s: float, share: float) -> int:
    """Return the fewest c >= 1 with P(wait > wait_s) <= 1 - share in M/M/c (Erlang 1917).

    Load and service time count to two or three digits.
    """
    return _fewest(_rounded(load), _rounded(service_mean_s), wait_s, share)


def _rounded(value: float) -> float:
    return round(value, 2 if value < 10 else 1 if value < 100 else 0)  # noqa: PLR2004


@lru_cache(100_000)
def _fewest(load: float, service_mean_s: float, wait_s: float, share: float) -> int:
    if load > LARGEST_LOAD:
        return math.ceil(load + 4 * math.sqrt(load))
    blocked, count = 1.0, 0
    while True:
        count += 1
        blocked = load * blocked / (count + load * blocked)
        if count <= load:
            continue
        delayed = blocked / (1.0 - load / count * (1.0 - blocked))
        late = delayed * math.exp(-(count - load) * wait_s / max(service_mean_s, 0.01))
        if late <= 1.0 - share:
            return count
