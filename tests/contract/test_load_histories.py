"""What every keeper of load histories does, in memory and on DynamoDB."""

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest

from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.domain.load.history import DAY_STEPS, KEPT_STEPS, LoadHistory
from spotkeeper.ports import LoadHistories, Unreadable
from spotkeeper_lab.fakes import FakeLoadHistories
from tests.builders import TABLE
from tests.search_logs import SENT

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@pytest.fixture(params=["memory", "dynamodb"])
def histories(request: pytest.FixtureRequest) -> LoadHistories:
    """Each kind of keeper, empty."""
    if request.param == "memory":
        return FakeLoadHistories()
    return LoadHistoryTable(request.getfixturevalue("dynamodb"), TABLE)


def two_weeks(erlangs: int = 50) -> LoadHistory:
    """As much as is ever kept, of a load that varies at random."""
    random = Random(0)
    return LoadHistory(
        next_step=6_000_000,
        work_ms=tuple(random.randrange(600_000 * erlangs) for _ in range(KEPT_STEPS)),
        requests=tuple(random.randrange(3000) for _ in range(DAY_STEPS)),
        late=tuple(random.randrange(30) for _ in range(DAY_STEPS)),
        roughness=tuple(random.randrange(10**12) for _ in range(DAY_STEPS)),
        minute_work_ms=tuple(random.randrange(120_000 * erlangs) for _ in range(5 * DAY_STEPS)),
        squares=tuple(random.randrange(10**11) for _ in range(DAY_STEPS)),
    )


def test_a_fleet_without_history_has_an_empty_one(histories: LoadHistories) -> None:
    assert histories.read("ocr") == LoadHistory()


def test_what_is_written_is_read_and_fleets_are_apart(histories: LoadHistories) -> None:
    histories.write("ocr", two_weeks(), SENT)
    histories.write("ocr-2", two_weeks(3), SENT)
    assert histories.read("ocr") == two_weeks()
    histories.write("ocr", LoadHistory(next_step=1, work_ms=(7,)), SENT)
    assert histories.read("ocr") == LoadHistory(next_step=1, work_ms=(7,))
    assert histories.read("ocr-2") == two_weeks(3)


def test_an_item_is_small_and_goes_after_fifteen_days(dynamodb: "DynamoDBClient") -> None:
    LoadHistoryTable(dynamodb, TABLE).write("ocr", two_weeks(), SENT)
    [item] = dynamodb.scan(TableName=TABLE)["Items"]
    assert item["expires_at"]["N"] == str(int((SENT + timedelta(days=15)).timestamp()))
    assert len(bytes(item["history"]["B"])) <= 32 * 1024


def test_a_history_of_another_format_is_named(dynamodb: "DynamoDBClient") -> None:
    item = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "history"}, "history": {"B": b"garbled"}}
    dynamodb.put_item(TableName=TABLE, Item=item)  # type: ignore[arg-type]
    with pytest.raises(Unreadable, match="load history of fleet ocr"):
        LoadHistoryTable(dynamodb, TABLE).read("ocr")
