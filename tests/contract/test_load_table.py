"""What every load table does, in memory and on DynamoDB."""

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.stub import Stubber
from hypothesis import given

from spotkeeper.adapters.dynamodb.load_memory import LoadMemory
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable, pack, unpack
from spotkeeper.domain.load.digest import SearchLog, merge, sent_iso
from spotkeeper.domain.load.load import LoadDigest, slot_of
from spotkeeper.ports import Gone, LoadTable, Throttled, Unreadable
from spotkeeper_lab.fakes import FakeLoadTable, digest
from tests.builders import TABLE
from tests.contract.conftest import table_client
from tests.laws import rows
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


def test_a_message_that_comes_again_counts_once(table: LoadTable) -> None:
    table.add([some(1), some(2), some(1), some(3)])
    table.add([some(2), some(4)])
    table.add([some(4)])
    assert list(table.add([])) == []
    assert read(table, 60) == (merge([some(n) for n in (1, 2, 3, 4)]),)


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


def test_an_item_expires_three_hours_after_it_was_sent() -> None:
    expires_at = int((SENT + timedelta(hours=3)).timestamp())
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


@pytest.mark.parametrize(("workers", "began_s"), [(200, 9), (20, 7_000)])
def test_a_batch_of_many_workers_stays_within_an_item(
    dynamodb: "DynamoDBClient", workers: int, began_s: float
) -> None:
    sent = [
        digest_of([log(began_s, 1, worker=f"gpu-{n}-{one}") for one in range(workers)], before(0))
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


@pytest.mark.parametrize(
    ("busy", "asked", "unstored"),
    # The first two messages are in one item.
    [(0, [25, 5], []), (1, [25, 5, 1], []), (3, [25, 5, 2, 1], []), (99, [25, 5, 2, 1, 1], [0, 1])],
)
def test_what_is_left_unprocessed_is_written_again_or_answered(
    busy: int, asked: list[int], unstored: list[int]
) -> None:
    client: Any = _Busy(busy)
    pauses: list[float] = []
    sent = [some(0), *(some(n, 10 * (n - 1)) for n in range(1, 31))]
    left = LoadDigestTable(client, TABLE, pauses.append).add(sent)
    assert sorted(left) == sorted(sent[n].key for n in unstored)
    assert client.asked == asked
    assert pauses[:3] == sorted(pauses[:3])


def test_what_aws_refuses_is_an_error_of_the_ports(dynamodb: "DynamoDBClient") -> None:
    table = LoadDigestTable(dynamodb, "missing", no_sleep)
    with pytest.raises(Gone, match="reading the load of fleet ocr"):
        table.since(FLEET, before(60))
    with Stubber(dynamodb) as stub, pytest.raises(Throttled, match="writing to the load table"):
        stub.add_client_error("batch_write_item", "ProvisionedThroughputExceededException")
        table.add([some(1)])


def _drawn() -> list[LoadDigest]:
    random = Random(0)
    drawn = [(n * 1.7, random.lognormvariate(0, 1)) for n in range(500)]
    return [digest_of([log(at + took, at, waited=random.expovariate(1)) for at, took in drawn])]


STEADY = [digest_of([log(n * 1.7 + 1, n * 1.7 + 0.3, waited=n % 7) for n in range(500)])]
TEN_WORKERS = [
    digest_of([log(1 + at / 2, 0.7 + at / 2, worker=f"gpu-{n}") for at in range(20)])
    for n in range(10)
]


@pytest.mark.parametrize("sent", [STEADY, _drawn(), TEN_WORKERS])
def test_hundreds_of_logs_fit_into_one_write_unit(sent: list[LoadDigest]) -> None:
    item = pack(*sorted(sent, key=lambda one: one.key))
    assert sum(len(name) + len(next(iter(value.values()))) for name, value in item.items()) <= 1024


# --- what a warm function remembers is what it would read anew ------------------------------------

WINDOW_S = 120


def after(seconds: float) -> datetime:
    return SENT + timedelta(seconds=seconds)


def sent(content: int, at_s: float, fleet: str = "ocr") -> LoadDigest:
    """A message of one log; equal contents are equal logs, whenever they are sent."""
    served = log(9, 1, request_id=f"r-{content}", worker=f"gpu-{content % 3}", fleet=fleet)
    [only] = digest([served], after(at_s), fleet)
    return only


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds pass, a message sent `late_s` ago is stored, and perhaps a turn reads.

    `again` of the messages before it are delivered once more with it. `window_s` is how far back
    the turn reads, 0 when it does not read.
    """

    fleet: int
    passed_s: int
    content: int
    late_s: float
    again: int
    window_s: int


def _step(row: bytes) -> Step:
    return Step(
        fleet=row[0] % 4 // 3,
        passed_s=(1, 7, 20)[row[1] % 3],
        content=row[2] % 5 if row[2] % 2 else int.from_bytes(row[2:4]),
        late_s=(0.5, 1, 2, 3, 4, 5, 20, 90)[row[4] % 8],
        again=(0, 0, 1, 3)[row[5] % 4],
        window_s=(0, WINDOW_S, WINDOW_S, WINDOW_S, WINDOW_S, 150)[row[6] % 6],
    )


stories = rows(7, min_size=6, max_size=14).map(lambda many: [*map(_step, many)])


@pytest.mark.parametrize("worth_counting", [1, 1000], ids=["counted", "read whole"])
@given(story=stories)
def test_reading_again_gives_what_reading_anew_gives(
    worth_counting: int, story: list[Step]
) -> None:
    """Digests may arrive late, twice, out of order or for another fleet of the same function."""
    warm = LoadDigestTable(table_client(), TABLE, worth_counting=worth_counting)
    plain = FakeLoadTable()
    now_s = 0.0
    before: defaultdict[str, list[LoadDigest]] = defaultdict(list)
    for step in story:
        now_s += step.passed_s
        fleet = f"fleet-{step.fleet}"
        before[fleet].append(sent(step.content, now_s - step.late_s, fleet))
        batch = before[fleet][-1 - step.again :]
        warm.add(batch)
        plain.add(batch)
        if step.window_s:
            since = after(now_s - step.window_s)
            assert warm.since(fleet, since) == by_slot(plain.since(fleet, since))


@pytest.fixture
def queries(dynamodb: "DynamoDBClient") -> list[str]:
    """The queries to the table: `COUNT`, or the time from which digests were read."""
    asked: list[str] = []

    def note(params: dict[str, Any], **_: object) -> None:
        first = params["ExpressionAttributeValues"][":first"]["S"]
        asked.append(params.get("Select", first))

    dynamodb.meta.events.register("provide-client-params.dynamodb.Query", note)
    return asked


@pytest.fixture
def filled(dynamodb: "DynamoDBClient") -> LoadDigestTable:
    """A table with a message a second for two minutes, read once."""
    table = LoadDigestTable(dynamodb, TABLE, worth_counting=1)
    table.add([sent(at_s, at_s) for at_s in range(WINDOW_S)])
    table.since("ocr", after(0))
    return table


def logs_read(table: LoadDigestTable, since_s: float) -> int:
    return sum(one.count for one in table.since("ocr", after(since_s)))


def test_an_error_on_the_way_leaves_nothing_half_remembered(
    dynamodb: "DynamoDBClient", filled: LoadDigestTable
) -> None:
    filled.add([sent(999, WINDOW_S)])
    key = {"pk": {"S": "load#ocr"}, "sk": {"S": f"{sent_iso(after(WINDOW_S + 1))}#other"}}
    dynamodb.put_item(TableName=TABLE, Item=key | {"digest": {"B": b"of another release"}})
    for _ in range(2):
        with pytest.raises(Unreadable, match="delete it, or wait three hours"):
            filled.since("ocr", after(0))
    dynamodb.delete_item(TableName=TABLE, Key=key)
    assert filled.since("ocr", after(0)) == LoadDigestTable(dynamodb, TABLE).since("ocr", after(0))


def test_only_the_newest_digests_are_read_unless_one_was_late(
    filled: LoadDigestTable, queries: list[str]
) -> None:
    filled.add([sent(500, WINDOW_S)])
    assert logs_read(filled, 30) == WINDOW_S - 30 + 1
    assert queries == ["2026-11-20T12:01:20.000Z", "COUNT"]
    filled.add([sent(501, 40)])
    assert logs_read(filled, 30) == WINDOW_S - 30 + 2
    assert queries[2:] == ["2026-11-20T12:01:30.000Z", "COUNT", "2026-11-20T12:00:30.000Z"]
    assert logs_read(filled, 30) == WINDOW_S - 30 + 2
    assert queries[-1] == "COUNT"


def test_a_small_window_is_read_in_one_call(dynamodb: "DynamoDBClient", queries: list[str]) -> None:
    table = LoadDigestTable(dynamodb, TABLE)
    table.add([sent(at_s, at_s) for at_s in range(WINDOW_S)])
    assert [logs_read(table, 0), logs_read(table, 60)] == [WINDOW_S, 60]
    assert queries == ["2026-11-20T12:00:00.000Z", "2026-11-20T12:01:00.000Z"]


def test_a_memory_holds_no_more_than_its_window() -> None:
    memory = LoadMemory(slot_of(SENT))
    digests = [sent(at_s, at_s) for at_s in range(600)]
    memory.add((one.key, [one]) for one in digests)
    memory.forget_before(slot_of(after(540)))
    assert (len(memory.sums()), memory.count_before(slot_of(after(9999)))) == (6, 60)
    assert memory.digests_before(slot_of(after(9999))) == 60
    assert len(memory.items_since(memory.first)) == 60


def test_what_is_deleted_is_not_remembered(dynamodb: "DynamoDBClient") -> None:
    table = LoadDigestTable(dynamodb, TABLE)
    table.add([sent(0, 10), sent(1, 20)])
    assert logs_read(table, 0) == 2
    (item, _) = dynamodb.scan(TableName=TABLE)["Items"]
    dynamodb.delete_item(TableName=TABLE, Key={"pk": item["pk"], "sk": item["sk"]})
    assert logs_read(table, 0) == 1
