"""What tags can make Spotkeeper end: nothing that it did not take out of a group itself."""

import json

import boto3
import pytest

from functions.check_availability.app import handler
from functions.check_health.app import handler as check_health
from functions.handle_interruption.app import handler as handle_interruption
from spotkeeper_lab.cloud.values import Physics
from tests.builders import at
from tests.functions.conftest import NONCE, PATH, TABLE, Stage, StageOf, document
from tests.functions.test_handle_interruption import event


def tag(instance_id: str, nonce: str = NONCE) -> None:
    """Tag as anybody can who holds ec2:CreateTags and has read the tags of a marked instance."""
    old = at(-86_400).isoformat()
    tags = {"spotkeeper:draining": old, "spotkeeper:group": "ocr-spot", "spotkeeper:nonce": nonce}
    boto3.client("ec2").create_tags(
        Resources=[instance_id], Tags=[{"Key": k, "Value": v} for k, v in tags.items()]
    )


def warn(stage: Stage, instance_id: str) -> None:
    told = event("spot_interruption_warning", instance_id)
    stage.call(handle_interruption, told | {"time": stage.now.isoformat()})


def turns(stage: Stage, minutes: int) -> None:
    for _ in range(minutes):
        stage.at(stage.cloud.now_s + 60)
        stage.call(handler)


def runs(stage: Stage, instance_id: str) -> bool:
    return stage.cloud.instance(instance_id).ended_s is None


def forget(fleet: str) -> None:
    key = {"pk": {"S": f"fleet#{fleet}"}, "sk": {"S": "state"}}
    boto3.client("dynamodb").delete_item(TableName=TABLE, Key=key)


def stage_with_others(stage_of: StageOf) -> Stage:
    """A fleet, and two groups beside it that belong to somebody else."""
    stage = stage_of(("ocr", "other"), physics=Physics(marks_needed=True))
    boto3.client("ssm").delete_parameter(Name=f"{PATH}/other")
    stage.cloud.set_desired("other-on-demand", 1)
    stage.at(900)
    return stage


@pytest.mark.parametrize("group", ["other-spot", "other-on-demand", "ocr-on-demand"])
@pytest.mark.parametrize("detached", [False, True])
def test_complete_copies_of_the_tags_end_no_instance_that_was_not_detached_by_a_turn(
    stage_of: StageOf, group: str, detached: bool
) -> None:
    """Whatever is copied, and although the memory is lost again and again."""
    stage = stage_with_others(stage_of)
    if group == "ocr-on-demand":
        stage.cloud.set_desired(group, 1)
        stage.at(1200)
    victim = stage.cloud.group(group).instances[0].instance_id
    if detached:
        stage.cloud.detach(group, [victim])
    tag(victim)
    for _ in range(2):
        turns(stage, 15)
        forget("ocr")
    # One that is in the fleet's own on-demand group may be released as any other.
    assert runs(stage, victim) or (group == "ocr-on-demand" and not detached)
    if detached:
        record = stage.records("ocr")[-1]
        assert "unproven-marks" in record["alarms"]
        assert f"{victim} have Spotkeeper's tags" in record["reason"]


def test_a_copy_of_another_stacks_marks_is_not_even_found(stage_of: StageOf) -> None:
    stage = stage_with_others(stage_of)
    victim = stage.cloud.group("other-spot").instances[0].instance_id
    stage.cloud.detach("other-spot", [victim])
    tag(victim, nonce="another stack's")
    turns(stage, 15)
    assert runs(stage, victim)
    assert not stage.records("ocr")[-1]["alarms"]


@pytest.mark.parametrize("lost", [False, True])
def test_a_detached_instance_left_running_is_ended_also_after_a_lost_memory(
    stage_of: StageOf, lost: bool
) -> None:
    stage = stage_of(("ocr",), physics=Physics(marks_needed=True))
    turns(stage, 5)
    first = stage.cloud.group("ocr-spot").instances[0].instance_id
    warn(stage, first)
    assert not stage.cloud.instance(first).group
    if lost:
        forget("ocr")
    turns(stage, 20)
    assert not runs(stage, first)
    assert "unproven-marks" not in stage.records("ocr")[-1]["alarms"]


@pytest.mark.parametrize("missing", [["nonce"], ["nonce", "group", "draining"]])
def test_what_an_earlier_release_detached_is_reported_once_and_fails_no_turn(
    stage_of: StageOf, missing: list[str]
) -> None:
    """It set no nonce, or no mark, and the role needs both: AWS would refuse to end it."""
    stage = stage_of(("ocr",), physics=Physics(marks_needed=True))
    turns(stage, 5)
    first = stage.cloud.group("ocr-spot").instances[0].instance_id
    warn(stage, first)
    boto3.client("ec2").delete_tags(
        Resources=[first], Tags=[{"Key": f"spotkeeper:{key}"} for key in missing]
    )
    turns(stage, 60)
    assert runs(stage, first)
    records = stage.records("ocr")
    assert [one["outcomes"] for one in records if any(o["error"] for o in one["outcomes"])] == []
    assert "unproven-marks" in records[-1]["alarms"]
    assert first in records[-1]["reason"]
    boto3.client("ec2").delete_tags(Resources=[first], Tags=[{"Key": "spotkeeper:group"}])
    turns(stage, 65)
    assert "unproven-marks" not in stage.records("ocr")[-1]["alarms"]


def test_marks_are_searched_for_after_a_lost_memory_and_not_again(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",))
    turns(stage, 1)
    assert stage.counted("ec2")["DescribeInstances"] == 1
    for _ in range(65):
        turns(stage, 1)
        assert stage.counted("ec2")["DescribeInstances"] == 0
    forget("ocr")
    turns(stage, 1)
    assert stage.counted("ec2")["DescribeInstances"] == 1


def test_two_stacks_on_the_same_groups_are_refused(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stack keeps the groups. The other requests nothing of them, and may observe."""
    stage = stage_of(("ocr",))
    turns(stage, 1)
    assert stage.counted("autoscaling")["CreateOrUpdateTags"] == 2
    turns(stage, 1)
    assert stage.counted("autoscaling")["CreateOrUpdateTags"] == 0
    monkeypatch.setenv("STACK_NONCE", "another")
    stage.restart()
    stage.cloud.set_desired("ocr-spot", 0)
    for handle in (handler, check_health):
        with pytest.raises(ExceptionGroup, match=f"belongs to the stack with the id {NONCE}"):
            stage.call(handle)
        assert {
            call for call in stage.counted("autoscaling") if not call.startswith("Desc")
        } == set()
    stage.put("ocr", json.dumps(document("ocr", mode="observe")))
    stage.restart()
    stage.call(handler)
    monkeypatch.setenv("STACK_NONCE", NONCE)
    stage.put("ocr", json.dumps(document("ocr")))
    stage.restart()
    turns(stage, 1)


def test_after_a_false_warning_and_a_lost_memory_no_instance_stays_idle(stage_of: StageOf) -> None:
    """The mark inside of the group stays although nobody remembers it: its worker refuses work."""
    stage = stage_of(("ocr",), desired=1)
    stage.put("ocr", json.dumps(document("ocr", availability={"early_replacement": False})))
    turns(stage, 5)
    (first,) = (i.instance_id for i in stage.cloud.group("ocr-spot").instances)
    warn(stage, first)
    assert stage.cloud.instance(first).draining
    assert stage.cloud.group("ocr-on-demand").desired == 1
    turns(stage, 10)
    forget("ocr")
    turns(stage, 1)
    assert not stage.cloud.instance(first).draining
    assert stage.cloud.group("ocr-on-demand").desired == 1
