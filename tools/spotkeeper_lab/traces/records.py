"""Decision records and activities as they were left, read for what they tell of a market."""

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
from spotkeeper_lab.traces.market_file import MarketFileError

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_dynamodb import DynamoDBClient


NOTICE_S = 120.0
"""Spotkeeper detaches a warned instance at once; AWS takes it when its notice ends."""
_INSTANCE = re.compile(r"\bi-[0-9a-f]+\b")
_ON_PURPOSE = (
    "user request", "user health-check", "instance refresh", "shrinking the capacity",
    "scaling policy", "scheduled action",
)  # fmt: skip


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
    lines = enumerate(_text(path).splitlines(), start=1)
    return turns_of(((path, number, text) for number, text in lines if text.strip()), path)


def turns_of(texts: Iterable[tuple[Path, int, str]], source: Path) -> list[Turn]:
    """The turns in records, in time order; raises MarketFileError for fewer than two."""
    turns = [turn for one in texts if (turn := _turn(*one)) is not None]
    if not turns[1:]:
        problem = (
            "has fewer than two records of the availability controller; let the fleet run longer"
        )
        raise MarketFileError(source, None, problem)
    return sorted(turns, key=lambda turn: turn.at)


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
    source = Path(f"{table}, fleet {fleet}")
    items = (item for page in pages for item in page["Items"])
    texts = ((source, number, item["record"]["S"]) for number, item in enumerate(items, start=1))
    return turns_of(texts, source)


def read_activities(path: Path) -> list[Change]:
    """The changes in an answer of `aws autoscaling describe-scaling-activities`.

    Raises MarketFileError where it is none.
    """
    try:
        found = json.loads(_text(path))
        return changes_of(found["Activities"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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


def _turn(source: Path, line: int, text: str) -> Turn | None:
    """Read one record; None for one of the health controller."""
    try:
        record = record_in_todays_words(json.loads(text))
        if record["controller"] != "availability":
            return None
        seen, at = record["seen"], datetime.fromisoformat(record["at"])
        return Turn(
            at=at,
            desired=int(seen["SpotDesired"] + seen["SpotSpare"]),
            held=int(seen["SpotServing"] + seen["SpotLaunching"] + seen["SpotAtRisk"]),
            refused=any(failure.startswith("capacity:") for failure in record["failures"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"is no decision record: {type(error).__name__} {error}"
        raise MarketFileError(source, line, problem) from None


def _change(activity: Mapping[str, Any]) -> Change | None:
    """Read one activity; None where it says nothing of the market."""
    at, words = _time(activity["StartTime"]), activity["Description"]
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


def _time(value: "datetime | str") -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MarketFileError(path, None, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MarketFileError(path, None, "is not UTF-8 text") from None
