"""The expressions of DynamoDB that the product uses mean here what they mean there."""

import pytest

from spotkeeper_lab.aws.dynamodb import NotUnderstood, Table, Tables, condition, update
from spotkeeper_lab.cloud.values import CloudError

ITEM = {"a": {"N": "3"}, "b": {"S": "x"}}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("attribute_exists(a)", True),
        ("attribute_not_exists(a) OR a < :four", True),
        ("attribute_not_exists(a) OR #a > :four", False),
        ("a < :four AND b = :x", True),
        ("absent < :four", False),
        ("(a = :four OR b = :x) AND a <> :four", True),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    values = {":four": {"N": "4"}, ":x": {"S": "x"}}
    assert condition(text)(ITEM, {"#a": "a"}, values) is holds


def test_updates() -> None:
    new = update("SET #c = :y, d = a REMOVE b")(ITEM, {"#c": "c"}, {":y": {"S": "y"}})
    assert new == {"a": {"N": "3"}, "c": {"S": "y"}, "d": {"N": "3"}}
    assert "b" in ITEM


@pytest.mark.parametrize(
    "text",
    [
        "SET a",
        "ADD a :b",
        "a ~ :b",
        "SET a = :b :c",
        "SET status = :b",
        "REMOVE size",
        "SET a = list_append(a, :b)",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(NotUnderstood):
        update(text)({}, {}, {":b": {"N": "1"}, ":c": {"N": "1"}})


def test_a_table_refuses_what_dynamodb_does() -> None:
    tables = Tables(t=Table())
    item = {"pk": {"S": "p"}, "sk": {"S": "s"}}
    with pytest.raises(CloudError, match="Too many items"):
        tables.answers()["batch_write_item"]({"RequestItems": {"t": [{}] * 26}})
    with pytest.raises(NotUnderstood, match=":a is unused"):
        tables["t"].put_item(Item=item, ExpressionAttributeValues={":a": {"N": "1"}})
    with pytest.raises(NotUnderstood, match="begins_with"):
        tables["t"].query(
            KeyConditionExpression="begins_with(pk, :p)",
            ExpressionAttributeValues={":p": {"S": "p"}},
        )
    assert tables["t"].scan() == {"Items": []}


def test_an_expression_has_four_kilobytes_at_most() -> None:
    long = f"REMOVE {4089 * 'a'}"
    update(long)
    with pytest.raises(CloudError, match="Expression size has exceeded") as refused:
        update(f"{long}a")
    assert refused.value.code == "ValidationException"
    with pytest.raises(CloudError, match="expression size: 4097"):
        condition(f"a = :{4092 * 'v'}")
