"""Makes a market of what a running fleet left behind: its decision records and scaling activities.

A fleet sees its market only through its requests: capacity is at least what was held, and no
more than that where a launch failed for lack of it or AWS took an instance. What lies above the
fleet's own size stays unknown, so an exported market suits fleets of that size or less.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.dynamodb.earlier import record_in_todays_words
from spotkeeper.adapters.errors import classify
from spotkeeper.domain.failure import FailureClass
from spotkeeper_lab.files import read_text
from spotkeeper_lab.traces.market import Market, MarketFileError, market_of

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_dynamodb import DynamoDBClient

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
            seen = record["seen"]
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
