"""A mistake in a fleet document never stops what runs: it goes on as it was, and that rings."""

import importlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import boto3
import pytest

from spotkeeper import wiring
from spotkeeper.adapters import fleet_documents
from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.fleet_documents import KEPT_FOR, DocumentCopy, FleetDocumentStore
from spotkeeper.domain.permission import Control, Mode
from spotkeeper.observability import TurnFailed
from spotkeeper_lab.cloud.values import two_groups
from tests.builders import NOON
from tests.functions.conftest import PATH, TABLE, A, B, Metrics, Stage, StageOf, document

CHECKERS = ("check_availability", "check_health")
FEW = {"spot_min": 0, "spot_max": 9, "on_demand_max": 9}


def handler(name: str) -> Callable[..., Any]:
    return importlib.import_module(f"functions.{name}.app").handler  # type: ignore[no-any-return]


def write(**texts: object) -> None:
    for name, text in texts.items():
        Stage.put(name.replace("__", "."), text if isinstance(text, str) else json.dumps(text))


def delete(name: str) -> None:
    boto3.client("ssm").delete_parameter(Name=f"{PATH}/{name}")


@pytest.fixture
def stage(stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A fleet that both checkers have turned, and another one."""
    monkeypatch.setattr(fleet_documents, "CACHE_S", 0)
    stage = stage_of()
    for name in CHECKERS:
        stage.call(handler(name))
    return stage


def turned(stage: Stage, function: str = "check_availability") -> tuple[set[str], str]:
    """Call a function a minute later: which fleets had a turn, and what rings."""
    stage.at(stage.cloud.now_s + 61)
    before = {fleet: len(stage.records(fleet)) for fleet in ("ocr", "search", "other")}
    ring = ""
    try:
        stage.call(handler(function))
    except TurnFailed as error:
        ring = str(error)
    return {fleet for fleet, count in before.items() if len(stage.records(fleet)) > count}, ring


FIRST = document("ocr")
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a typo in the overrides": (
        lambda: write(ocr__overrides='{"bounds": {"spot_mx": 7}}'),
        "bounds.spot_mx: is not known here",
    ),
    "no text": (lambda: write(ocr=" "), "ocr: is empty"),
    "ciphertext": (lambda: write(ocr="AQICAHh" * 20), "not SecureString"),
    "a field twice": (
        lambda: write(ocr=json.dumps(FIRST)[:-1] + ', "bounds": {"spot_max": 1}}'),
        "bounds stands twice in one object",
    ),
    "the groups of another fleet": (
        lambda: write(ocr={**FIRST, "on_demand_group": "search-on-demand"}),
        "ocr: names the group search-on-demand, which fleet search has",
    ),
    "a document that was deleted": (lambda: delete("ocr"), "document ocr was deleted: put it back"),
}


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_fleet_goes_on_as_it_was_and_the_mistake_rings(
    stage: Stage, mistake: str, cold: bool
) -> None:
    make, told = MISTAKES[mistake]
    make()
    for function in CHECKERS:
        if cold:
            stage.restart()
        fleets, ring = turned(stage, function)
        assert fleets == {"ocr", "search"}
        assert told in ring
        assert "as it was before, it stays in force until 2026-11-27 12:1" in ring
    assert "ocr" in wiring.fleet_documents().names
    write(ocr=FIRST, ocr__overrides="{}")
    stage.restart()
    assert turned(stage) == ({"ocr", "search"}, "")


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_copied_document_is_refused_and_the_established_fleet_goes_on(
    stage: Stage, mode: str, cold: bool
) -> None:
    """In the order of names, the copy may be the first."""
    write(**{"a-copy": {**FIRST, "mode": mode}, "other": FIRST})
    if cold:
        stage.restart()
    fleets, ring = turned(stage)
    assert fleets == {"ocr", "search"}
    for name in ("a-copy", "other"):
        assert f"document {name}: names the group ocr-on-demand, which fleet ocr has" in ring
        assert "no turn runs for it" in ring
    assert wiring.fleet_documents().groups == {
        "ocr-spot", "ocr-on-demand", "search-spot", "search-on-demand",
    }  # fmt: skip


def test_of_two_new_documents_the_one_that_acts_has_the_group(stage_of: StageOf) -> None:
    stage = stage_of()
    write(another={**FIRST, "mode": "observe"})
    assert turned(stage)[0] == {"ocr", "search"}
    stage_of()
    write(another=FIRST, search={**document("search"), "spot_group": "ocr-spot"})
    assert turned(stage)[0] == {"search"}


def test_two_fleets_may_exchange_their_groups(stage: Stage) -> None:
    write(ocr=document("search"), search=FIRST)
    stage.restart()
    assert turned(stage) == ({"ocr", "search"}, "")
    assert {f.name: f.spot_group for f in wiring.fleet_documents().fleets} == {
        "ocr": "search-spot", "search": "ocr-spot",
    }  # fmt: skip


@pytest.mark.parametrize(("mode", "goes_on"), [("act", "other"), ("observe", "ocr")])
def test_a_fleet_may_be_renamed_if_the_new_one_acts(stage: Stage, mode: str, goes_on: str) -> None:
    delete("ocr")
    write(other={**FIRST, "mode": mode})
    stage.restart()
    fleets, ring = turned(stage)
    assert fleets == {goes_on, "search"}
    assert ("document ocr was deleted" in ring) is (goes_on == "ocr")


def test_what_was_right_last_stays_in_force_for_a_week(stage: Stage) -> None:
    write(ocr='{"version": 1}')
    assert turned(stage)[0] == {"ocr", "search"}
    for time, goes_on in ((KEPT_FOR - timedelta(minutes=10), True), (KEPT_FOR, False)):
        stage.at(600 + time.total_seconds())
        stage.restart()
        fleets, ring = turned(stage)
        assert ("ocr" in fleets) is goes_on
        assert "fleet document ocr: " in ring
    assert "no turn runs for it" in ring


def test_a_mistake_after_a_change_keeps_the_change(stage: Stage) -> None:
    write(ocr={**FIRST, "bounds": FEW})
    stage.restart()
    turned(stage)
    write(ocr="{")
    for _ in range(2):
        stage.restart()
        turned(stage, "check_health")
        (ocr, _) = wiring.fleet_documents().fleets
        assert ocr.bounds.spot_max == 9


def test_the_document_of_a_fleet_that_was_stopped_may_be_deleted(stage: Stage) -> None:
    table = ControlTable(boto3.client("dynamodb"), TABLE)
    table.change("ocr", Control(), Control(mode=Mode.OBSERVE, mode_by="me"))
    delete("ocr")
    stage.restart()
    assert turned(stage) == ({"search"}, "")
    stage.restart()
    assert turned(stage, "check_health") == ({"search"}, "")


def test_a_table_that_is_away_does_not_lose_what_was_right_last(stage: Stage) -> None:
    """A function that starts now knows nothing of it, and must not write that."""
    write(ocr="{")
    stage.restart()
    stage.down.add("documents copy")
    assert "no turn runs for it" in turned(stage)[1]
    stage.down.clear()
    assert turned(stage)[0] == {"ocr", "search"}


def test_search_logs_and_warnings_reach_a_fleet_whose_document_is_gone(stage: Stage) -> None:
    delete("ocr")
    stage.restart()
    assert "ocr" in wiring.fleet_documents().names
    (warned, *_) = [i.instance_id for i in stage.cloud.group("ocr-spot").instances]
    stage.cloud.reclaim([warned], stage.cloud.now_s + 120)
    detail = {"instance-id": warned, "instance-action": "terminate"}
    event = {
        "source": "aws.ec2", "detail-type": "EC2 Spot Instance Interruption Warning",
        "account": "123456789012", "time": stage.now.isoformat(), "detail": detail,
    }  # fmt: skip
    assert "1 at risk" in stage.call(handler("handle_interruption"), event)["ocr"]


# --- groups ---------------------------------------------------------------------------------------


def lose_spot(stage: Stage) -> str:
    """Take a spot instance with a warning, and return its id."""
    (taken, *_) = [i.instance_id for i in stage.cloud.group("ocr-spot").instances]
    stage.cloud.reclaim([taken], stage.cloud.now_s + 120)
    return taken


def test_without_its_on_demand_group_spot_is_sized_and_drained(
    stage: Stage, metrics: Metrics
) -> None:
    stage.at(661)
    stage.serve("ocr", 9.0, 30)
    stage.cloud.delete_group("ocr-on-demand")
    stage.restart()
    assert turned(stage, "check_health") == ({"ocr", "search"}, "")
    assert stage.cloud.group("ocr-spot").desired == 6
    taken = lose_spot(stage)
    assert turned(stage) == ({"ocr", "search"}, "")
    assert taken not in {i.instance_id for i in stage.cloud.group("ocr-spot").instances}
    record = stage.records("ocr")[-1]
    drained = [o["request"] for o in record["outcomes"] if o["request"]["kind"] == "drain"]
    assert [taken] in [each["instances"] for each in drained]
    assert "group-missing" in record["alarms"]
    assert "ocr-on-demand does not exist: create it, or correct" in record["reason"]
    assert metrics("ocr")["ConfigurationFailure"] == 1
    stage.cloud.create_group(
        two_groups("s", "ocr-on-demand", pools=(A, B), maximum=9, desired=0)[1]
    )
    turned(stage)
    assert "group-missing" not in stage.records("ocr")[-1]["alarms"]


@pytest.mark.parametrize("field", ["spot_group", "on_demand_group"])
def test_a_document_that_misspells_a_group_changes_nothing_and_rings(
    stage: Stage, field: str
) -> None:
    write(ocr={**FIRST, field: "orc"})
    stage.restart()
    taken = lose_spot(stage)
    for function in CHECKERS:
        fleets, ring = turned(stage, function)
        assert fleets == {"ocr", "search"}
        assert "orc does not exist: create it, or correct the fleet document" in ring
        assert "ocr-spot and ocr-on-demand go on" in ring
    assert taken not in {i.instance_id for i in stage.cloud.group("ocr-spot").instances}


def test_the_instances_of_a_former_on_demand_group_are_not_paid_for_in_silence(
    stage: Stage, metrics: Metrics
) -> None:
    """Until they have ended, another fleet has the group, or its owner's tag is removed."""
    stage.cloud.set_desired("ocr-on-demand", 3)
    for name in ("new", "newer"):
        pair = two_groups("s", name, pools=(A, B), maximum=9, desired=0)
        stage.cloud.create_group(pair[1])
    for name in ("new", "newer"):
        write(ocr={**FIRST, "on_demand_group": name})
        stage.restart()
        for _ in range(2):
            turned(stage)
            record = stage.records("ocr")[-1]
            assert "ocr-on-demand, which an earlier document named, still has 3" in record["reason"]
            assert "group-left" in record["alarms"]
            assert metrics("ocr")["ConfigurationFailure"] == 1
    stage.down.add("DescribeAutoScalingGroups")
    with pytest.raises(TurnFailed):
        stage.call(handler("check_availability"))
    stage.down.clear()
    stage.cloud.set_desired("ocr-on-demand", 0)
    stage.at(stage.cloud.now_s + 600)
    turned(stage)
    assert "group-left" not in stage.records("ocr")[-1]["alarms"]


def test_a_former_group_that_another_fleet_has_now_does_not_ring(stage: Stage) -> None:
    stage.cloud.set_desired("ocr-on-demand", 3)
    write(ocr=document("search"), search=FIRST)
    stage.restart()
    turned(stage)
    assert all("group-left" not in stage.records(f)[-1]["alarms"] for f in ("ocr", "search"))


def test_a_stack_that_was_made_again_says_how_to_take_its_groups_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACK_NONCE", "another")
    stage.restart()
    for function in CHECKERS:
        ring = turned(stage, function)[1]
        assert (
            "If that one was deleted without it, take the group over: aws autoscaling delete-tags "
            "--tags ResourceId=ocr-spot,ResourceType=auto-scaling-group,Key=spotkeeper:owner "
            "ResourceId=ocr-on-demand,ResourceType=auto-scaling-group,Key=spotkeeper:owner" in ring
        )


def test_documents_are_copied_also_after_a_read_that_copies_nothing(stage_of: StageOf) -> None:
    stage_of(("main",))
    copy = DocumentCopy(boto3.client("dynamodb"), TABLE)
    store = FleetDocumentStore(boto3.client("ssm"), PATH, copy)
    for copies, copied in ((False, []), (True, ["main"])):
        store.load(NOON, copies=copies)
        kept = copy.read()
        assert kept is not None
        assert list(kept.texts) == copied
