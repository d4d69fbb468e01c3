"""What a warm function remembers of the load table is what it would read anew."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from spotkeeper.adapters.dynamodb.load_memory import LoadMemory
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.domain.load.digest import digest, sent_iso
from spotkeeper.domain.load.load import LoadDigest, slot_of
from spotkeeper.ports import Unreadable
from spotkeeper_lab.fakes import FakeLoadTable
from tests.builders import TABLE
from tests.contract.conftest import table_client
from tests.laws import rows
from tests.search_logs import SENT, by_slot, log

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

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
    """So many seconds pass; a message sent `late_s` ago gets into the table; perhaps a turn reads.

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
        with pytest.raises(Unreadable, match="delete it, or wait two hours"):
            filled.since("ocr", after(0))
    dynamodb.delete_item(TableName=TABLE, Key=key)
    assert filled.since("ocr", after(0)) == LoadDigestTable(dynamodb, TABLE).since("ocr", after(0))


def test_what_is_known_is_counted_and_only_the_newest_read(
    filled: LoadDigestTable, queries: list[str]
) -> None:
    filled.add([sent(500, WINDOW_S)])
    assert logs_read(filled, 30) == WINDOW_S - 30 + 1
    assert queries == ["2026-11-20T12:01:20.000Z", "COUNT"]


def test_a_message_that_comes_in_late_is_not_missed(
    filled: LoadDigestTable, queries: list[str]
) -> None:
    filled.add([sent(500, 40)])
    assert logs_read(filled, 30) == WINDOW_S - 30 + 1
    assert queries == ["2026-11-20T12:01:20.000Z", "COUNT", "2026-11-20T12:00:30.000Z"]
    assert logs_read(filled, 30) == WINDOW_S - 30 + 1
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
