"""Which ends of instances `explain` shows as AWS's own, by the texts of scaling activities."""

from datetime import datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper_operator.aws import read_activities
from tests.builders import NOON

AN_INSTANCE = "an instance was taken out of service in response to"
GONE = f"{AN_INSTANCE} an EC2 health check indicating it has been terminated or stopped."
END, LAUNCH = "Terminating EC2 instance: i-1", "Launching a new EC2 instance: i-2"


@pytest.mark.parametrize(
    ("cause", "what", "taken"),
    [
        (GONE, END, True),
        (f"{AN_INSTANCE} a system health-check.", END, True),
        (f"{AN_INSTANCE} an EC2 instance status checks failure.", END, True),
        (f"{AN_INSTANCE} an ELB system health check failure.", END, True),
        (f"{AN_INSTANCE} an EC2 Spot interruption notice.", END, True),
        (f"{AN_INSTANCE} a user request.", END, False),
        (f"{AN_INSTANCE} a user health-check.", END, False),
        ("a user request update of capacity, shrinking the capacity from 3 to 2.", END, False),
        (GONE, LAUNCH, False),
    ],
)
def test_what_aws_ended_on_its_own_is_known_by_the_cause(
    cause: str, what: str, taken: bool
) -> None:
    (found,) = read_activities(account([activity(NOON, what, cause)]), "spot", NOON, NOON)
    assert found.taken is taken


def test_a_time_after_which_the_group_failed_for_hours_is_read_as_a_whole() -> None:
    """AWS lists the newest first, and a group in trouble logs a failure every 15 s."""
    later = [activity(NOON + timedelta(seconds=15 * n), LAUNCH, "x") for n in range(600, 40, -1)]
    history = [*later, activity(NOON, END, GONE)]
    (found,) = read_activities(account(history), "spot", NOON, NOON + timedelta(minutes=5))
    assert found.taken


def activity(at: datetime, what: str, cause: str) -> dict[str, Any]:
    return {
        "AutoScalingGroupName": "spot",
        "Description": what,
        "Cause": f"At 2026-11-20T12:00:00Z {cause}",
        "StartTime": at,
        "StatusCode": "Successful",
    }


def account(history: list[dict[str, Any]]) -> Mock:
    """An account whose AWS filters a group's history, and answers with at most MaxRecords."""

    def paginate(**asked: Any) -> list[Any]:
        bounds = {it["Name"]: datetime.fromisoformat(it["Values"][0]) for it in asked["Filters"]}
        first = bounds["StartTimeLowerBound"]
        last = bounds.get("StartTimeUpperBound", history[0]["StartTime"])
        found = [it for it in history if first <= it["StartTime"] <= last]
        return [{"Activities": found[: asked["PaginationConfig"]["MaxItems"]]}]

    made = Mock()
    made.autoscaling.get_paginator().paginate = paginate
    return made
