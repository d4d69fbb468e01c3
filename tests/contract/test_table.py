"""What is read and written by operators and for money: on moto, and on the lab's own table."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.domain.money.ledger import LedgerItem
from spotkeeper.domain.permission import Control, Mode, Pause
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.ports import Conflict, Unreadable
from spotkeeper_lab.aws.context import create_table, local_aws
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.values import Physics
from tests.builders import NOON, TABLE, at
from tests.contract.conftest import cloud_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_dynamodb import DynamoDBClient

KEY = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "x"}}


@pytest.fixture(params=["moto", "lab"])
def table(request: pytest.FixtureRequest) -> "Iterator[DynamoDBClient]":
    if request.param == "moto":
        yield request.getfixturevalue("dynamodb")
        return
    with local_aws(cloud_of(Physics()), VirtualTime(NOON)):
        client = boto3.client("dynamodb")
        create_table(client, TABLE)
        yield client


def test_a_life_that_an_earlier_release_closed_again_and_again_is_read_once(
    table: "DynamoDBClient",
) -> None:
    ledger = LedgerTable(table, TABLE)
    one = LedgerItem(
        fleet="ocr", instance_id="i-1", pool="a/x", option=PurchaseOption.SPOT, since=NOON
    )
    ledger.put([replace(one, until=at(600 + 300 * look)) for look in range(5)])
    assert ledger.since("ocr", NOON) == (replace(one, until=at(600)),)
    assert ledger.ended("ocr", at(601))[0] == replace(one, until=at(900))


def test_pages_go_on_where_they_ended(table: "DynamoDBClient") -> None:
    for number in range(7):
        table.put_item(TableName=TABLE, Item={**KEY, "sk": {"S": f"n{number}"}, "a": {"N": "1"}})
    table.put_item(TableName=TABLE, Item=KEY)

    def read(**more: Any) -> list[str]:
        pages = table.get_paginator("query").paginate(
            TableName=TABLE,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :n)",
            ExpressionAttributeValues={":pk": KEY["pk"], ":n": {"S": "n"}},
            ProjectionExpression="#key",
            ExpressionAttributeNames={"#key": "sk"},
            PaginationConfig={"PageSize": 3},
            **more,
        )
        return ["".join(item["sk"]["S"] for item in page["Items"]) for page in pages]

    assert read() == ["n0n1n2", "n3n4n5", "n6"]
    assert read(ScanIndexForward=False) == ["n6n5n4", "n3n2n1", "n0"]


def test_what_is_refused_has_dynamodbs_code(table: "DynamoDBClient") -> None:
    def code(operation: str, **params: Any) -> str:
        with pytest.raises(ClientError) as refused:
            getattr(table, operation)(**{"TableName": TABLE, **params})
        return str(refused.value.response["Error"]["Code"])

    there = "attribute_exists(pk)"
    assert code("get_item", TableName="missing", Key=KEY) == "ResourceNotFoundException"
    failed = "ConditionalCheckFailedException"
    assert code("put_item", Item=KEY, ConditionExpression=there) == failed
    update = {"UpdateExpression": "REMOVE a", "ConditionExpression": there}
    assert code("update_item", Key=KEY, **update) == failed
    assert table.scan(TableName=TABLE)["Items"] == []


PAUSE = Pause(until=at(3600), why="maintenance", by="arn:aws:iam::1:user/ops", at=NOON)


def test_control_is_read_and_only_that_of_its_fleet(table: "DynamoDBClient") -> None:
    controls = ControlTable(table, TABLE)
    said = Control(mode=Mode.OBSERVE, mode_by="ops", mode_at=NOON, pause=PAUSE)
    changed = controls.change("ocr", Control(), said)
    assert controls.of("ocr") == changed == replace(said, version=1)
    assert controls.of("search") == Control()


def test_the_second_of_two_concurrent_changes_fails_and_changes_nothing(
    table: "DynamoDBClient",
) -> None:
    controls = ControlTable(table, TABLE)
    first = controls.change("ocr", Control(), Control(mode=Mode.OBSERVE))
    for seen in (Control(), replace(first, version=7)):
        with pytest.raises(Conflict, match="another operator has just changed ocr"):
            controls.change("ocr", seen, Control(mode=Mode.ACT))
    assert controls.of("ocr").mode is Mode.OBSERVE
    assert controls.change("ocr", first, Control(mode=Mode.ACT)).version == 2


def test_what_cannot_be_read_is_not_guessed(table: "DynamoDBClient") -> None:
    table.put_item(
        TableName=TABLE,
        Item={"pk": {"S": "fleet#ocr"}, "sk": {"S": "control"}, "control": {"S": "{?"}},
    )
    with pytest.raises(Unreadable, match=r"fleet#ocr, control .+ set it again"):
        ControlTable(table, TABLE).of("ocr")
