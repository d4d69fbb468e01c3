"""What a fleet of release 0.2 has written reads in today's words."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.border.fleet_document import parse_fleet
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Controller
from tests.builders import TABLE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

FORMATS = Path(__file__).parents[2] / "formats" / "0.2"
WRITTEN = datetime(2026, 11, 22, tzinfo=UTC)
LATER = WRITTEN + timedelta(hours=1)
ASKED = CapacityRequest(at=WRITTEN, need=4, spare=1)


def document(**availability: int) -> str:
    told = json.loads((FORMATS / "fleet_document.json").read_text(encoding="utf-8"))
    told["availability"] |= availability
    return json.dumps(told)


def item(name: str) -> dict[str, Any]:
    (only,) = json.loads((FORMATS / name).read_text(encoding="utf-8"))
    return dict(only)


def test_settings_go_by_their_earlier_names() -> None:
    fleet = parse_fleet("main", document())
    assert fleet.availability.elevated_risk_s == 900
    assert fleet.availability.deferral_margin_s == 30
    assert not fleet.unused


def test_a_setting_named_twice_is_what_todays_name_says() -> None:
    overridden = parse_fleet("main", document(elevated_risk_s=60))
    assert overridden.availability.elevated_risk_s == 60


def test_the_figures_of_a_record_have_todays_names() -> None:
    seen = read_record(item("record_items.json")["record"]["S"]).seen
    assert seen == {"SpotDesired": 4, "SpotServing": 3, "SpotLaunching": 1, "SpotAtRisk": 0}


def test_memories_keep_what_they_knew(dynamodb: "DynamoDBClient") -> None:
    dynamodb.put_item(TableName=TABLE, Item=item("state_items.json"))
    states = FleetStateTable(dynamodb, TABLE, timedelta(days=30))
    availability, health = (
        states.acquire("main", controller, LATER, None) for controller in Controller
    )
    assert availability
    assert health
    assert availability.unreadable == health.unreadable == ()
    memory = availability.availability
    assert [increase.count for increase in memory.pending_increases] == [2]
    assert memory.launching_since == {"i-1": WRITTEN}
    assert memory.capacity_requests == (ASKED,)
    assert [burst.warned for burst in memory.risk.warning_bursts] == [3]
    assert [start.instance_id for start in memory.risk.deferral.starts] == ["i-9"]
    assert health.health.capacity_request == ASKED
