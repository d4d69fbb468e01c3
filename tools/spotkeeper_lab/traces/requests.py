"""Request traces: when each request arrives and how long a worker is busy with it.

Three sources give the same value: a file of requests, a file of rates, and a generator that
needs no file. All times are float seconds from the trace's start.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spotkeeper_lab.files import name_of, named_apart, read_text

type Floats = NDArray[np.float64]

REQUEST_HEADER = "arrival_s,service_s"
RATE_HEADER = "time_s,rate_per_s"

MEAN_SERVICE_S = 2.0
SERVICE_CV = 0.7
DAY_S = 86_400.0
BURST_SLOT_S = 10.0
# Beyond these a file does not say what its header says, or nobody waits for its replay.
LONGEST_S = 400 * DAY_S
LARGEST_RATE_PER_S = 1e6
MOST_DRAWN = 10_000_000
# What a file with more rates than can be drawn is scaled to.
MEAN_RATE_PER_S = 1.0


class RequestTraceError(ValueError):
    """A trace cannot be read or cut; the message names file and line and says what to do."""

    @classmethod
    def at(cls, path: Path, line: int | None, problem: str) -> "RequestTraceError":
        return cls(f"{path}: {problem}" if line is None else f"{path}, line {line}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTrace:
    """Requests in order of arrival: `arrival_s` and `service_s` have one entry per request.

    `drawn` says that they were made by chance, of a file of rates or of nothing; `note` what else
    a reader must know of them.
    """

    name: str
    arrival_s: Floats
    service_s: Floats
    end_s: float
    drawn: bool = False
    note: str = ""

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def offered_load(self) -> float:
        """Mean number of busy workers that the trace needs, in erlangs."""
        return float(self.service_s.sum()) / self.end_s

    def window(self, start_s: float, length_s: float) -> "RequestTrace":
        """Return the requests of `[start_s, start_s + length_s)`, with times from `start_s` on.

        The window ends with the trace when the trace is shorter. Raises RequestTraceError when
        no part of the trace is in it.
        """
        if length_s <= 0 or not 0 <= start_s < self.end_s:
            raise RequestTraceError(
                f"{self.name}: no window of {length_s:g} s at {start_s:g} s; "
                f"the trace covers 0 to {self.end_s:g} s"
            )
        end_s = min(start_s + length_s, self.end_s)
        first, last = np.searchsorted(self.arrival_s, (start_s, start_s + length_s))
        arrival_s, service_s = self.arrival_s[first:last] - start_s, self.service_s[first:last]
        return replace(self, arrival_s=arrival_s, service_s=service_s, end_s=end_s - start_s)


def read_requests(
    path: Path, *, seed: int = 0, mean_rate_per_s: float | None = None
) -> RequestTrace:
    """Read `arrival_s,service_s` or `time_s,rate_per_s` from CSV, plain or gzip.

    Rates become requests by `seed`: Poisson arrivals, lognormal service times of 2 s on average.
    They are taken as they are given, or scaled to `mean_rate_per_s`, which a file of requests has
    no use for; more than `MOST_DRAWN` are scaled to one a second, and the `note` says so. Raises
    RequestTraceError, naming file and line.
    """
    lines = read_text(path, RequestTraceError.at).splitlines()
    header = lines[0].strip() if lines else ""
    if header not in (REQUEST_HEADER, RATE_HEADER):
        first_line = f"found {header[:60]!r}" if header else "the file is empty"
        expected = f"{REQUEST_HEADER!r} or {RATE_HEADER!r}"
        raise RequestTraceError.at(path, 1, f"expected the header {expected}, {first_line}")
    rates = header == RATE_HEADER
    rows: list[tuple[float, float]] = []
    for number, line in enumerate(lines[1:], start=2):
        if text := line.strip():
            try:
                rows.append(_row(text, rates, rows[-1][0] if rows else None))
            except ValueError as error:
                raise RequestTraceError.at(path, number, str(error)) from None
    if len(rows) < 1 + rates:
        least = "a file of rates needs at least two rows"
        problem = least if rates else "no request after the header; give at least one row"
        raise RequestTraceError.at(path, None, problem)
    first, second = np.array(rows, dtype=np.float64).T.copy()
    if not rates:
        end_s = max(float(first[-1]), 1.0)
        return RequestTrace(name=name_of(path), arrival_s=first, service_s=second, end_s=end_s)
    time_s, rate, asked_per_s = first - first[0], second, mean_rate_per_s
    end_s = float(2 * time_s[-1] - time_s[-2])
    mean = float((rate * np.diff(np.append(time_s, end_s))).sum()) / end_s
    if mean <= 0:
        raise RequestTraceError.at(path, None, "every rate_per_s is 0; nothing to replay")
    in_file, note = mean * end_s, ""
    if asked_per_s is None and in_file > MOST_DRAWN:
        asked_per_s = MEAN_RATE_PER_S
        note = (
            f"{path}: {in_file:,.0f} requests are too many to draw: drawn at a mean of "
            f"{asked_per_s:g} a second in place of {mean:g} (--mean-rate asks for another)"
        )
    factor = 1.0 if asked_per_s is None else asked_per_s / mean
    if in_file * factor > MOST_DRAWN:
        problem = (
            f"{in_file * factor:,.0f} requests are too many to draw, more than {MOST_DRAWN:,}; "
            f"cut the file, or ask for fewer with --mean-rate (its mean is {mean:g} per second)"
        )
        raise RequestTraceError.at(path, None, problem)
    rng = np.random.default_rng(seed)
    return replace(_draw(name_of(path), rng, time_s, rate * factor, end_s), note=note)


def read_request_traces(
    paths: Sequence[Path], *, seed: int = 0, mean_rate_per_s: float | None = None
) -> list[RequestTrace]:
    """Read several files, each called otherwise; one that is named twice is one.

    Raises RequestTraceError as `read_requests` does, and where no file has rates to scale.
    """
    names = named_apart(paths)
    read = [read_requests(path, seed=seed, mean_rate_per_s=mean_rate_per_s) for path in names]
    if mean_rate_per_s is not None and not any(trace.drawn for trace in read):
        raise RequestTraceError(
            f"a mean rate is for files of rates, {RATE_HEADER!r}, and there is none; leave it out"
        )
    return [replace(trace, name=name) for trace, name in zip(read, names.values(), strict=True)]


def generate_requests(seed: int, hours: float = 24.0, *, mean_load: float = 2.0) -> RequestTrace:
    """Generate a plausible day of an image service from a seed; the same seed, the same requests.

    The rate follows a daily cycle (1 +- 0.55, lowest in the night) times bursts: a lognormal
    process whose logarithm has standard deviation 0.2 and forgets within ten minutes, and one step
    to up to twice the load for some minutes every few hours.
    """
    rng = np.random.default_rng(seed)
    time_s = np.arange(0.0, hours * 3600.0, BURST_SLOT_S)
    cycle = 1.0 - 0.55 * np.cos(2 * math.pi * (time_s - 4 * 3600.0) / DAY_S)
    # Of mean 1; its logarithm is AR(1).
    deviation, memory = 0.2, math.exp(-BURST_SLOT_S / 600.0)
    draws = rng.normal(0.0, deviation * math.sqrt(1 - memory**2), len(time_s))
    log_rate = np.array([*accumulate(draws, lambda level, step: memory * level + step)])
    noise = np.exp(log_rate - deviation**2 / 2)
    # About every four hours for 3 to 12 minutes.
    surges, at = np.ones_like(time_s), rng.exponential(4 * 3600.0)
    while time_s.size and at < time_s[-1]:
        length = rng.uniform(180.0, 720.0)
        surges[(time_s >= at) & (time_s < at + length)] = rng.uniform(1.3, 2.0)
        at += length + rng.exponential(4 * 3600.0)
    rate = cycle * noise * surges
    rate *= mean_load / MEAN_SERVICE_S / float(rate.mean())
    return _draw(f"generated-{seed}", rng, time_s, rate, hours * 3600.0)


def _draw(
    name: str, rng: np.random.Generator, time_s: Floats, rate: Floats, end_s: float
) -> RequestTrace:
    """Draw Poisson arrivals at piecewise constant `rate` and lognormal service times."""
    lengths = np.diff(np.append(time_s, end_s))
    counts = rng.poisson(rate * lengths)
    arrival_s = np.sort(
        np.repeat(time_s, counts) + rng.random(counts.sum()) * np.repeat(lengths, counts)
    )
    sigma = math.sqrt(math.log1p(SERVICE_CV**2))
    service_s = rng.lognormal(math.log(MEAN_SERVICE_S) - sigma**2 / 2, sigma, len(arrival_s))
    return RequestTrace(
        name=name, arrival_s=arrival_s, service_s=service_s, end_s=end_s, drawn=True
    )


def _row(text: str, rates: bool, before: float | None) -> tuple[float, float]:
    """Read the two numbers of a row after one of a time; raises ValueError, quoting it."""
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"expected two numbers, found {text[:60]!r}") from None
    if not (0 <= first < math.inf and 0 <= second < math.inf):
        raise ValueError(
            f"{text[:60]!r} has a negative or endless number; both must be finite and at least 0"
        )
    if first > LONGEST_S:
        raise ValueError(
            f"{first:g} s is more than 400 days; give times in seconds from the start of the trace"
        )
    if rates and second > LARGEST_RATE_PER_S:
        raise ValueError(f"{second:g} requests per second are too many; give the rate per second")
    if rates and before is not None and first <= before:
        raise ValueError(f"time_s {first:g} is not after {before:g}; sort by time_s")
    if before is not None and first < before:
        raise ValueError(f"arrival_s {first:g} is before {before:g}; sort the rows by arrival_s")
    return first, second
