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
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from math import inf
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.adapters.errors import End, classify, end_of
from spotkeeper.domain.failure import FailureClass
from spotkeeper_lab.files import read_rows, read_text
from spotkeeper_lab.traces.market import Market, MarketError, MarketFileError, market_of

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_dynamodb import DynamoDBClient

SAMPLE_HEADERS = (["date", "availability"], ["time", "count"], ["timestamp", "count"])
BAMBOO_STEP_S = 60.0
"""Bamboo's events are differences of samples taken this often; the last sample lasts as long."""

type Steps = list[tuple[float, int]]
type Rows = Sequence[tuple[int, list[str]]]


class Series(NamedTuple):
    """One pool as recorded: (seconds, capacity) from 0 on, its length, when it began if known."""

    steps: Steps
    length_s: float
    began: datetime | None = None


def read_public_traces(
    paths: Sequence[Path],
    name: str,
    *,
    gap_s: float | None = None,
    inverted: bool | None = None,
    pool: str | None = None,
) -> Market:
    """One market from the files of its pools, cut to the time that all of them cover.

    ``gap_s`` overrides a JSON file's step (one published file says 300 s but was probed every
    195 s); ``inverted`` says that 1 means not available, as in SkyNomad's converted JSON; ``pool``
    names the pool of a single file. Raises MarketFileError naming the file and the line that cannot
    be read, and MarketError for a step without a length.
    """
    if gap_s is not None and not 0 < gap_s < inf:
        raise MarketError(f"a step of {gap_s:g} s has no length; give more than 0 s")
    if not paths:
        raise MarketFileError(name, None, "no trace file given")
    if pool and len(paths) > 1:
        raise MarketFileError(paths[1], None, "one pool name cannot be given to several files")
    pools: dict[str, Series] = {}
    for path in paths:
        own, series = pool or pool_name(path), _read(path, gap_s, inverted)
        first = next(iter(pools.values()), series)
        if own in pools:
            raise MarketFileError(path, None, f"a second file for the pool {own!r}")
        if (series.began is None) != (first.began is None):
            problem = "times that cannot be laid beside the first file's: one has dates"
            raise MarketFileError(path, None, problem)
        pools[own] = series
    start = max((one.began for one in pools.values() if one.began), default=None)
    skipped = {
        own: (start - one.began).total_seconds() if start and one.began else 0.0
        for own, one in pools.items()
    }
    end_s = min(one.length_s - skipped[own] for own, one in pools.items())
    if end_s <= 0:
        raise MarketFileError(paths[-1], None, "the files have no time in common")
    cut: dict[str, Steps] = {}
    for own, one in pools.items():
        moved = [(time - skipped[own], capacity) for time, capacity in one.steps]
        held = [capacity for time, capacity in moved if time <= 0][-1]
        cut[own] = [(0.0, held), *(step for step in moved if 0 < step[0] < end_s)]
    return market_of(name, end_s, cut)


def pool_name(path: Path) -> str:
    """``us-east-1a_v100_1.json`` (or ``us-east-1a_v100_1/full.json``) is us-east-1a/v100_1."""
    stem = path.parent.name if path.stem == "full" else path.stem
    zone, _, kind = stem.partition("_")
    return f"{zone}/{kind}" if kind else f"any/{zone}"


def _read(path: Path, gap_s: float | None, inverted: bool | None) -> Series:
    if path.suffix == ".json":
        return _json(path, gap_s, inverted)
    if gap_s is not None or inverted is not None:
        problem = "has its own times and counts: --gap and --inverted are for JSON files only"
        raise MarketFileError(path, None, problem)
    rows = list(read_rows(path, MarketFileError))
    if not rows:
        raise MarketFileError(path, None, "is empty")
    line, first = rows[0]
    if [field.lower() for field in first] in SAMPLE_HEADERS:
        return _samples(path, rows[1:])
    if _is_event(first):
        return _events(path, rows)
    problem = (
        "neither a header date,availability (SkyNomad) or time,count, nor an event "
        "milliseconds,add|remove,node (Bamboo); SkyPilot's traces end in .json"
    )
    raise MarketFileError(path, line, problem)


@contextmanager
def _at(path: Path, line: int | None) -> Iterator[None]:
    """Name the file and the line of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise MarketFileError(path, line, str(error)) from None


def _json(path: Path, gap_s: float | None, inverted: bool | None) -> Series:
    try:
        parsed = json.loads(read_text(path, MarketFileError))
    except json.JSONDecodeError as error:
        raise MarketFileError(path, error.lineno, f"is not JSON: {error.msg}") from None
    match parsed:
        case {"metadata": {"gap_seconds": int() | float() as gap, **metadata}, "data": [_, *_]}:
            data, step_s = parsed["data"], float(gap) if gap_s is None else gap_s
        case _:
            shape = '{"metadata": {"gap_seconds": ...}, "data": [...]}'
            raise MarketFileError(path, 1, f"has no {shape}, or no data in it")
    if isinstance(gap, bool) or not 0 < step_s < inf:
        raise MarketFileError(path, 1, f"gap_seconds is {gap}; it must be more than 0")
    with _at(path, None):
        if "price_info" in metadata and inverted is None:
            raise ValueError(
                "looks like SkyNomad's converted JSON, where 1 means not available; "
                "give --inverted or --no-inverted"
            )
        for index, value in enumerate(data):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"data[{index}] is {value!r}, not a number of instances")
            if inverted and value > 1:
                raise ValueError(f"data[{index}] is {value}; inverted is 0 or 1")
    counts = [1 - value if inverted else value for value in data]
    return Series([(n * step_s, count) for n, count in enumerate(counts)], len(counts) * step_s)


def _samples(path: Path, rows: Rows) -> Series:
    samples: list[tuple[datetime, int]] = []
    for line, row in rows:
        with _at(path, line):
            if len(row) != 2:  # noqa: PLR2004
                raise ValueError(f"{len(row)} fields where the header has 2")
            try:
                at = datetime.fromisoformat(row[0])
            except ValueError:
                raise ValueError(f"{row[0][:40]!r} is not a date and time") from None
            at, count = at if at.tzinfo else at.replace(tzinfo=UTC), -1.0
            with suppress(ValueError):
                count = float(row[1])
            if count < 0 or not count.is_integer():
                raise ValueError(f"{row[1][:40]!r} is not a number of instances (0 or more)")
            if samples and at <= samples[-1][0]:
                raise ValueError(f"{row[0]} is not after the row before; sort")
            samples.append((at, int(count)))
    if not samples[1:]:
        raise MarketFileError(path, None, "has fewer than two samples")
    began = samples[0][0]
    steps = [((at - began).total_seconds(), count) for at, count in samples]
    last_s = median(b[0] - a[0] for a, b in pairwise(steps))
    return Series(steps, steps[-1][0] + last_s, began)


def _is_event(row: Sequence[str]) -> bool:
    return len(row) == 3 and row[1] in ("add", "remove")  # noqa: PLR2004


def _events(path: Path, rows: Rows) -> Series:
    nodes: set[str] = set()
    steps: dict[float, int] = {0.0: 0}
    last_s = 0.0
    for line, row in rows:
        with _at(path, line):
            if not _is_event(row):
                raise ValueError("is not an event milliseconds,add|remove,node")
            time, kind, node = row
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
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)


class Turn(NamedTuple):
    """What one decision record says of the spot group."""

    at: datetime
    desired: int
    held: int
    refused: bool


class Change(NamedTuple):
    """One scaling activity: `by` more or fewer held in a zone; `limits` when the market did it."""

    at: datetime
    zone: str
    by: int
    limits: bool


def read_records(path: Path) -> list[Turn]:
    """The availability controller's turns in a file of decision records, one JSON object a line.

    Raises MarketFileError naming the line that cannot be read.
    """
    return _turns(path, read_text(path, MarketFileError).splitlines())


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
    return _turns(Path(f"{table}, fleet {fleet}"), texts)


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
    return sorted(filter(None, map(_change, activities)), key=attrgetter("at"))


def _turns(source: Path, texts: Iterable[str]) -> list[Turn]:
    """The availability controller's turns in records, in time order; refuses fewer than two."""
    turns: list[Turn] = []
    for line, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            record = read_record(text)
        except ValueError as error:
            raise MarketFileError(source, line, f"is no decision record: {error}") from None
        if figures := record.availability:
            dry = any(one.failure_class is FailureClass.CAPACITY for one in record.failures)
            turns.append(Turn(record.at, figures.spot_desired, figures.spot_held, refused=dry))
    if not turns[1:]:
        problem = "has fewer than two records of the availability controller; export later"
        raise MarketFileError(source, None, problem)
    return sorted(turns, key=attrgetter("at"))


def _change(activity: Mapping[str, Any]) -> Change | None:
    """Read one activity; None where it says nothing of the market."""
    at, words = activity["StartTime"], activity["Description"]
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    zone = json.loads(activity.get("Details") or "{}").get("Availability Zone", "")
    if not zone:
        return None
    if words.startswith("Launching"):
        if activity["StatusCode"] not in ("Failed", "Cancelled"):
            return Change(at, zone, by=1, limits=False)
        lacking = classify(activity.get("StatusMessage", ""))[0] is FailureClass.CAPACITY
        return Change(at, zone, by=0, limits=True) if lacking else None
    if not _INSTANCE.search(words):
        return None
    if words.startswith("Detaching"):
        return Change(at + timedelta(seconds=NOTICE_S), zone, by=-1, limits=True)
    return Change(at, zone, by=-1, limits=end_of(activity["Cause"]) in (End.AWS, End.UNKNOWN))


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


def _as_a_whole(turns: Sequence[Turn]) -> Steps:
    """What was held is capacity; what was requested without success, or taken, is not."""
    steps: dict[float, int] = {}
    capacity = before = turns[0].held
    for turn in turns:
        if turn.held < turn.desired and (turn.refused or turn.held < before):
            capacity = turn.held
        capacity, before = max(capacity, turn.held), turn.held
        steps[(turn.at - turns[0].at).total_seconds()] = capacity
    return list(steps.items())


def _of_zone(changes: Sequence[Change], start: datetime, end: datetime) -> Steps:
    """One zone's capacity; an end without a launch is of an instance that was there before."""
    levels = list(accumulate((change.by for change in changes), initial=0))
    held = capacity = -min(levels)
    steps = {0.0: capacity}
    for change in changes:
        held += change.by
        capacity = held if change.limits else max(capacity, held)
        if change.at < end:
            steps[max(0.0, (change.at - start).total_seconds())] = capacity
    return list(steps.items())
