"""Which ends of instances `explain` shows as AWS's own, by the texts of scaling activities."""

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
    activity = {
        "AutoScalingGroupName": "spot",
        "Description": what,
        "Cause": f"At 2026-11-20T12:00:00Z {cause}",
        "StartTime": NOON,
        "StatusCode": "Successful",
    }
    account = Mock()
    account.autoscaling.get_paginator().paginate.return_value = [{"Activities": [activity]}]
    (found,) = read_activities(account, "spot", NOON, NOON)
    assert found.taken is taken
