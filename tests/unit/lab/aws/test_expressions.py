"""The expressions of DynamoDB that the product uses mean here what they mean there."""

from typing import Any

import pytest

from spotkeeper_lab.aws.dynamodb import NotUnderstood, Table, Tables
from spotkeeper_lab.cloud.values import CloudError

KEY = {"pk": {"S": "p"}, "sk": {"S": "s"}}
ITEM = {**KEY, "a": {"N": "3"}, "b": {"S": "x"}}
GIVEN: dict[str, Any] = {":four": {"N": "4"}, ":x": {"S": "x"}, "#a": "a"}


@pytest.fixture
def table() -> Table:
    table = Table()
    table.put_item(Item=ITEM)
    return table


def update(table: Table, update: str = "SET c = :x", condition: str = "") -> Any:
    """The item after an update that is given what it names."""
    used = {name: it for name, it in GIVEN.items() if name in update + condition}
    values = {name: it for name, it in used.items() if name[0] == ":"}
    return table.update_item(
        Key=KEY,
        UpdateExpression=update,
        ConditionExpression=condition,
        ExpressionAttributeNames={name: used[name] for name in used.keys() - values.keys()},
        ExpressionAttributeValues=values,
        ReturnValues="ALL_NEW",
    )["Attributes"]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("attribute_exists(a)", True),
        ("attribute_not_exists(a) OR a < :four", True),
        ("attribute_not_exists(a) OR #a > :four", False),
        ("a < :four AND b = :x", True),
        ("absent < :four", False),
        ("(a = :four OR b = :x) AND a <> :four", True),
    ],
)
def test_conditions(table: Table, condition: str, holds: bool) -> None:
    if holds:
        assert update(table, condition=condition)["c"] == {"S": "x"}
    else:
        with pytest.raises(CloudError, match="conditional request failed"):
            update(table, condition=condition)
        assert table.get_item(Key=KEY) == {"Item": ITEM}


def test_updates(table: Table) -> None:
    new = update(table, "SET #a = :x, d = a REMOVE b")
    assert new == {**KEY, "a": {"S": "x"}, "d": {"N": "3"}}
    assert "b" in ITEM


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        *((text, "") for text in ("SET a", "ADD a :x", "SET a = :x :four", "SET status = :x",
                                  "REMOVE size", "SET a = list_append(a, :x)")),
        *(("SET c = :x", text) for text in ("a ~ :x", "a = :x b = :x", "a", "(a = :x",
                                            "NOT a = :x")),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(table: Table, text: str, condition: str) -> None:
    with pytest.raises(NotUnderstood):
        update(table, text, condition)


def test_a_table_refuses_what_dynamodb_does(table: Table) -> None:
    with pytest.raises(CloudError, match="Too many items"):
        Tables(t=table).answers()["batch_write_item"]({"RequestItems": {"t": [{}] * 26}})
    with pytest.raises(NotUnderstood, match=":a is unused"):
        table.put_item(Item=KEY, ExpressionAttributeValues={":a": {"N": "1"}})
    with pytest.raises(NotUnderstood, match="begins_with"):
        table.query(
            KeyConditionExpression="begins_with(pk, :p)", ExpressionAttributeValues={":p": KEY}
        )


def test_an_expression_has_four_kilobytes_at_most(table: Table) -> None:
    long = f"REMOVE {4089 * 'a'}"
    update(table, long)
    with pytest.raises(CloudError, match="Expression size has exceeded") as refused:
        update(table, f"{long}a")
    assert refused.value.code == "ValidationException"
