"""The share and the report of a region: on moto, and on the lab's own table."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from spotkeeper.adapters.regions import RegionTables
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.spread import Report, Share
from spotkeeper.ports import Conflict, Unreadable
from tests.builders import NOON, TABLE, at, fleet

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ARN = f"arn:aws:dynamodb:us-east-2:123456789012:table/{TABLE}"
FLEET = replace(fleet(), regions=ARN)
SHARE = Share(term=3, cover=2, ask=3, on_demand_max=4, written=NOON, home="one")
REPORT = Report(
    at=NOON, term=3, serving=2, bare=1, refused={FailureClass.CAPACITY: at(-60)}, price=0.31
)


def test_a_home_and_a_region_read_what_the_other_wrote(dynamodb: "DynamoDBClient") -> None:
    home = RegionTables("us-west-2", "other", lambda region: dynamodb)
    region = RegionTables("us-east-2", TABLE, lambda region: dynamodb)
    assert region.of(FLEET, "us-east-2") == (None, None)
    home.write(FLEET, "us-east-2", SHARE, 0)
    region.write(FLEET, "us-east-2", REPORT)
    assert region.of(FLEET, "us-east-2") == home.of(FLEET, "us-east-2") == (SHARE, REPORT)
    items = dynamodb.scan(TableName=TABLE)["Items"]
    assert {(item["pk"]["S"], item["sk"]["S"]) for item in items} == {
        ("region#ocr", "share"),
        ("region#ocr", "report"),
    }


def test_a_share_takes_the_place_of_the_one_that_was_read_only(dynamodb: "DynamoDBClient") -> None:
    home = RegionTables("us-west-2", TABLE, lambda region: dynamodb)
    home.write(FLEET, "us-west-2", SHARE, 0)
    newer = replace(SHARE, term=4, written=NOON + timedelta(minutes=1))
    home.write(FLEET, "us-west-2", newer, 3)
    with pytest.raises(Conflict):
        home.write(FLEET, "us-west-2", replace(newer, term=5, home="two"), 3)
    assert home.of(FLEET, "us-west-2")[0] == newer


def test_what_no_release_wrote_is_named(dynamodb: "DynamoDBClient") -> None:
    item = {"pk": {"S": "region#ocr"}, "sk": {"S": "share"}, "said": {"S": "{}"}}
    dynamodb.put_item(TableName=TABLE, Item=item)
    with pytest.raises(Unreadable, match="delete it"):
        RegionTables("us-west-2", TABLE, lambda region: dynamodb).of(FLEET, "us-west-2")
