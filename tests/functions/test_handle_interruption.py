"""handle_interruption as Lambda calls it: events, strangers, repetition."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from functions.handle_interruption.app import handler
from spotkeeper.ports import Throttled
from tests.builders import at, evidence
from tests.functions.conftest import NONCE, Metrics, Stage, StageOf, document, slow_down

EVENTS = Path(__file__).parents[2] / "events"
STRANGER = "i-0838c23d20458e79c"
CHANGING = ("SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup", "DetachInstances",
            "CreateTags", "TerminateInstances")  # fmt: skip


def event(name: str, instance_id: str = STRANGER) -> dict[str, Any]:
    """An event of events/ about another instance, and about our spot group, sent a second ago."""
    text = (EVENTS / f"{name}.json").read_text()
    parsed: dict[str, Any] = json.loads(text.replace(STRANGER, instance_id))
    if "AutoScalingGroupName" in parsed["detail"]:
        parsed["detail"]["AutoScalingGroupName"] = "ocr-spot"
    return parsed | {"time": at(599).isoformat()}


def changes(stage: Stage) -> dict[str, int]:
    return {name: n for name, n in stage.counted("autoscaling", "ec2").items() if name in CHANGING}


def first_spot(stage: Stage) -> str:
    return stage.cloud.group("ocr-spot").instances[0].instance_id


@pytest.fixture
def stage(stage_of: StageOf) -> Stage:
    """Two whole fleets whose zones are no longer rebalanced."""
    made = stage_of()
    for group in made.cloud.groups():
        made.cloud.suspend(group, "AZRebalance")
    return made


@pytest.mark.parametrize(
    "name", ["spot_interruption_warning", "rebalance_recommendation", "instance_state_change",
             "health_scheduled_change"],
)  # fmt: skip
def test_an_event_about_a_strangers_instance_does_nothing(stage: Stage, name: str) -> None:
    assert stage.call(handler, event(name)) == {}
    assert stage.counted("autoscaling", "ec2") == {"DescribeAutoScalingInstances": 1}
    # Once in a process, the documents in force.
    assert stage.counted("dynamodb") == {"GetItem": 1}


TURNS = {
    "launch_successful", "launch_unsuccessful", "terminate_successful", "state_change",
    "refresh_started",
}  # fmt: skip
MARKS = {"interruption_warning", "scheduled_change"}


@pytest.mark.parametrize("row", evidence("events"), ids=lambda row: row["event"][:90])
def test_an_event_of_aws_does_what_it_means(
    stage: Stage, row: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the lab, whose first two spot instances stand for those that the row names."""
    ids = [it.instance_id for it in stage.cloud.group("ocr-spot").instances[:2]]
    named = dict(zip((STRANGER, "i-0c1d2e3f4a5b6c7d8"), ids, strict=True))
    text, expected = row["event"], row["instances"]
    for example, mine in named.items():
        text, expected = text.replace(example, mine), expected.replace(example, mine)
    answer = stage.call(handler, event("rebalance_recommendation") | json.loads(text))
    names_none = row["kind"] in MARKS and not expected
    assert ("EventsUnusable" in capsys.readouterr().out) is names_none
    acts = row["kind"] in TURNS | MARKS and not names_none
    assert answer.keys() == ({"ocr"} if acts else set())
    assert stage.records("search") == []
    marked = stage.memory("ocr", "availability")["at_risk"] if acts else {}
    left = {*ids} - {it.instance_id for it in stage.cloud.group("ocr-spot").instances}
    assert {*marked, *left} == ({*expected.split()} if row["kind"] in MARKS else set())


def test_a_warned_instance_is_backfilled_replaced_and_drained_in_one_turn(
    stage: Stage, metrics: Metrics
) -> None:
    warned = first_spot(stage)
    stage.cloud.reclaim([warned], 720)
    answer = stage.call(handler, event("spot_interruption_warning", warned))
    assert "1 at risk" in answer["ocr"]
    assert changes(stage) == {"SetDesiredCapacity": 1, "CreateTags": 1, "DetachInstances": 1}
    assert stage.cloud.group("ocr-on-demand").desired == 1
    assert warned not in {i.instance_id for i in stage.cloud.group("ocr-spot").instances}
    emitted = metrics("ocr")
    assert (emitted["Interruptions"], emitted["Backfilled"]) == (1, 1)
    # The mark says when the instance is gone, two minutes after the warning, and whose it is.
    read = boto3.client("ec2").describe_instances(InstanceIds=[warned])["Reservations"]
    tags = {tag["Key"]: tag["Value"] for tag in read[0]["Instances"][0]["Tags"]}
    assert datetime.fromisoformat(tags["spotkeeper:draining"]) == at(599 + 120)
    assert (tags["spotkeeper:group"], tags["spotkeeper:nonce"]) == ("ocr-spot", NONCE)


def test_a_rebalance_recommendation_is_ignored_unless_the_fleet_says_otherwise(
    stage: Stage,
) -> None:
    told = event("rebalance_recommendation", first_spot(stage))
    assert stage.call(handler, told) == {}
    assert changes(stage) == {}
    strict = document("ocr", availability={"rebalance": "at_risk"})
    stage.put("ocr", json.dumps(strict))
    stage.restart()
    assert "1 at risk" in stage.call(handler, told)["ocr"]


def test_a_scheduled_change_is_remembered_and_acted_upon_when_it_is_near(stage: Stage) -> None:
    told = event("health_scheduled_change", first_spot(stage))
    due = at(6 * 3600)
    told["detail"]["startTime"] = due.isoformat()
    stage.call(handler, told)
    assert changes(stage) == {}
    remembered = stage.memory("ocr", "availability")["at_risk"]
    assert remembered == {
        first_spot(stage): (due - timedelta(minutes=10)).isoformat().replace("+00:00", "Z")
    }
    stage.at(6 * 3600 - 10 * 60)
    stage.call(handler, event("launch_successful"))
    assert changes(stage)["DetachInstances"] == 1


@pytest.mark.parametrize(
    "foreign",
    [
        {**event("spot_interruption_warning"), "account": "210987654321"},
        {**event("spot_interruption_warning"), "detail-type": "EC2 Instance Promoted"},
        json.loads((EVENTS / "schedule.json").read_text()),
    ],
    ids=["other account", "unknown kind", "schedule"],
)
def test_a_foreign_event_is_ignored_without_a_call(stage: Stage, foreign: object) -> None:
    assert stage.call(handler, foreign) == {}
    assert stage.calls == []


def test_a_known_event_that_names_nothing_is_counted_and_logged(
    stage: Stage, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    told = event("health_scheduled_change")
    told["detail"]["affectedEntities"] = [{"entityValue": "vol-049df61146c4d7901"}]
    assert stage.call(handler, told) == {}
    assert stage.calls == []
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["EventsUnusable"] for line in lines if "EventsUnusable" in line] == [[1.0]]
    [named] = [line for line in caplog.records if "names no instance" in line.message]
    assert vars(named)["detail"] == told["detail"]


def test_a_look_up_that_is_throttled_loses_no_warning(stage: Stage) -> None:
    """No other fleet is turned; where the groups cannot be read either, Lambda delivers again."""
    told = event("spot_interruption_warning", first_spot(stage))
    stage.during |= dict.fromkeys(
        ("DescribeAutoScalingInstances", "DescribeAutoScalingGroups"), slow_down
    )
    with pytest.raises(Throttled):
        stage.call(handler, told)
    assert stage.records("ocr") == []
    stage.during["DescribeAutoScalingInstances"] = slow_down
    answer = stage.call(handler, told)
    assert answer.keys() == {"ocr"}
    assert "1 at risk" in answer["ocr"]
