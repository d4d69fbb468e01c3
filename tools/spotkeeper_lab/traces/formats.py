"""Reads the public spot traces into a market.

* SkyPilot JSON (skypilot-org/spot-traces): one file per zone,
  ``{"metadata": {"gap_seconds": 300}, "data": [0, 4, ...]}``, data = instances obtainable per step.
* SkyNomad CSV (andylizf/skynomad-artifact): one file per zone, ``date,availability`` with one row
  per probe; Bamboo's samples, ``time,count`` and ``timestamp,count``, read alike.
* Bamboo event CSV (uclasystem/bamboo): no header, ``milliseconds,add|remove,node``, one group.

A probe for one instance (0 or 1) says nothing about capacity beyond one. A pool's name comes from
its file: ``us-east-1a_v100_1.json`` is ``us-east-1a/v100_1``.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from spotkeeper_lab.traces.market import Market, MarketError, market_of
from spotkeeper_lab.traces.market_file import MarketFileError

SAMPLE_HEADERS = (("date", "availability"), ("time", "count"), ("timestamp", "count"))
BAMBOO_STEP_S = 60.0
"""Bamboo's events are differences of samples taken this often; the last sample lasts as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReading:
    """How to read what a file leaves open or gets wrong.

    ``gap_s`` overrides a JSON file's step (one published file says 300 s but was probed every
    195 s); ``inverted`` says that 1 means not available, as in SkyNomad's converted JSON; ``pool``
    names the pool of a single file.
    """

    gap_s: float | None = None
    inverted: bool | None = None
    pool: str | None = None

    def __post_init__(self) -> None:
        """Raise MarketError for a step without a length."""
        if self.gap_s is not None and not 0 < self.gap_s < float("inf"):
            raise MarketError(f"a step of {self.gap_s:g} s has no length; give more than 0 s")


@dataclass(frozen=True, slots=True)
class Series:
    """One pool as recorded: (seconds, capacity) from 0 on, its length, when it began if known."""

    pool: str
    steps: list[tuple[float, int]]
    length_s: float
    began: datetime | None


def read_public_traces(
    paths: Sequence[Path], name: str, reading: TraceReading | None = None
) -> Market:
    """One market from the files of its pools, cut to the time that all of them cover.

    Raises MarketFileError naming the file and the line that cannot be read.
    """
    if not paths:
        raise MarketFileError(name, None, "no trace file given")
    reading = reading or TraceReading()
    if reading.pool and len(paths) > 1:
        raise MarketFileError(paths[1], None, "one pool name cannot be given to several files")
    series = [_read(path, reading) for path in paths]
    for index, one in enumerate(series):
        if one.pool in (other.pool for other in series[:index]):
            raise MarketFileError(paths[index], None, f"a second file for the pool {one.pool!r}")
        if (one.began is None) != (series[0].began is None):
            raise MarketFileError(
                paths[index],
                None,
                "times that cannot be laid beside the first file's: one has dates",
            )
    return _aligned(paths, series, name)


def _aligned(paths: Sequence[Path], series: Sequence[Series], name: str) -> Market:
    """Lay the pools beside each other and keep what all cover."""
    dates = [one.began for one in series if one.began]
    start = max(dates) if dates else None
    skips = [(start - one.began).total_seconds() if start and one.began else 0.0 for one in series]
    end_s = min(one.length_s - skip for one, skip in zip(series, skips, strict=True))
    if end_s <= 0:
        raise MarketFileError(paths[-1], None, "the files have no time in common")
    return market_of(
        name,
        end_s,
        {one.pool: _cut(one.steps, skip, end_s) for one, skip in zip(series, skips, strict=True)},
    )


def _cut(
    steps: Sequence[tuple[float, int]], skip_s: float, end_s: float
) -> list[tuple[float, int]]:
    held = [capacity for time, capacity in steps if time <= skip_s][-1]
    later = ((time - skip_s, capacity) for time, capacity in steps if time > skip_s)
    return [(0.0, held), *((time, capacity) for time, capacity in later if time < end_s)]


def _read(path: Path, reading: TraceReading) -> Series:
    pool = reading.pool or pool_name(path)
    text = _text(path)
    if path.suffix == ".json":
        return _json(path, text, pool, reading)
    if reading.gap_s is not None or reading.inverted is not None:
        raise MarketFileError(
            path,
            None,
            "has times and counts of its own: a step, or that 1 means "
            "not available, is said of JSON files only; leave it out",
        )
    rows = list(_rows(path, text))
    if not rows:
        raise MarketFileError(path, None, "is empty")
    line, first = rows[0]
    match first:
        case [_, "add" | "remove", _]:
            return _events(path, rows, pool)
        case [time, count] if (time.lower(), count.lower()) in SAMPLE_HEADERS:
            return _samples(path, rows[1:], pool)
    raise MarketFileError(
        path,
        line,
        "neither a header date,availability (SkyNomad) or time,count, nor an event "
        "milliseconds,add|remove,node (Bamboo); SkyPilot's traces end in .json",
    )


def pool_name(path: Path) -> str:
    """``us-east-1a_v100_1.json`` (or ``us-east-1a_v100_1/full.json``) is us-east-1a/v100_1."""
    stem = path.parent.name if path.stem == "full" else path.stem
    zone, _, kind = stem.partition("_")
    return f"{zone}/{kind}" if kind else f"any/{zone}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise MarketFileError(path, None, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise MarketFileError(path, line, "is not UTF-8 text") from None


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, [field.strip() for field in row]
    except csv.Error as error:
        raise MarketFileError(path, reader.line_num, f"is not CSV: {error}") from None


def _json(path: Path, text: str, pool: str, reading: TraceReading) -> Series:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise MarketFileError(path, error.lineno, f"is not JSON: {error.msg}") from None
    match found:
        case {"metadata": {"gap_seconds": int() | float() as gap, **metadata}, "data": [*data]} if (
            data
        ):
            gap_s = float(gap) if reading.gap_s is None else reading.gap_s
        case _:
            raise MarketFileError(
                path,
                1,
                'has no {"metadata": {"gap_seconds": ...}, "data": [...]}, or no data in it',
            )
    if isinstance(gap, bool) or not 0 < gap_s < float("inf"):
        raise MarketFileError(path, 1, f"gap_seconds is {gap}; it must be more than 0")
    if "price_info" in metadata and reading.inverted is None:
        raise MarketFileError(
            path, None, "looks like SkyNomad's converted JSON, where 1 means not available; say so"
        )
    counts = [_entry(path, index, value) for index, value in enumerate(data)]
    if reading.inverted:
        counts = _inverted(path, counts)
    steps = [(index * gap_s, count) for index, count in enumerate(counts)]
    return Series(pool, steps, len(steps) * gap_s, None)


def _entry(path: Path, index: int, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise MarketFileError(
            path, None, f"data[{index}] is {value!r}, not a number of instances (0 or more)"
        )
    return value


def _inverted(path: Path, counts: Sequence[int]) -> list[int]:
    if max(counts) > 1:
        index = next(index for index, count in enumerate(counts) if count > 1)
        raise MarketFileError(path, None, f"data[{index}] is {counts[index]}; inverted is 0 or 1")
    return [1 - count for count in counts]


def _samples(path: Path, rows: Sequence[tuple[int, list[str]]], pool: str) -> Series:
    samples: list[tuple[datetime, int]] = []
    for line, row in rows:
        match row:
            case [date, number]:
                at, count = _date(path, line, date), _count(path, line, number)
            case _:
                raise MarketFileError(path, line, f"{len(row)} fields where the header has 2")
        if samples and at <= samples[-1][0]:
            raise MarketFileError(path, line, f"{row[0]} does not come after the row before; sort")
        samples.append((at, count))
    if not samples[1:]:
        raise MarketFileError(path, None, "has fewer than two samples")
    began = samples[0][0]
    steps = [((at - began).total_seconds(), count) for at, count in samples]
    last_s = median(b[0] - a[0] for a, b in pairwise(steps))
    return Series(pool, steps, steps[-1][0] + last_s, began)


def _date(path: Path, line: int, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise MarketFileError(path, line, f"{text[:40]!r} is not a date and time") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _count(path: Path, line: int, text: str) -> int:
    try:
        count = float(text)
    except ValueError:
        count = -1.0
    if count < 0 or not count.is_integer():
        raise MarketFileError(path, line, f"{text[:40]!r} is not a number of instances (0 or more)")
    return int(count)


def _events(path: Path, rows: Sequence[tuple[int, list[str]]], pool: str) -> Series:
    nodes: set[str] = set()
    steps: dict[float, int] = {0.0: 0}
    last_s = 0.0
    for line, row in rows:
        match row:
            case [time, "add" | "remove" as kind, node]:
                at_s = _milliseconds(path, line, time)
            case _:
                raise MarketFileError(path, line, "is not an event milliseconds,add|remove,node")
        if at_s < last_s:
            raise MarketFileError(path, line, f"{time} ms comes after a later event; sort")
        if (kind == "add") == (node in nodes):
            state = "there already" if kind == "add" else "not there"
            raise MarketFileError(path, line, f"{kind} of {node[:40]!r}, which is {state}")
        nodes ^= {node}
        last_s, steps[at_s] = at_s, len(nodes)
    return Series(pool, list(steps.items()), last_s + BAMBOO_STEP_S, None)


def _milliseconds(path: Path, line: int, text: str) -> float:
    if not text.isdecimal():
        raise MarketFileError(path, line, f"{text[:40]!r} is not a whole number of milliseconds")
    return int(text) / 1000.0
