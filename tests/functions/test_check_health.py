"""check_health as Lambda calls it, on moto: logs from the table become a size and metrics."""

import json
from dataclasses import replace

import boto3
import pytest

from functions.check_health.app import handler
from spotkeeper import wiring
from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.observability import COUNTS, LEVELS, TurnFailed
from spotkeeper_lab.fakes import digest
from tests.builders import TABLE, at
from tests.functions.conftest import Metrics, StageOf, document
from tests.search_logs import served


def test_load_becomes_a_size_a_record_and_metrics(stage_of: StageOf, metrics: Metrics) -> None:
    stage = stage_of(("ocr",))
    stage.serve("ocr", 9.0, 30)
    answer = stage.call(handler)
    assert answer["ocr"].startswith("Spot 4 -> 6. At 70% busy, the load needs 6 workers")
    assert stage.cloud.group("ocr-spot").desired == 6
    (record,) = stage.records("ocr")
    assert (record["controller"], record["action"]) == ("health", "resize")
    assert stage.leased("ocr") == set()
    emitted = metrics("ocr")
    assert emitted.keys() <= LEVELS.keys() | COUNTS
    assert emitted["WorkersLive"] == 4
    asked = record["outcomes"][0]["request"]
    assert (asked["kind"], asked["group"], asked["desired"]) == ("resize_spot", "ocr-spot", 6)
    seen = record["health"]
    assert 89 < seen["load_rate"] <= 91
    assert seen["offered_load"] == pytest.approx(3.6, rel=0.05)
    assert seen["wait_p95_s"] == pytest.approx(1.0, rel=0.05)


def test_a_load_is_unknown_while_all_that_is_served_had_waited_longer_than_its_window(
    stage_of: StageOf, metrics: Metrics
) -> None:
    """After an outage: it is no load of 0, as workers are busy with what waited."""
    stage = stage_of(("ocr",))
    logs = [replace(served(f"i-{n:017}", at(590), 9.0), enqueued_at=at(-1800)) for n in range(4)]
    wiring.load_table().add(digest(logs, stage.now, "ocr"))
    stage.call(handler)
    (record,) = stage.records("ocr")
    assert record["health"]["offered_load"] is None
    assert "OfferedLoad" not in metrics("ocr")


def test_a_fleet_without_any_log_is_held_and_raises_no_alarm(
    stage_of: StageOf, metrics: Metrics
) -> None:
    stage = stage_of()
    answer = stage.call(handler)
    assert set(answer) == {"ocr", "search"}
    assert all("Search logs are stale (none ever arrived)" in reason for reason in answer.values())
    assert "StaleSearchLogs" not in metrics("ocr")
    assert stage.counted("autoscaling").keys() == {"DescribeAutoScalingGroups"}


@pytest.mark.parametrize("desired", [4, 40])
def test_a_quiet_turn_makes_seven_calls_of_the_table(stage_of: StageOf, desired: int) -> None:
    stage = stage_of(("ocr",), desired=desired)
    stage.serve("ocr", 6.7, 30)
    stage.call(handler)
    assert stage.counted("autoscaling", "ec2") == {"DescribeAutoScalingGroups": 1}
    # The control, the lease twice, the memories and the load, the own memory, the record, and once
    # in a process the documents in force, which are read and copied.
    calls = {"GetItem": 2, "UpdateItem": 2, "Query": 2, "PutItem": 3}
    assert stage.counted("dynamodb") == calls


def test_a_digest_that_cannot_be_read_fails_its_fleet_by_name_and_the_other_is_sized(
    stage_of: StageOf,
) -> None:
    stage = stage_of()
    stage.serve("ocr", 9.0, 30)
    stage.serve("search", 9.0, 30)
    table = boto3.client("dynamodb")
    key = {"pk": {"S": "load#search"}, "sk": {"S": f"{sent_iso(at(599))}#other"}}
    table.put_item(TableName=TABLE, Item=key | {"digest": {"B": b"of another release"}})
    for _ in range(2):
        with pytest.raises(TurnFailed, match=r"fleet search: the load item .+ cannot be read"):
            stage.call(handler)
    assert stage.cloud.group("ocr-spot").desired == 6
    assert stage.cloud.group("search-spot").desired == 4
    table.delete_item(TableName=TABLE, Key=key)
    stage.call(handler)
    assert stage.cloud.group("search-spot").desired == 6


def test_a_history_that_cannot_be_read_is_reported_once_and_starts_afresh(
    stage_of: StageOf,
) -> None:
    stage = stage_of(("ocr",))
    stage.put("ocr", json.dumps(document("ocr", objective={"wait_s": 10, "share": 0.95})))
    stage.restart()
    stage.serve("ocr", 9.0, 30)
    boto3.client("dynamodb").put_item(
        TableName=TABLE,
        Item={"pk": {"S": "fleet#ocr"}, "sk": {"S": "history"}, "history": {"B": b"of another"}},
    )
    with pytest.raises(TurnFailed, match="the load history of fleet ocr"):
        stage.call(handler)
    assert "95% start within 10 s" in stage.call(handler)["ocr"]
