"""Placement scores are requested once per day and configuration; EC2's model checks the call."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from spotkeeper.adapters.doctor.account import placement_scores
from spotkeeper.domain.doctor.facts import Unseen
from tests.builders import NOON, TABLE
from tests.unit.doctor.good import FLEET, ON_DEMAND, SPOT

GROUPS = {SPOT.name: SPOT, ON_DEMAND.name: ON_DEMAND}
ASKED = {
    "InstanceTypes": sorted(SPOT.types),
    "TargetCapacity": FLEET.bounds.spot_max,
    "SingleAvailabilityZone": False,
    "RegionNames": ["us-east-1"],
}


@pytest.fixture
def ec2(dynamodb: object) -> Iterator[Stubber]:
    with Stubber(boto3.client("ec2", "us-east-1")) as stub:
        yield stub
        stub.assert_no_pending_responses()


def scores(ec2: Stubber, fleets: Any, groups: Any, now: datetime) -> Any:
    def client(service: str) -> Any:
        make: Any = boto3.client
        return ec2.client if service == "ec2" else make(service, "us-east-1")

    return placement_scores(client, TABLE, fleets, groups, now)


def answer(ec2: Stubber, score: int, **asked: object) -> None:
    found = {"SpotPlacementScores": [{"Region": "us-east-1", "Score": score}]}
    ec2.add_response("get_spot_placement_scores", found, ASKED | asked)


def test_a_score_is_remembered_for_a_day(ec2: Stubber) -> None:
    answer(ec2, 7)
    assert scores(ec2, [FLEET], GROUPS, NOON) == {"main": 7}
    assert scores(ec2, [FLEET], GROUPS, NOON + timedelta(hours=23)) == {"main": 7}
    answer(ec2, 2)
    assert scores(ec2, [FLEET], GROUPS, NOON + timedelta(hours=24)) == {"main": 2}


def test_another_configuration_is_asked_for_at_once(ec2: Stubber) -> None:
    answer(ec2, 7)
    scores(ec2, [FLEET], GROUPS, NOON)
    answer(ec2, 4, InstanceTypes=["g6.xlarge"])
    other = GROUPS | {SPOT.name: replace(SPOT, types=("g6.xlarge",))}
    assert scores(ec2, [FLEET], other, NOON) == {"main": 4}


def test_a_group_that_names_no_types_and_one_that_is_missing_are_left_out(ec2: Stubber) -> None:
    by_attributes = {SPOT.name: replace(SPOT, types=())}
    assert scores(ec2, [FLEET], by_attributes, NOON) == {}
    assert scores(ec2, [FLEET], {}, NOON) == {}


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "MaxConfigLimitExceeded"])
def test_what_aws_refuses_is_not_known(ec2: Stubber, code: str) -> None:
    ec2.add_client_error("get_spot_placement_scores", code)
    found = scores(ec2, [FLEET], GROUPS, NOON)
    assert isinstance(found, Unseen)
    assert found.action == "ec2:GetSpotPlacementScores"


def test_a_region_without_a_score_has_none(ec2: Stubber) -> None:
    ec2.add_response("get_spot_placement_scores", {"SpotPlacementScores": []}, ASKED)
    assert scores(ec2, [FLEET], GROUPS, NOON) == {}
