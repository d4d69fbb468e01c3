"""What a fleet of an earlier release has written still reads, in today's words."""

import json
import runpy
import zlib
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.decision_records import read_record
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.fleet_documents import DocumentCopy, InForce
from spotkeeper.border.fleet_document import parse_fleet
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import OF_FLEETS, Action, AvailabilityFigures, Failure, RequestKind
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.money.ledger import EndedBy, Gap, LedgerItem
from spotkeeper.domain.permission import Control, Mode, Pause
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.ports import AtRiskNote, Lease
from tests.builders import NOON, TABLE, held, judged
from tests.search_logs import SENT, digest_of, served

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
    availability, health = (states.acquire(fleet, each, later, None) for each in OF_FLEETS)
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
    figures = asdict(record.availability or judged(record)).values()
    assert {*filter(None, told["seen"].values())} <= {*figures}
    assert [o.request.text() for o in record.outcomes] == [o["asked"] for o in told["outcomes"]]
    assert all(o.request.kind is not RequestKind.EARLIER for o in record.outcomes)
    assert [f"{f.failure_class}: {f.message}" for f in record.failures] == told["failures"]
    assert len(record.alarms) == len(told["alarms"])


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
    seen = read_record(item["record"]["S"]).availability
    assert seen == AvailabilityFigures(spot_desired=4, spot_serving=3, spot_launching=1)


def test_what_another_release_knew_of_a_new_version_is_not_shown_as_nothing_served() -> None:
    known = {"version": "8", "requests": 10, "failed": 1, "verdict": "no worse"}
    said = {"fleet": "ocr", "controller": "health", "at": NOON.isoformat(), "action": "hold"}
    text = json.dumps({**said, "rule": "at target", "reason": "", "new_version": known})
    assert read_record(text).new_version is None


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


# --- the other way round: a release that was rolled back to reads what today's wrote ------------


def test_an_older_release_reads_or_never_sees_what_todays_keeps(dynamodb: "DynamoDBClient") -> None:
    reads = runpy.run_path(str(FORMATS / "0.2/readers.py"))["READS"]
    states = FleetStateTable(dynamodb, TABLE, timedelta(days=30))
    note = AtRiskNote(instance_ids=("i-1",), at=NOON)
    for each in OF_FLEETS:
        lease = states.acquire("ocr", each, NOON, note)
        assert lease
        assert states.acquire("ocr", each, NOON, note) is None
        states.commit(lease, getattr(lease, each.value), NOON)
        for action in {*Action} - {Action.STEP}:
            states.record(held(controller=each, action=action, error=Failure(kind="", text="no")))
    controls, pause = ControlTable(dynamodb, TABLE), Pause(until=NOON, why="y", by="me", at=NOON)
    for mode in Mode:
        seen = controls.of("ocr")
        controls.change("ocr", seen, Control(mode=mode, mode_by="me", mode_at=NOON, pause=pause))
    ledger = LedgerTable(dynamodb, TABLE)
    for number, ended in enumerate(EndedBy):
        life = LedgerItem(
            fleet="ocr", instance_id=f"i-{number}", pool="a/t", option=PurchaseOption.SPOT,
            since=NOON, until=NOON if ended else None, ended_by=ended,
        )  # fmt: skip
        ledger.put([life])
    ledger.looked("ocr", NOON, NOON)
    ledger.stood_still("ocr", Gap(since=NOON, until=NOON, instances=("i-9",)))
    LoadHistoryTable(dynamodb, TABLE).write("ocr", LoadHistory(next_step=9), NOON)
    alone, *two = [digest_of([served(w, SENT, 1.0)], SENT) for w in ("alone", "w-1", "w-2")]
    for digests in ([alone], two):
        assert LoadDigestTable(dynamodb, TABLE).add(digests) == []
    DocumentCopy(dynamodb, TABLE).keep(InForce(texts={"ocr": "{}"}, wrong_since={"ocr": NOON}))
    unseen, seen_by = set(), Counter[str]()
    for item in dynamodb.scan(TableName=TABLE)["Items"]:
        pk, sk = item["pk"]["S"], item["sk"]["S"]
        found = [it[3] for it in reads if pk.startswith(it[0]) and it[1] <= sk <= it[2]]
        for read in found:
            read(item)
            seen_by[read.__name__] += 1
        if not found:
            unseen.add(f"{pk} {sk.partition('#')[0]}")
    assert seen_by == {"state": 1, "record": 8, "control": 1, "ledger": 4, "load": 2}
    assert unseen == {
        "documents copy", "fleet#ocr history", "fleet#ocr memory", "ledger#ocr began",
        "ledger#ocr gap", "ledger#ocr looked", "ledger# ocr",
            "notes#ocr availability", "notes#ocr health",
    }  # fmt: skip


def test_the_newer_of_two_histories_counts_after_a_rollback(dynamodb: "DynamoDBClient") -> None:
    table, todays = LoadHistoryTable(dynamodb, TABLE), LoadHistory(next_step=9)
    table.write("ocr", todays, NOON)
    for packed, next_step in ((b"garbled", 9), (zlib.compress(b"[12,[],[],[],[]]"), 12)):
        key = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "history"}}
        dynamodb.put_item(TableName=TABLE, Item={**key, "history": {"B": packed}})
        assert table.read("ocr").next_step == next_step
