"""What every load table does, in memory and on DynamoDB."""

import json
import zlib
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.stub import Stubber
from hypothesis import given

from spotkeeper.adapters.dynamodb.load_items import pack, unpack
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.domain.load.digest import SearchLog, digest, merge
from spotkeeper.domain.load.load import LoadDigest, slot_of
from spotkeeper.ports import Gone, LoadTable, Throttled
from spotkeeper_lab.fakes import FakeLoadTable
from tests.builders import TABLE
from tests.search_logs import FLEET, SENT, before, by_slot, digest_of, log
from tests.unit.load.test_load_digest import search_logs

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


def no_sleep(seconds: float) -> None:
    """Wait for nothing."""


@pytest.fixture(params=["memory", "dynamodb"])
def table(request: pytest.FixtureRequest) -> LoadTable:
    if request.param == "memory":
        return FakeLoadTable()
    return LoadDigestTable(request.getfixturevalue("dynamodb"), TABLE, no_sleep)


def read(table: LoadTable, age: float, fleet: str = FLEET) -> tuple[LoadDigest, ...]:
    """The digests of the last `age` seconds, summed by slot. A table may sum them itself."""
    return by_slot(table.since(fleet, before(age)))


def some(number: int, age: float = 0) -> LoadDigest:
    return digest_of([log(9, 1, request_id=f"r-{number}")], before(age))


def test_what_is_added_is_read_as_it_was(table: LoadTable) -> None:
    one = digest_of([log(95.25, 50, waited=3.5), log(9, 1, worker="gpu-1")])
    assert table.add([one]) in ([], ())
    assert read(table, 60) == (merge([one]),)


def test_an_empty_table_has_nothing(table: LoadTable) -> None:
    assert table.since(FLEET, before(60)) == ()
    assert list(table.add([])) == []


def test_adding_again_changes_nothing(table: LoadTable) -> None:
    table.add([some(1), some(2), some(1)])
    table.add([some(2)])
    assert read(table, 60) == (merge([some(1), some(2)]),)


def test_only_what_was_sent_since_is_read_to_the_slot(table: LoadTable) -> None:
    table.add([some(age, age) for age in range(100)])
    assert sum(one.count for one in read(table, 10)) == 11
    assert sum(one.count for one in read(table, 11)) == 21


def test_fleets_are_apart(table: LoadTable) -> None:
    logs = [log(9, 1), log(9, 1, fleet="ocr-2")]
    table.add(digest(logs, SENT, FLEET))
    assert [each.fleet for each in read(table, 9)] == [FLEET]
    assert [each.fleet for each in read(table, 9, "ocr-2")] == ["ocr-2"]


@given(search_logs(20))
def test_a_digest_survives_its_item(logs: list[SearchLog]) -> None:
    one = digest_of(logs)
    assert unpack(FLEET, pack(one)) == [one]


def test_pages_are_followed(dynamodb: "DynamoDBClient") -> None:
    calls: list[str] = []
    dynamodb.meta.events.register("before-call.dynamodb.Query", lambda **_: calls.append("Query"))
    table = LoadDigestTable(dynamodb, TABLE, no_sleep)
    random = Random(0)
    for age in range(80):
        logs = [log(9, 1, worker=random.randbytes(64).hex()) for _ in range(200)]
        assert table.add([digest_of(logs, before(age))]) == []
    assert sum(one.count for one in read(table, 3600)) == 80 * 200
    assert len(calls) > 1


def test_an_item_expires_two_hours_after_it_was_sent() -> None:
    expires_at = int((SENT + timedelta(hours=2)).timestamp())
    assert pack(some(1))["expires_at"] == {"N": str(expires_at)}


def test_an_item_of_an_older_release_is_read_without_its_work() -> None:
    one = digest_of([log(95.25, 50, waited=3.5)])
    item = pack(one)
    values = json.loads(zlib.decompress(item["digest"]["B"]))[:-3]
    old = {**item, "digest": {"B": zlib.compress(json.dumps(values).encode())}}
    assert unpack(FLEET, old) == [replace(one, work_ms={}, newest_start=None, newest_wait_ms=0)]


def test_a_batch_of_one_slot_is_one_item_and_one_of_two_slots_is_two(
    dynamodb: "DynamoDBClient",
) -> None:
    table = LoadDigestTable(dynamodb, TABLE, no_sleep)
    sent = [some(n, age) for n, age in enumerate((0.1, 3, 9, 11, 12))]
    assert table.add(sent) == []
    items = dynamodb.scan(TableName=TABLE)["Items"]
    assert len(items) == len({slot_of(one.sent_at) for one in sent}) == 2
    assert read(table, 20) == by_slot(sent)


def test_a_message_that_comes_again_with_others_counts_once(table: LoadTable) -> None:
    table.add([some(1), some(2), some(3)])
    table.add([some(2), some(4)])
    table.add([some(4)])
    assert read(table, 60) == (merge([some(n) for n in (1, 2, 3, 4)]),)


def test_a_batch_of_many_workers_stays_within_an_item(dynamodb: "DynamoDBClient") -> None:
    sent = [
        digest_of([log(9, 1, worker=f"gpu-{n}-{worker}") for worker in range(200)], before(0))
        for n in range(5)
    ]
    table = LoadDigestTable(dynamodb, TABLE, no_sleep)
    assert table.add(sent) == []
    assert len(dynamodb.scan(TableName=TABLE)["Items"]) == 5
    assert read(table, 60) == (merge(sent),)


class _Busy:
    """DynamoDB that leaves the first item of the first calls unprocessed."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.asked: list[int] = []

    def batch_write_item(self, RequestItems: dict[str, list[Any]]) -> dict[str, Any]:
        """Answer as DynamoDB does when it is busy."""
        requests = RequestItems[TABLE]
        self.asked.append(len(requests))
        self.left -= 1
        return {"UnprocessedItems": {TABLE: requests[:1]} if self.left >= 0 else {}}


@pytest.mark.parametrize(("busy", "asked"), [(0, [25, 5]), (1, [25, 1, 5]), (3, [25, 1, 1, 1, 5])])
def test_what_is_left_unprocessed_is_written_again(busy: int, asked: list[int]) -> None:
    client: Any = _Busy(busy)
    sent = [some(n, 10 * n) for n in range(30)]
    assert LoadDigestTable(client, TABLE, no_sleep).add(sent) == []
    assert client.asked == asked


def test_what_stays_unprocessed_is_answered() -> None:
    client: Any = _Busy(99)
    pauses: list[float] = []
    sent = [some(0), some(9), *(some(n, 10 * n) for n in (1, 2))]
    left = LoadDigestTable(client, TABLE, pauses.append).add(sent)
    # Two messages were in the one item.
    assert sorted(left) == sorted([some(0).key, some(9).key])
    assert client.asked == [3, 1, 1, 1]
    assert pauses == sorted(pauses)


def test_what_aws_refuses_is_an_error_of_the_ports(dynamodb: "DynamoDBClient") -> None:
    table = LoadDigestTable(dynamodb, "missing", no_sleep)
    with pytest.raises(Gone, match="reading the load of fleet ocr"):
        table.since(FLEET, before(60))
    with Stubber(dynamodb) as stub, pytest.raises(Throttled, match="writing to the load table"):
        stub.add_client_error("batch_write_item", "ProvisionedThroughputExceededException")
        table.add([some(1)])


def _steady() -> list[LoadDigest]:
    return [digest_of([log(n * 1.7 + 1, n * 1.7 + 0.3, waited=n % 7) for n in range(500)])]


def _random() -> list[LoadDigest]:
    random = Random(0)
    drawn = [(n * 1.7, random.lognormvariate(0, 1)) for n in range(500)]
    return [digest_of([log(at + took, at, waited=random.expovariate(1)) for at, took in drawn])]


def _many_workers() -> list[LoadDigest]:
    times = [at / 2 for at in range(20)]
    found = [
        digest_of([log(1 + at, 0.7 + at, worker=f"gpu-{n}") for at in times]) for n in range(10)
    ]
    return sorted(found, key=lambda one: one.key)


@pytest.mark.parametrize("sent", [_steady(), _random(), _many_workers()])
def test_hundreds_of_logs_fit_into_one_write_unit(sent: list[LoadDigest]) -> None:
    item = pack(*sent)
    assert sum(len(name) + len(next(iter(value.values()))) for name, value in item.items()) <= 1024
