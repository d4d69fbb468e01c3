"""What operators say of a fleet is kept once, for whoever saw it last."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.domain.permission import Control, Mode, Pause
from spotkeeper.ports import Conflict, Unreadable
from tests.builders import NOON, TABLE, at

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

PAUSE = Pause(until=at(3600), why="maintenance", by="arn:aws:iam::1:user/ops", at=NOON)


def test_of_nothing_said_is_a_control_of_its_own(dynamodb: "DynamoDBClient") -> None:
    assert ControlTable(dynamodb, TABLE).of("ocr") == Control()


def test_what_was_said_is_read_and_only_of_its_fleet(dynamodb: "DynamoDBClient") -> None:
    table = ControlTable(dynamodb, TABLE)
    said = Control(mode=Mode.OBSERVE, mode_by="ops", mode_at=NOON, pause=PAUSE)
    changed = table.change("ocr", Control(), said)
    assert table.of("ocr") == changed == replace(said, version=1)
    assert table.of("search") == Control()


def test_of_two_at_once_the_second_is_told_and_changes_nothing(
    dynamodb: "DynamoDBClient",
) -> None:
    table = ControlTable(dynamodb, TABLE)
    first = table.change("ocr", Control(), Control(mode=Mode.OBSERVE))
    for seen in (Control(), replace(first, version=7)):
        with pytest.raises(Conflict, match="another operator has just changed ocr"):
            table.change("ocr", seen, Control(mode=Mode.ACT))
    assert table.of("ocr").mode is Mode.OBSERVE
    assert table.change("ocr", first, Control(mode=Mode.ACT)).version == 2


def test_what_cannot_be_read_is_not_guessed(dynamodb: "DynamoDBClient") -> None:
    dynamodb.put_item(
        TableName=TABLE,
        Item={"pk": {"S": "fleet#ocr"}, "sk": {"S": "control"}, "control": {"S": "{?"}},
    )
    with pytest.raises(Unreadable, match="control of fleet#ocr"):
        ControlTable(dynamodb, TABLE).of("ocr")
