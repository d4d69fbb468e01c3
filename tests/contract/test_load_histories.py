"""What every keeper of load histories does, in memory and on DynamoDB."""

import json
import zlib
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest

from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.domain.load.history import DAY_MINUTES, LoadHistory, Scores, digits
from spotkeeper.domain.sizing.shadows import FAMILY
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


def a_day(erlangs: int = 50) -> LoadHistory:
    """As much as is ever kept, of a load that varies at random."""
    random = Random(0)

    def column(most: float) -> tuple[float, ...]:
        return tuple(float(f"{random.uniform(0, most):.4g}") for _ in FAMILY)

    return LoadHistory(
        next_step=6_000_000,
        work_ms=tuple(digits(random.randrange(120_000 * erlangs)) for _ in range(DAY_MINUTES)),
        requests=tuple(random.randrange(600) for _ in range(DAY_MINUTES)),
        sharing_sums=(288.0, 598.9061, 199.6354, 1_245.5012, 415.1201),
        scores=Scores(
            family="2",
            wait_s=10.0,
            share=0.95,
            next_step=5_999_999,
            steps=170.5,
            requests=12_345.0,
            followed=3,
            late=column(900),
            squares=column(90_000),
            hours=column(2_000),
        ),
    )


def test_a_fleet_without_history_has_an_empty_one(histories: LoadHistories) -> None:
    assert histories.read("ocr") == LoadHistory()


def test_what_is_written_is_read_and_fleets_are_apart(histories: LoadHistories) -> None:
    histories.write("ocr", a_day(), SENT)
    histories.write("ocr-2", a_day(3), SENT)
    assert histories.read("ocr") == a_day()
    histories.write("ocr", LoadHistory(next_step=1, work_ms=(7,), requests=(1,)), SENT)
    assert histories.read("ocr") == LoadHistory(next_step=1, work_ms=(7,), requests=(1,))
    assert histories.read("ocr-2") == a_day(3)


def test_an_item_is_small_and_goes_after_fifteen_days(dynamodb: "DynamoDBClient") -> None:
    LoadHistoryTable(dynamodb, TABLE).write("ocr", a_day(), SENT)
    [item] = dynamodb.scan(TableName=TABLE)["Items"]
    assert item["expires_at"]["N"] == str(int((SENT + timedelta(days=15)).timestamp()))
    assert len(bytes(item["history"]["B"])) <= 7 * 1024


@pytest.mark.parametrize(
    "stored",
    [
        "{}",
        '{"next_step": 9, "requests": [1, 1], "scores": {}}',
        '{"next_step": 9, "work_ms": [1, 1], "scores": {}}',
        '{"next_step": 9, "work_ms": [1], "requests": [1], "scores": null}',
        "",
    ],
)
def test_a_history_of_another_format_is_named(dynamodb: "DynamoDBClient", stored: str) -> None:
    packed = zlib.compress(stored.encode()) if stored else b"garbled"
    item = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "history"}, "history": {"B": packed}}
    dynamodb.put_item(TableName=TABLE, Item=item)  # type: ignore[arg-type]
    with pytest.raises(Unreadable, match="load history of fleet ocr"):
        LoadHistoryTable(dynamodb, TABLE).read("ocr")


def test_what_a_release_before_shadows_wrote_still_reads(dynamodb: "DynamoDBClient") -> None:
    steps, minutes = [60] * 3, [12_000] * 15
    old = [9, [60_000] * 3, steps, [0] * 3, [0] * 3, minutes, [0] * 3]
    packed = zlib.compress(json.dumps(old).encode())
    item = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "history"}, "history": {"B": packed}}
    dynamodb.put_item(TableName=TABLE, Item=item)  # type: ignore[arg-type]
    history = LoadHistoryTable(dynamodb, TABLE).read("ocr")
    assert history == LoadHistory(next_step=9, work_ms=(12_000,) * 15, requests=(12,) * 15)
