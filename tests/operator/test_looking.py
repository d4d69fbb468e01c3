"""status, explain and doctor on a stack that works: kept answers, few calls, pages, details."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient

from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.domain.decision import Suspect, Suspicion
from spotkeeper.domain.fleet import Instance, Phase
from spotkeeper.domain.money.ledger import Life
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.status.known import Details, FleetInstances, instances_of
from spotkeeper_operator.status.looked import NEW, Looked
from spotkeeper_operator.status.shown import details_text
from tests.builders import NOON, fleet, group, held
from tests.functions.conftest import PATH, TABLE, Stage, StageOf, document
from tests.operator.command import (
    STACK,
    answered,
    deploy,
    matches,
    record,
    refused,
    run,
    sleeps,
    words,
)
from tests.operator.conftest import ring
from tests.unit.operator.test_explain import turn
from tests.unit.operator.test_status import logs
from tests.worker.page import of


def test_what_explain_answers(deployed: Stage, tmp_path: Path) -> None:
    path = tmp_path / "new" / "why.html"
    matches("explain.txt", answered("explain", "--since", "1h", "--report", str(path)))
    matches("explain_at.txt", answered("explain", "--at", "12:15", "--rule", "backfill"))
    assert "NO TURN SUCCEEDED" not in answered("explain", "--at", "12:17"), "it is 12:18 now"
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page), "it needs nothing else"
    for shown in ("Fleet", "Load", "Wait", "spot wanted", "make before break", "[backfill]"):
        assert shown in page, shown


def test_rounds_of_one_turn_are_shown_in_their_order(deployed: Stage) -> None:
    """They have one time."""
    keeping = FleetStateTable(boto3.client("dynamodb"), TABLE)
    for rule in ("first", "then"):
        keeping.record(replace(turn(0), fleet="main", at=deployed.now, rule=rule))
    told = answered("explain", "--since", "1m")
    assert told.index("[first]") < told.index("[then]")


def test_an_unwritable_output_is_reported_before_aws_is_called(
    tmp_path: Path, calls: list[str]
) -> None:
    in_a_file = tmp_path / "file"
    in_a_file.touch()
    nowhere = "/no-such-folder-at-the-root"
    for line in ("explain", "cost", "drill main"):
        for path, told in (
            (tmp_path, "is a folder; name a file in it"),
            (in_a_file / "page.html", "cannot make its folder"),
            (f"{nowhere}/page.html", f"there is no folder {nowhere}"),
        ):
            assert told in refused(*line.split(), "--report", str(path))
    assert calls == []


def test_two_groups_before_there_is_a_stack(deployed: Stage) -> None:
    groups = ("--spot-group", "main-spot", "--on-demand-group", "main-on-demand")
    found = {f["id"] for f in json.loads(answered("doctor", *groups, "--json"))["findings"]}
    assert "no-terminate-hook" in found
    assert "nothing-wakes-it" not in found, "a document that nobody has written yet is well"


def test_a_fleet_that_sleeps_by_its_overrides_is_woken_by_the_queue_that_they_name(
    deployed: Stage,
) -> None:
    """By the line of docs/workers.md, for the stack that is there."""

    def found() -> set[str]:
        return {finding["id"] for finding in json.loads(answered("doctor", "--json"))["findings"]}

    awake = {"bounds": {"spot_min": 1, "spot_max": 100, "on_demand_max": 100}}
    deployed.put("main", json.dumps(document("main", **awake)))
    deployed.put("main.overrides", '{"bounds": {"spot_min": 0}}')
    assert "nothing-wakes-it" in found()
    (line,) = of("aws ssm put-parameter")
    given = dict(zip(*[iter(shlex.split(line)[3:])] * 2, strict=True))
    assert given["--name"] == "/spotkeeper/spotkeeper/fleets/main.overrides"
    deployed.put("main.overrides", given["--value"])
    assert "nothing-wakes-it" not in found()
    (fleet,) = Aws("us-east-1").documents(Aws("us-east-1").stack("test")).fleets
    assert (fleet.request_queue_url, fleet.bounds.spot_min) == ("rabbitmq://%2F/requests", 0)


def test_exit_codes_and_calls(deployed: Stage, calls: list[str]) -> None:
    assert run("status")[0] == 1
    assert len(calls) <= 12, calls
    boto3.client("cloudwatch").delete_alarms(AlarmNames=["test-both-short"])
    assert run("status")[0] == 0
    assert run("doctor")[0] == 2
    deployed.at(deployed.cloud.now_s + 600)
    code, out, _ = run("status")
    assert code == 1
    assert "main          UNKNOWN: no availability turn has succeeded for 11 min" in out


def test_which_alarms_ring(deployed: Stage) -> None:
    """Checkers without a turn ring without data, and another stack's name may begin alike."""
    for alarm in ("checker-not-running", "errors"):
        ring(alarm, "INSUFFICIENT_DATA")
    ring("eu-both-short")
    ringing = json.loads(answered("status", "--json"))["ringing"]
    assert ringing == ["both-short", "checker-not-running"]
    # Those of a stack that is minutes old were not evaluated yet.
    boto3.client("cloudwatch").set_alarm_state(
        AlarmName=f"{STACK}-checker-not-running", StateValue="INSUFFICIENT_DATA", StateReason=NEW
    )
    assert json.loads(answered("status", "--json"))["ringing"] == ["both-short"]


def test_an_alarm_of_fleets_is_shown_with_those_that_ring(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "SELECT MAX(BothShort) FROM SCHEMA(Spotkeeper, service, fleet) GROUP BY fleet"
    ring("both-short", query=query)
    client_class: Any = BaseClient
    call = client_class._make_api_call

    def contributors(client: Any, operation: str, params: Any) -> Any:
        if operation != "DescribeAlarmContributors":
            return call(client, operation, params)
        attributes = [{"fleet": name} for name in ("main", "search")]
        return {"AlarmContributors": [{"ContributorAttributes": one} for one in attributes]}

    # moto does not know the call.
    monkeypatch.setattr(BaseClient, "_make_api_call", contributors)
    assert json.loads(answered("status", "--json"))["ringing_fleets"] == {
        "both-short": ["main", "search"]
    }
    assert "alarms        both-short (main, search)" in answered("status")


def test_a_stack_without_its_outputs_says_how_far_it_is(deployed: Stage) -> None:
    topic = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    boto3.client("cloudformation").create_stack(StackName="new", TemplateBody=topic)
    told = refused("status", "--stack", "new")
    assert told.startswith("error: stack new (CREATE_COMPLETE) has no output TableName: ")


def test_a_call_that_is_throttled_does_not_end_the_watch(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch, denied: Callable[..., None]
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            denied("DescribeStacks", "Throttling")
        if len(waits) == 3:
            raise KeyboardInterrupt

    sleeps(monkeypatch, wait)
    code, out, err = run("status", "--watch", "10s")
    assert (code, len(waits), out.count("(main-spot)")) == (130, 3, 1)
    assert err.count("error: describing stack test in us-east-1: Throttling") == 2


def test_records_of_another_release_are_counted_and_not_hidden(deployed: Stage) -> None:
    record(deployed, "health", {"fleet": "main", "controller": "third"})
    for line, told in (
        ("status", "trouble main: 1 records of another release left out"),
        ("status --events", "trouble main: 1 records of another release left out"),
        ("explain", "1 records of another release are left out"),
        ("observe report", "left out 1 records of another release"),
    ):
        assert told in words(line), line
    assert run("status", "--events")[0] == 1


def test_a_fleet_that_never_turned_is_unknown_not_whole(deployed: Stage) -> None:
    deployed.put("night", json.dumps(document("night")))
    out = answered("status", "--fleet", "night")
    assert "night         NOT WHOLE: night-spot and night-on-demand do not exist" in out
    assert answered("explain", "--fleet", "night") == "no decision in this time\n"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (("copy", json.dumps(document("main", mode="observe"))), "document copy: names the group"),
        (("main", '{"version": 1}'), "document main: bounds: is missing"),
        (("main.overrides", "{"), "document main.overrides: is not JSON"),
        (("main", ""), "document main was deleted: put it back, or run `spotkeeper stop main`"),
    ],
    ids=["a copy that observes", "a wrong field", "wrong overrides", "deleted"],
)
def test_a_fleet_whose_document_has_a_mistake_is_shown_and_controlled_as_before(
    deployed: Stage, change: tuple[str, str], wrong: str
) -> None:
    before = words("status").partition("alarms ")[0]
    if change[1]:
        deployed.put(*change)
    else:
        boto3.client("ssm").delete_parameter(Name=f"{PATH}/main")
    shown = words("status")
    assert shown.startswith(before)
    assert f"trouble fleet {wrong}" in shown
    assert run("status")[0] == 1
    assert "1 on demand" in refused("stop", "main", "--yes")
    assert run("mode", "main", "observe", "--yes")[0] == 0


def test_a_fleet_with_an_invalid_document_is_named_and_not_called_unknown(deployed: Stage) -> None:
    wrong = "fleet document night: bounds: is missing"
    deployed.put("night", '{"version": 1}')
    assert f"trouble {wrong}" in words("status")
    assert "ERROR  wrong-document  documents" in answered("doctor")
    for line in (*(f"{it} --fleet night" for it in ("status", "explain", "doctor", "cost")),
                 "mode night observe"):  # fmt: skip
        told = refused(*line.split())
        assert told.startswith(f"error: fleet night has no turns: {wrong}"), line
    for command in ("explain", "observe report", "types"):
        code, out, err = run(*command.split())
        assert (code, err.count(wrong)) == (1, 1)
        assert out.strip()
        assert "no turn runs for it" in err


def test_each_fleet_counts_the_instances_of_its_own_groups(stage_of: StageOf) -> None:
    stage = stage_of(("main", "night"), spot=((0.0, 200),))
    deploy()
    stage.at(stage.cloud.now_s + 60)
    stage.serve("main", 6.5, 6)
    fleets = {f["name"]: f for f in json.loads(run("status", "--json")[1])["fleets"]}
    there = {name: fleets[name]["in_service"] for name in ("main", "night")}
    assert min(there.values()) > 0
    assert fleets["main"]["load"]["workers_expected"] == there["main"]


def test_each_instance(kept: Stage) -> None:
    (main,) = json.loads(answered("status", "--instances", "--json"))["fleets"]
    found = main["instances"]
    assert {one["instance_id"] for one in found} == {i.instance_id for i in kept.cloud.instances()}
    (backfill,) = (one for one in found if one["market"] == "on-demand")
    assert backfill["zone"] == "us-east-1a"
    assert backfill["cost_usd"] == pytest.approx(1.006 * backfill["age_s"] / 3600)
    assert (backfill["counted"], backfill["why"]) == (True, "it serves")
    assert (backfill["workers_live"], backfill["workers_expected"]) == (1, 1)
    text = words("status --instances")
    assert "main: 4 of 4 instances count" in text
    assert "counts: it serves; 1 of 1 workers live" in text


IN_SERVICE = Phase.IN_SERVICE
SILENT = Suspect(instance_id="i-0", kind=Suspicion.SILENT, since=NOON, why="")


@pytest.mark.parametrize(
    ("phase", "healthy", "drains", "judged", "served", "counted", "why"),
    [
        (IN_SERVICE, True, False, "", True, True, "it serves"),
        (IN_SERVICE, True, False, "", False, True,
         "in service; no request finished in the last minute"),
        (IN_SERVICE, True, False, "silent for 300 s", False, False, "silent for 300 s"),
        (IN_SERVICE, True, True, "", True, False, "it drains until 12:02:00"),
        (IN_SERVICE, False, False, "", True, False, "AWS finds it unhealthy and replaces it"),
        (Phase.LAUNCHING, True, False, "", False, False, "it launches"),
        (Phase.LEAVING, True, True, "", True, False, "it leaves its group"),
        # It left its group, and is listed until it is gone.
        (None, True, True, "", True, False, "it left its group and drains until 12:02:00"),
    ],
)  # fmt: skip
def test_why_an_instance_counts_or_not(
    phase: Phase | None,
    healthy: bool,
    drains: bool,
    judged: str,
    served: bool,
    counted: bool,
    why: str,
) -> None:
    pool = "a/g5.xlarge"
    members = (
        (Instance(instance_id="i-0", pool=pool, phase=phase, healthy=healthy),) if phase else ()
    )
    looked = Looked(
        groups={"spot": group("spot", 1, members)},
        records=[held(suspects=(replace(SILENT, why=judged),) if judged else ())],
        digests=logs(["i-0"] if served else [], 5),
        queue="",
    )
    draining = {"i-0": NOON + timedelta(minutes=2)} if drains else {}
    left = Life(instance_id="i-0", pool=pool, option=PurchaseOption.SPOT, since=NOON)
    lives = {} if phase else {"i-0": left}
    (found,) = rows = instances_of(fleet(), looked, lives, draining, None, NOON)
    assert (found.counted, found.why, found.cost_usd) == (counted, why, None)
    assert (found.age_s, found.state == "detached") == ((None, False) if phase else (0.0, True))
    for listed, told in ((rows, f"{counted:d} of 1 instances count"), ((), "no instance")):
        main = FleetInstances(name="main", instances=listed)
        details = Details(stack="s", at=NOON, fleets=(main,), troubles=())
        assert f"main: {told}" in details_text(details)


def test_the_last_changes_and_failures(deployed: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    text = words("status --events")
    assert "12:12:00 availability: backfill [backfill] spot 3 of 4 serving" in text
    assert "FAILED main-spot: Could not launch Spot Instances." in text
    # Those that launched at once are one event.
    ids = ", ".join(f"i-0000000000000000{n}" for n in (4, 3, 2, 1))
    assert f"main-spot: Launching a new EC2 instance: {ids}: an instance was started" in text
    assert "times until" in text
    (main,) = json.loads(answered("status", "--events", "--json"))["fleets"]
    events = main["events"]
    assert [e["at"] for e in events] == sorted(e["at"] for e in events)
    # The number of those that are not listed is shown.
    monkeypatch.setattr("spotkeeper_operator.status.known.EVENTS_AT_MOST", 2)
    (listed,), count = json.loads(answered("status", "--events", "--json"))["fleets"], len(events)
    assert (listed["events"], listed["left_out"]) == (events[-2:], count - 2)
    assert f"main: {count} events in 3.0 h; the last 2 of them" in answered("status", "--events")


@pytest.mark.parametrize("behind_s", [0, 240])
def test_a_clock_that_is_behind_is_reported_and_makes_no_age_negative(
    kept: Stage, monkeypatch: pytest.MonkeyPatch, behind_s: float
) -> None:
    monkeypatch.setattr("spotkeeper.wiring.now", lambda: kept.now - timedelta(seconds=behind_s))
    told = "main: this machine's clock is at least 3 min behind: the ages shown are too small"
    for listed in ("status", "status --instances"):
        code, out, _ = run(*listed.split(), "--json")
        found = json.loads(out)
        assert (told in found["troubles"]) is (behind_s > 0)
        assert code == int(behind_s > 0 or listed == "status")
        ages = re.findall(r'"(?:availability|health|\w*age_s)": ([-\d.]+)', out)
        assert len(ages) > 2
        assert not any(age.startswith("-") for age in ages), ages
        assert (told in words(listed)) is (behind_s > 0)
