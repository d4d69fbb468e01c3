"""status --instances and --events: why an instance counts, and what changed or failed."""

import json
import re
from datetime import timedelta

import boto3
import pytest

from spotkeeper.domain.fleet import Instance, Phase
from spotkeeper.domain.money.ledger import Life
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper_operator.status import (
    Details,
    Event,
    Looked,
    details_text,
    folded,
    instances_of,
)
from tests.builders import NOON, fleet, group, held
from tests.functions.conftest import TABLE, Stage
from tests.operator.command import answered, run
from tests.unit.operator.test_status import logs


def test_each_instance(kept: Stage) -> None:
    (found,) = json.loads(answered("status", "--instances", "--json"))["fleets"].values()
    assert {one["instance_id"] for one in found} == {i.instance_id for i in kept.cloud.instances()}
    (backfill,) = (one for one in found if one["market"] == "on-demand")
    assert backfill["zone"] == "us-east-1a"
    assert backfill["cost_usd"] == pytest.approx(1.006 * backfill["age_s"] / 3600)
    assert (backfill["counted"], backfill["why"]) == (True, "it serves")
    assert (backfill["workers_live"], backfill["workers_expected"]) == (1, 1)
    text = answered("status", "--instances")
    assert "main: 4 of 4 instances count" in text
    assert "counts: it serves; 1 of 1 workers live" in " ".join(text.split())


@pytest.mark.parametrize(
    ("phase", "healthy", "drains", "judged", "served", "counted", "why"),
    [
        (Phase.IN_SERVICE, True, False, "", True, True, "it serves"),
        (Phase.IN_SERVICE, True, False, "", False, True,
         "in service; no request finished in the last minute"),
        (Phase.IN_SERVICE, True, False, "silent for 300 s", False, False, "silent for 300 s"),
        (Phase.IN_SERVICE, True, True, "", True, False, "it drains until 12:02:00"),
        (Phase.IN_SERVICE, False, False, "", True, False,
         "AWS finds it unhealthy and replaces it"),
        (Phase.LAUNCHING, True, False, "", False, False, "it launches"),
        (Phase.LEAVING, True, True, "", True, False, "it leaves its group"),
    ],
)  # fmt: skip
def test_why_an_instance_counts_or_not(
    phase: Phase, healthy: bool, drains: bool, judged: str, served: bool, counted: bool, why: str
) -> None:
    one = Instance(instance_id="i-0", pool="a/g5.xlarge", phase=phase, healthy=healthy)
    turn = held(reason=f"load 1 erlang; i-0 {judged}" if judged else "load 1 erlang")
    looked = Looked(
        groups={"spot": group("spot", 1, (one,))},
        records=[turn],
        digests=logs(["i-0"] if served else [], 5),
        queue="",
    )
    draining = {"i-0": NOON + timedelta(minutes=2)} if drains else {}
    (found,) = instances_of(fleet(), looked, {}, draining, None, NOON)
    assert (found.counted, found.why) == (counted, why)
    assert (found.age_s, found.cost_usd) == (None, None)


def test_an_instance_that_left_its_group_is_listed_until_it_is_gone() -> None:
    life = Life(instance_id="i-9", pool="a/g5.xlarge", option=PurchaseOption.SPOT, since=NOON)
    gone_at = NOON + timedelta(minutes=2)
    looked = Looked(
        groups={"spot": group("spot", 1)}, records=[], digests=logs(["i-9"], 5), queue=""
    )
    rows = instances_of(fleet(), looked, {"i-9": life}, {"i-9": gone_at}, None, NOON)
    (one,) = rows
    assert (one.counted, one.state, one.workers_live) == (False, "detached", 1)
    assert one.why == "it left its group and drains until 12:02:00"
    for listed, told in ((rows, "0 of 1 instances count"), ((), "no instance")):
        found = Details(events=False, stack="s", at=NOON, fleets={"main": listed}, troubles=())
        assert f"main: {told}" in details_text(found)


def test_the_last_changes_and_failures(deployed: Stage) -> None:
    del deployed
    text = " ".join(answered("status", "--events").split())
    assert "12:12:00 availability: backfill [backfill] spot 3 of 4 serving" in text
    assert "FAILED main-spot: Could not launch Spot Instances." in text
    # Those that launched at once are one event.
    ids = ", ".join(f"i-0000000000000000{n}" for n in (4, 3, 2, 1))
    assert f"main-spot: Launching a new EC2 instance: {ids}: an instance was started" in text
    assert "times until" in text
    (events,) = json.loads(answered("status", "--events", "--json"))["fleets"].values()
    assert [e["at"] for e in events] == sorted(e["at"] for e in events)


def test_records_of_another_release_are_missed_and_not_hidden(deployed: Stage) -> None:
    boto3.client("dynamodb").put_item(
        TableName=TABLE,
        Item={
            "pk": {"S": "fleet#main"},
            "sk": {"S": f"decision#{deployed.now.isoformat()}#availability#0"},
            "record": {"S": "{}"},
        },
    )
    for listed in ((), ("--events",)):
        code, out, _ = run("status", *listed)
        assert code == 1
        assert "trouble       main: 1 records of another release left out" in out


def test_of_more_events_than_are_listed_the_number_is_told(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    del deployed
    everything = json.loads(answered("status", "--events", "--json"))["fleets"]["main"]
    count = len(everything)
    monkeypatch.setattr("spotkeeper_operator.status.EVENTS_AT_MOST", 2)
    listed = json.loads(answered("status", "--events", "--json"))
    assert (listed["fleets"]["main"], listed["left_out"]) == (everything[-2:], {"main": count - 2})
    assert f"main: {count} events in 3.0 h; the last 2 of them" in answered("status", "--events")


@pytest.mark.parametrize("behind_s", [0, 240])
def test_a_clock_that_is_behind_is_told_and_makes_no_age_negative(
    kept: Stage, monkeypatch: pytest.MonkeyPatch, behind_s: float
) -> None:
    monkeypatch.setattr("spotkeeper.wiring.now", lambda: kept.now - timedelta(seconds=behind_s))
    told = "main: this machine's clock is at least 3 min behind: the ages shown are too small"
    for listed in ((), ("--instances",)):
        code, out, _ = run("status", *listed, "--json")
        found = json.loads(out)
        assert (told in found["troubles"], code) == (behind_s > 0, int(behind_s > 0 or not listed))
        ages = re.findall(r'"(?:availability|health|\w*age_s)": ([-\d.]+)', out)
        assert len(ages) > 2
        assert all(not age.startswith("-") for age in ages), ages
        assert (told in " ".join(run("status", *listed)[1].split())) is (behind_s > 0)


def test_events_that_repeat_are_counted() -> None:
    def event(minute: int, what: str) -> Event:
        at = NOON + timedelta(minutes=minute)
        return Event(at=at, last=at, what=what, failed=True)

    many = [event(0, "a"), event(1, "b"), event(2, "a"), event(3, "b"), event(4, "c"),
            event(5, "d"), event(6, "e"), event(7, "a")]  # fmt: skip
    assert [(e.what, e.times) for e in folded(many)] == [
        ("a", 2), ("b", 2), ("c", 1), ("d", 1), ("e", 1), ("a", 1),
    ]  # fmt: skip
