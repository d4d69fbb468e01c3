from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.endpoint.cloud.account import instance_tags, member_of
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.wire import VirtualTime

POOL = "us-east-1a/g5.xlarge"
START = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def world_of(clock: Callable[[], float], *, capacity: int = 2, delay_s: float = 0.0) -> World:
    group = GroupSpec(
        name="spot", purchase=Purchase.SPOT, minimum=0, maximum=9, desired=2, pools=(POOL,)
    )
    physics = Physics(cold_start_s=20.0, notice_s=120.0, event_delay_s=delay_s)
    return World([group], {POOL: capacity}, physics, VirtualTime(START), clock)


def names(world: World) -> list[object]:
    return [event["detail-type"] for event in world.due()]


def test_a_look_sees_what_time_has_done(clock: Clock) -> None:
    world = world_of(clock)
    clock.now_s = 20.0
    with world.now() as cloud:
        assert {instance.state for instance in cloud.group("spot").instances} == {"InService"}


def test_events_are_told_once_and_when_they_are_due(clock: Clock) -> None:
    world = world_of(clock)
    assert names(world) == ["EC2 Spot Instance Request Fulfillment"] * 2
    assert names(world) == []
    clock.now_s = 20.0
    assert names(world) == ["EC2 Instance Launch Successful"] * 2


def test_an_event_on_its_way_is_not_told_yet(clock: Clock) -> None:
    world = world_of(clock, delay_s=5.0)
    assert names(world) == []
    clock.now_s = 5.0
    assert names(world) == ["EC2 Spot Instance Request Fulfillment"] * 2


def test_less_capacity_is_warned_of_at_once_and_taken_after_the_notice(clock: Clock) -> None:
    world = world_of(clock)
    clock.now_s = 30.0
    world.due()
    world.set_capacity([POOL], 1, in_s=120.0)
    assert names(world) == ["EC2 Spot Instance Interruption Warning"]
    clock.now_s = 149.0
    with world.now() as cloud:
        assert len(cloud.group("spot").instances) == 2
    clock.now_s = 150.0
    with world.now() as cloud:
        assert len(cloud.group("spot").instances) == 1


def test_less_capacity_now_is_a_loss_without_warning(clock: Clock) -> None:
    world = world_of(clock)
    clock.now_s = 30.0
    world.due()
    world.set_capacity([POOL], 0)
    assert "EC2 Spot Instance Interruption Warning" not in names(world)
    with world.now() as cloud:
        assert cloud.group("spot").instances == ()


def test_more_capacity_is_used(clock: Clock) -> None:
    world = world_of(clock, capacity=1)
    world.set_capacity([POOL], 2, in_s=0.0)
    clock.now_s = 15.0
    with world.now() as cloud:
        assert len(cloud.group("spot").instances) == 2


def test_policies_see_an_instance_by_its_group_and_its_mark(clock: Clock) -> None:
    world = world_of(clock)
    with world.now() as cloud:
        (one, _) = cloud.group("spot").instances
    assert instance_tags(world, one.instance_id) == {"aws:autoscaling:groupName": "spot"}
    assert member_of(world, one.instance_id) == "spot"
    clock.now_s = 30.0
    with world.now() as cloud:
        cloud.drain([one.instance_id], 150.0)
        cloud.tag([one.instance_id], {"spotkeeper:group": "spot"})
        cloud.detach("spot", [one.instance_id])
    assert instance_tags(world, one.instance_id) == {
        "spotkeeper:draining": "2026-11-20T12:02:30+00:00",
        "spotkeeper:group": "spot",
    }
    assert member_of(world, one.instance_id) == ""


def test_a_stranger_has_neither_tags_nor_a_group(clock: Clock) -> None:
    world = world_of(clock)
    assert instance_tags(world, "i-0abc1234def567890") == {}
    assert member_of(world, "i-0abc1234def567890") == ""
