"""What a fleet of an earlier release has written still reads, in today's words."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.border.fleet_document import parse_fleet
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.ports import Lease
from tests.builders import TABLE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

FORMATS = Path(__file__).parents[2] / "formats"
WRITTEN = datetime(2026, 11, 22, tzinfo=UTC)


def kept(release: str, name: str) -> Any:
    return json.loads((FORMATS / release / f"{name}.json").read_text(encoding="utf-8"))


def leases(
    dynamodb: "DynamoDBClient", item: dict[str, Any], later: datetime
) -> tuple[Lease, Lease]:
    """What both controllers make of a state item: the availability controller's first."""
    dynamodb.put_item(TableName=TABLE, Item=item)
    states = FleetStateTable(dynamodb, TABLE, timedelta(days=30))
    fleet = item["pk"]["S"].removeprefix("fleet#")
    availability, health = (states.acquire(fleet, each, later, None) for each in Controller)
    assert availability
    assert health
    return availability, health


# --- 0.1 ------------------------------------------------------------------------------------------


def test_the_document_reads_with_what_it_says() -> None:
    fleet = parse_fleet("main", json.dumps(kept("0.1", "fleet_document")))
    assert (fleet.spot_group, fleet.on_demand_group) == ("ocr-spot", "ocr-on-demand")
    assert (fleet.workers_per_instance, fleet.onprem_workers) == (2, 3)
    assert (fleet.bounds.spot_min, fleet.bounds.spot_max, fleet.bounds.on_demand_max) == (1, 20, 10)
    assert fleet.objective is not None
    assert (fleet.objective.wait_s, fleet.objective.share) == (10, 0.95)
    assert len(fleet.unused) == 13


@pytest.mark.parametrize("item", kept("0.1", "record_items"), ids=lambda item: item["sk"]["S"][:60])
def test_a_record_is_read_back_whole(item: dict[str, dict[str, str]]) -> None:
    record, told = read_record(item["record"]["S"]), json.loads(item["record"]["S"])
    for name in ("action", "rule", "reason"):
        assert getattr(record, name) == told[name]
    assert sorted(record.seen.values()) == sorted(told["seen"].values())
    assert [o.asked for o in record.outcomes] == [o["asked"] for o in told["outcomes"]]


@pytest.mark.parametrize("item", kept("0.1", "state_items"), ids=lambda item: item["pk"]["S"])
def test_a_state_is_taken_over_and_its_notes_are_not_lost(
    item: dict[str, Any], dynamodb: "DynamoDBClient"
) -> None:
    availability, health = leases(dynamodb, item, datetime(2026, 1, 1, 1, tzinfo=UTC))
    assert health.health != HealthMemory()
    assert availability.availability != AvailabilityMemory()
    assert availability.notes


# --- 0.2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "margin_s"), [({}, 30), ({"deferral_margin_s": 60}, 60)])
def test_settings_go_by_their_earlier_names_where_todays_does_not_say_otherwise(
    changes: dict[str, int], margin_s: int
) -> None:
    document = kept("0.2", "fleet_document")
    fleet = parse_fleet("main", json.dumps(document), json.dumps({"availability": changes}))
    assert fleet.availability.deferral_margin_s == margin_s
    assert fleet.unused == ("availability.spell_s",)


def test_the_figures_of_a_record_have_todays_names() -> None:
    [item] = kept("0.2", "record_items")
    seen = read_record(item["record"]["S"]).seen
    assert seen == {"SpotDesired": 4, "SpotServing": 3, "SpotLaunching": 1, "SpotAtRisk": 0}


def test_memories_keep_what_they_knew(dynamodb: "DynamoDBClient") -> None:
    [item] = kept("0.2", "state_items")
    availability, health = leases(dynamodb, item, WRITTEN + timedelta(hours=1))
    assert availability.unreadable == health.unreadable == ()
    memory = availability.availability
    assert [increase.count for increase in memory.pending_increases] == [2]
    assert memory.launching_since == {"i-1": WRITTEN}
    assert [burst.warned for burst in memory.risk.warning_bursts] == [3]
    assert [start.instance_id for start in memory.risk.deferral.starts] == ["i-9"]
    assert health.health != HealthMemory()
