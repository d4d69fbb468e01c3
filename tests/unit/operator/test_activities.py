"""Which ends of instances `explain` shows as AWS's own, by the texts of scaling activities."""

from typing import Any

import pytest

from spotkeeper_operator.aws import read_activities
from tests.builders import NOON

AN_INSTANCE = "an instance was taken out of service in response to"


class Account:
    """An account whose group has one activity."""

    def __init__(self, cause: str, description: str) -> None:
        self.autoscaling: Any = self
        self._activity = {
            "AutoScalingGroupName": "spot",
            "Description": description,
            "Cause": cause,
            "StartTime": NOON,
            "StatusCode": "Successful",
        }

    def get_paginator(self, name: str) -> "Account":
        del name
        return self

    def paginate(self, **_: object) -> list[dict[str, Any]]:
        return [{"Activities": [self._activity]}]


@pytest.mark.parametrize(
    ("cause", "taken"),
    [
        (f"{AN_INSTANCE} an EC2 health check indicating it has been terminated or stopped.", True),
        (f"{AN_INSTANCE} a system health-check.", True),
        (f"{AN_INSTANCE} an EC2 instance status checks failure.", True),
        (f"{AN_INSTANCE} an ELB system health check failure.", True),
        (f"{AN_INSTANCE} an EC2 Spot interruption notice.", True),
        (f"{AN_INSTANCE} a user request.", False),
        (f"{AN_INSTANCE} a user health-check.", False),
        ("a user request update of capacity, shrinking the capacity from 3 to 2.", False),
    ],
)
def test_what_aws_ended_on_its_own_is_known_by_the_cause(cause: str, taken: bool) -> None:
    account: Any = Account(f"At 2026-11-20T12:00:00Z {cause}", "Terminating EC2 instance: i-1")
    (found,) = read_activities(account, "spot", NOON, NOON)
    assert found.taken is taken


def test_a_launch_in_place_of_what_aws_ended_is_no_end() -> None:
    cause = f"{AN_INSTANCE} an EC2 health check indicating it has been terminated or stopped."
    account: Any = Account(cause, "Launching a new EC2 instance: i-2")
    (found,) = read_activities(account, "spot", NOON, NOON)
    assert not found.taken
