"""Markets made of other recordings: the public spot traces, and what a running fleet left behind.

* SkyPilot JSON (skypilot-org/spot-traces): one file per zone,
  ``{"metadata": {"gap_seconds": 300}, "data": [0, 4, ...]}``, data = instances obtainable per step.
* SkyNomad CSV (andylizf/skynomad-artifact): one file per zone, ``date,availability`` with one row
  per probe; Bamboo's samples, ``time,count`` and ``timestamp,count``, read alike.
* Bamboo event CSV (uclasystem/bamboo): no header, ``milliseconds,add|remove,node``, one group.

A probe for one instance (0 or 1) says nothing about capacity beyond one. A pool's name is that of
its file: ``us-east-1a_v100_1.json`` is ``us-east-1a/v100_1``.

A fleet sees its market only through its requests: capacity is at least what was held, and no
more than that where a launch failed for lack of it or AWS took an instance. What lies above the
fleet's own size stays unknown, so an exported market suits fleets of that size or less.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.dynamodb.earlier import record_in_todays_words
from spotkeeper.adapters.errors import classify
from spotkeeper.domain.decision import has_figures
from spotkeeper.domain.failure import FailureClass
from spotkeeper_lab.files import read_rows, read_text
from spotkeeper_lab.traces.market import Market, MarketError, MarketFileError, market_of

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_dynamodb import DynamoDBClient

SAMPLE_HEADERS = (("date", "availability"), ("time", "count"), ("timestamp", "count"))
BAMBOO_STEP_S = 60.0
"""Bamboo's events are differences of samples taken this often; the last sample lasts as long."""

type Steps = list[tuple[float, int]]


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

    steps: Steps
    length_s: float
    began: datetime | None = None

    def cut(self, start: datetime | None, end_s: float) -> Steps:
        skip_s = self.skip_s(start)
        held = [capacity for time, capacity in self.steps if time <= skip_s][-1]
        later = ((time - skip_s, capacity) for time, capacity in self.steps if time > skip_s)
        return [(0.0, held), *((time, capacity) for time, capacity in later if time < end_s)]

    def skip_s(self, start: datetime | None) -> float:
        """How long it lasts before a start."""
        return (start - self.began).total_seconds() if start and self.began else 0.0


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
    pools: dict[str, Series] = {}
    for path in paths:
        pool, series = reading.pool or pool_name(path), _read(path, reading)
        first = next(iter(pools.values()), series)
        if pool in pools:
            raise MarketFileError(path, None, f"a second file for the pool {pool!r}")
        if (series.began is None) != (first.began is None):
            problem = "times that cannot be laid beside the first file's: one has dates"
            raise MarketFileError(path, None, problem)
        pools[pool] = series
    start = max((one.began for one in pools.values() if one.began), default=None)
    end_s = min(one.length_s - one.skip_s(start) for one in pools.values())
    if end_s <= 0:
        raise MarketFileError(paths[-1], None, "the files have no time in common")
    return market_of(name, end_s, {pool: one.cut(start, end_s) for pool, one in pools.items()})


def pool_name(path: Path) -> str:
    """``us-east-1a_v100_1.json`` (or ``us-east-1a_v100_1/full.json``) is us-east-1a/v100_1."""
    stem = path.parent.name if path.stem == "full" else path.stem
    zone, _, kind = stem.partition("_")
    return f"{zone}/{kind}" if kind else f"any/{zone}"


def _read(path: Path, reading: TraceReading) -> Series:
    if path.suffix == ".json":
        return _json(path, reading)
    if reading.gap_s is not None or reading.inverted is not None:
        problem = "has its own times and counts: --gap and --inverted are for JSON files only"
        raise MarketFileError(path, None, problem)
    rows = list(read_rows(path, MarketFileError))
    if not rows:
        raise MarketFileError(path, None, "is empty")
    match rows[0][1]:
        case [_, "add" | "remove", _]:
            return _events(path, rows)
        case [time, count] if (time.lower(), count.lower()) in SAMPLE_HEADERS:
            return _samples(path, rows[1:])
    raise MarketFileError(
        path,
        rows[0][0],
        "neither a header date,availability (SkyNomad) or time,count, nor an event "
        "milliseconds,add|remove,node (Bamboo); SkyPilot's traces end in .json",
    )


@contextmanager
def _at(path: Path, line: int | None) -> Iterator[None]:
    """Name the file and the line of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise MarketFileError(path, line, str(error)) from None


def _json(path: Path, reading: TraceReading) -> Series:
    try:
        found = json.loads(read_text(path, MarketFileError))
    except json.JSONDecodeError as error:
        raise MarketFileError(path, error.lineno, f"is not JSON: {error.msg}") from None
    shape = '{"metadata": {"gap_seconds": ...}, "data": [...]}'
    match found:
        case {"metadata": {"gap_seconds": int() | float() as gap, **metadata}, "data": [*data]} if (
            data
        ):
            gap_s = float(gap) if reading.gap_s is None else reading.gap_s
        case _:
            raise MarketFileError(path, 1, f"has no {shape}, or no data in it")
    if isinstance(gap, bool) or not 0 < gap_s < float("inf"):
        raise MarketFileError(path, 1, f"gap_seconds is {gap}; it must be more than 0")
    with _at(path, None):
        if "price_info" in metadata and reading.inverted is None:
            raise ValueError(
                "looks like SkyNomad's converted JSON, where 1 means not available; "
                "give --inverted or --no-inverted"
            )
        for index, value in enumerate(data):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"data[{index}] is {value!r}, not a number of instances")
            if reading.inverted and value > 1:
                raise ValueError(f"data[{index}] is {value}; inverted is 0 or 1")
    counts = [1 - value if reading.inverted else value for value in data]
    steps = [(index * gap_s, count) for index, count in enumerate(counts)]
    return Series(steps, len(steps) * gap_s)


def _samples(path: Path, rows: Sequence[tuple[int, list[str]]]) -> Series:
    samples: list[tuple[datetime, int]] = []
    for line, row in rows:
        with _at(path, line):
            if len(row) != 2:  # noqa: PLR2004
                raise ValueError(f"{len(row)} fields where the header has 2")
            at, count = _date(row[0]), _count(row[1])
            if samples and at <= samples[-1][0]:
                raise ValueError(f"{row[0]} is not after the row before; sort")
            samples.append((at, count))
    if not samples[1:]:
        raise MarketFileError(path, None, "has fewer than two samples")
    began = samples[0][0]
    steps = [((at - began).total_seconds(), count) for at, count in samples]
    last_s = median(b[0] - a[0] for a, b in pairwise(steps))
    return Series(steps, steps[-1][0] + last_s, began)


def _date(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a date and time") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _count(text: str) -> int:
    with suppress(ValueError):
        count = float(text)
        if count >= 0 and count.is_integer():
            return int(count)
    raise ValueError(f"{text[:40]!r} is not a number of instances (0 or more)")


def _events(path: Path, rows: Sequence[tuple[int, list[str]]]) -> Series:
    nodes: set[str] = set()
    steps: dict[float, int] = {0.0: 0}
    last_s = 0.0
    for line, row in rows:
        with _at(path, line):
            match row:
                case [time, "add" | "remove" as kind, node]:
                    pass
                case _:
                    raise ValueError("is not an event milliseconds,add|remove,node")
            if not time.isdecimal():
                raise ValueError(f"{time[:40]!r} is not a whole number of milliseconds")
            at_s = int(time) / 1000.0
            if at_s < last_s:
                raise ValueError(f"{time} ms is before the event above; sort")
            if (kind == "add") == (node in nodes):
                state = "there already" if kind == "add" else "not there"
                raise ValueError(f"{kind} of {node[:40]!r}, which is {state}")
            nodes ^= {node}
            last_s, steps[at_s] = at_s, len(nodes)
    return Series(list(steps.items()), last_s + BAMBOO_STEP_S)


WHOLE_POOL = "fleet/any"
NOTICE_S = 120.0
"""Spotkeeper detaches a warned instance at once; AWS takes it when its notice ends."""
_INSTANCE = re.compile(r"\bi-[0-9a-f]+\b")
_ON_PURPOSE = (
    "user request", "user health-check", "instance refresh", "shrinking the capacity",
    "scaling policy", "scheduled action",
)  # fmt: skip
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one decision record says of the spot group."""

    at: datetime
    desired: int
    held: int
    refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One scaling activity: `by` more or fewer held in a zone; `limits` when the market did it."""

    at: datetime
    zone: str
    by: int
    limits: bool


def read_records(path: Path) -> list[Turn]:
    """The availability controller's turns in a file of decision records, one JSON object a line.

    Raises MarketFileError naming the line that cannot be read.
    """
    lines = enumerate(read_text(path, MarketFileError).splitlines(), start=1)
    return _turns(path, ((number, text) for number, text in lines if text.strip()))


def table_records(dynamodb: "DynamoDBClient", table: str, fleet: str) -> list[Turn]:
    """The turns that a deployed stack's table holds of a fleet."""
    pages = dynamodb.get_paginator("query").paginate(
        TableName=table,
        KeyConditionExpression="pk = :fleet AND begins_with(sk, :decisions)",
        ExpressionAttributeValues={
            ":fleet": {"S": f"fleet#{fleet}"},
            ":decisions": {"S": "decision#"},
        },
    )
    texts = (item["record"]["S"] for page in pages for item in page["Items"])
    return _turns(Path(f"{table}, fleet {fleet}"), enumerate(texts, start=1))


def read_activities(path: Path) -> list[Change]:
    """The changes in an answer of `aws autoscaling describe-scaling-activities`.

    Raises MarketFileError where it is none.
    """
    try:
        return changes_of(json.loads(read_text(path, MarketFileError))["Activities"])
    except _UNREADABLE as error:
        problem = f"is no answer of describe-scaling-activities: {type(error).__name__} {error}"
        raise MarketFileError(path, None, problem) from None


def group_activities(autoscaling: "AutoScalingClient", group: str) -> list[Change]:
    """The changes of a running group, as far back as AWS keeps them (six weeks)."""
    pages = autoscaling.get_paginator("describe_scaling_activities").paginate(
        AutoScalingGroupName=group
    )
    return changes_of([activity for page in pages for activity in page["Activities"]])


def changes_of(activities: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Launches, failed launches and ends of a group's instances by zone, in time order."""
    changes = [change for one in activities if (change := _change(one)) is not None]
    return sorted(changes, key=lambda change: change.at)


def _turns(source: Path, texts: Iterable[tuple[int, str]]) -> list[Turn]:
    """The availability controller's turns in records, in time order; refuses fewer than two."""
    turns: list[Turn] = []
    for line, text in texts:
        try:
            record = record_in_todays_words(json.loads(text))
            if record["controller"] != "availability":
                continue
            if not has_figures(seen := record["seen"]):
                continue
            turns.append(
                Turn(
                    at=datetime.fromisoformat(record["at"]),
                    desired=int(seen["SpotDesired"] + seen["SpotSpare"]),
                    held=int(seen["SpotServing"] + seen["SpotLaunching"] + seen["SpotAtRisk"]),
                    refused=any(each.startswith("capacity:") for each in record["failures"]),
                )
            )
        except _UNREADABLE as error:
            problem = f"is no decision record: {type(error).__name__} {error}"
            raise MarketFileError(source, line, problem) from None
    if not turns[1:]:
        problem = "has fewer than two records of the availability controller; export later"
        raise MarketFileError(source, None, problem)
    return sorted(turns, key=lambda turn: turn.at)


def _change(activity: Mapping[str, Any]) -> Change | None:
    """Read one activity; None where it says nothing of the market."""
    at, words = activity["StartTime"], activity["Description"]
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    zone = json.loads(activity.get("Details") or "{}").get("Availability Zone", "")
    if not zone:
        return None
    if words.startswith("Launching"):
        if activity["StatusCode"] not in ("Failed", "Cancelled"):
            return Change(at=at, zone=zone, by=1, limits=False)
        lacking = classify(activity.get("StatusMessage", ""))[0] is FailureClass.CAPACITY
        return Change(at=at, zone=zone, by=0, limits=True) if lacking else None
    if not _INSTANCE.search(words):
        return None
    if words.startswith("Detaching"):
        return Change(at=at + timedelta(seconds=NOTICE_S), zone=zone, by=-1, limits=True)
    asked = any(reason in activity["Cause"] for reason in _ON_PURPOSE)
    return Change(at=at, zone=zone, by=-1, limits=not asked)


def export_market(
    name: str, turns: Sequence[Turn], changes: Sequence[Change] = (), instance_type: str = "any"
) -> Market:
    """The market that a fleet saw between its first and its last turn.

    With activities it has a pool for each zone, without them one pool for the whole fleet.
    """
    start, end = turns[0].at, turns[-1].at
    pools = {
        f"{zone}/{instance_type}": _of_zone([c for c in changes if c.zone == zone], start, end)
        for zone in sorted({change.zone for change in changes})
    }
    length_s = (end - start).total_seconds()
    return market_of(name, length_s, pools or {WHOLE_POOL: _as_a_whole(turns)})


def _as_a_whole(turns: Sequence[Turn]) -> list[tuple[float, int]]:
    """What was held is capacity; what was requested without success, or taken, is not."""
    steps: dict[float, int] = {}
    capacity = before = turns[0].held
    for turn in turns:
        short = turn.held < turn.desired
        if short and (turn.refused or turn.held < before):
            capacity = turn.held
        capacity, before = max(capacity, turn.held), turn.held
        steps[(turn.at - turns[0].at).total_seconds()] = capacity
    return list(steps.items())


def _of_zone(changes: Sequence[Change], start: datetime, end: datetime) -> list[tuple[float, int]]:
    """One zone's capacity; an end without a launch is of an instance that was there before."""
    lowest = level = 0
    for change in changes:
        level += change.by
        lowest = min(lowest, level)
    held = capacity = -lowest
    steps = {0.0: capacity}
    for change in changes:
        held += change.by
        capacity = held if change.limits else max(capacity, held)
        if change.at < end:
            steps[max(0.0, (change.at - start).total_seconds())] = capacity
    return list(steps.items())
