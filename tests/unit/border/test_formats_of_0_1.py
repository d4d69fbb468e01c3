"""What a fleet of release 0.1 has written still reads: its document, its records, its state."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.border.fleet_document import parse_fleet
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.health_memory import HealthMemory
from tests.builders import TABLE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

from datetime import UTC, datetime, timedelta

FORMATS = Path(__file__).parents[2] / "formats" / "0.1"
LATER = datetime(2026, 1, 1, 1, tzinfo=UTC)


def items(name: str) -> list[dict[str, dict[str, str]]]:
    return list(json.loads((FORMATS / name).read_text(encoding="utf-8")))


def test_the_document_reads_with_what_it_says() -> None:
    fleet = parse_fleet("main", (FORMATS / "fleet_document.json").read_text(encoding="utf-8"))
    assert (fleet.spot_group, fleet.on_demand_group) == ("ocr-spot", "ocr-on-demand")
    assert (fleet.workers_per_instance, fleet.onprem_workers) == (2, 3)
    assert (fleet.bounds.spot_min, fleet.bounds.spot_max, fleet.bounds.on_demand_max) == (1, 20, 10)
    assert fleet.objective is not None
    assert (fleet.objective.wait_s, fleet.objective.share) == (10, 0.95)
    assert len(fleet.unused) == 10


@pytest.mark.parametrize("item", items("record_items.json"), ids=lambda item: item["sk"]["S"][:60])
def test_a_record_reads_with_all_that_it_told(item: dict[str, dict[str, str]]) -> None:
    text = item["record"]["S"]
    record = read_record(text)
    told = json.loads(text)
    assert (record.action, record.rule, record.reason) == (
        told["action"],
        told["rule"],
        told["reason"],
    )
    assert sorted(record.seen.values()) == sorted(told["seen"].values())
    assert [o.asked for o in record.outcomes] == [o["asked"] for o in told["outcomes"]]


@pytest.mark.parametrize("item", items("state_items.json"), ids=lambda item: item["pk"]["S"])
def test_a_state_is_taken_over_and_its_notes_are_not_lost(
    item: dict[str, dict[str, str]], dynamodb: "DynamoDBClient"
) -> None:
    dynamodb.put_item(TableName=TABLE, Item=item)
    states = FleetStateTable(dynamodb, TABLE, timedelta(days=30))
    fleet = item["pk"]["S"].removeprefix("fleet#")
    controller = states.acquire(fleet, Controller.HEALTH, LATER, None)
    other = states.acquire(fleet, Controller.AVAILABILITY, LATER, None)
    assert controller
    assert other
    assert controller.health != HealthMemory()
    assert other.availability != AvailabilityMemory()
    assert other.notes
    told = json.loads(item["availability_memory"]["S"])
    assert [loss.count for loss in other.availability.risk.losses] == [
        loss["count"] for loss in told["losses"]
    ]
