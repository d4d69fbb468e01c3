"""An instance refresh of the simulated cloud: what AWS documents, and what it refuses."""

from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from botocore.exceptions import ClientError

from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import Client
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.refresh import Preferences, RefreshStatus
from spotkeeper_lab.cloud.values import DRAINS, FAILED, CloudError, Physics, two_groups
from spotkeeper_lab.traces.market import market_of

POOL, SPOT = "us-east-1a/g5.xlarge", "spot"
BOTH_100 = Preferences(min_healthy=100, max_healthy=100)


def make(desired: int = 10) -> Cloud:
    spot, on_demand = two_groups(SPOT, "od", pools=(POOL,), maximum=20, desired=desired)
    market = market_of("refresh", 864_000.0, {POOL: [(0.0, 20)]})
    physics = Physics(cold_start_s=60.0, begins_warm=True)
    cloud = Cloud(market, [replace(spot, template="7"), on_demand], physics)
    cloud.advance(1.0)
    return cloud


def watch(cloud: Cloud, until_s: float) -> list[tuple[int, int, int]]:
    """How many were there, served, and had the new version, each five seconds."""
    seen = []
    while cloud.now_s < until_s:
        cloud.advance(cloud.now_s + 5.0)
        there = cloud.group(SPOT).instances
        new = sum(one.template == "8" for one in there)
        seen.append((len(there), sum(one.state == "InService" for one in there), new))
    return seen


@pytest.mark.parametrize(
    ("preferences", "most", "fewest", "at_once"),
    [
        (Preferences(), 10, 9, 1),
        (Preferences(min_healthy=100), 10, 9, 1),
        (Preferences(min_healthy=80), 10, 8, 2),
        (BOTH_100, 11, 10, 1),
        (Preferences(min_healthy=100, max_healthy=130), 13, 10, 3),
        (Preferences(min_healthy=90, max_healthy=110), 11, 9, 2),
    ],
)
def test_a_refresh_keeps_the_bounds_of_its_preferences(
    preferences: Preferences, most: int, fewest: int, at_once: int
) -> None:
    cloud = make()
    cloud.start_refresh(SPOT, preferences, "8")
    seen = watch(cloud, 3600.0)
    assert (max(there for there, *_ in seen), min(serving for _, serving, _ in seen)) == (
        most, fewest,
    )  # fmt: skip
    assert max(b[2] - a[2] for a, b in pairwise(seen)) == at_once
    assert seen[-1] == (10, 10, 10)
    assert cloud.refreshes(SPOT)[0].status is RefreshStatus.SUCCESSFUL
    assert cloud.group(SPOT).template == "8"


def test_a_checkpoint_waits_and_what_the_group_launches_meanwhile_has_the_new_version() -> None:
    cloud = make()
    wish = replace(BOTH_100, checkpoints=(10, 100), delay_s=600.0, warmup_s=30.0)
    cloud.start_refresh(SPOT, wish, "8")
    # It is pending first.
    assert [new for *_, new in watch(cloud, 600.0)].index(1) == 2
    lost = next(one for one in cloud.group(SPOT).instances if one.template == "7")
    cloud.kill(lost.instance_id)
    cloud.advance(650.0)
    assert [one.template for one in cloud.group(SPOT).instances].count("8") == 2
    cloud.cancel_refresh(SPOT)
    cloud.kill(next(one.instance_id for one in cloud.group(SPOT).instances))
    assert cloud.group(SPOT).instances[-1].template == "7"


def test_the_next_refresh_may_begin_as_soon_as_one_is_cancelled() -> None:
    cloud = make()
    cloud.start_refresh(SPOT, replace(BOTH_100, checkpoints=(10, 100)), "8")
    watch(cloud, 600.0)
    cloud.cancel_refresh(SPOT)
    cloud.start_refresh(SPOT, Preferences(min_healthy=100, max_healthy=130), "8")
    assert min(serving for _, serving, _ in watch(cloud, 700.0)) == 10


def test_a_refresh_that_is_cancelled_waits_until_what_it_ends_has_drained() -> None:
    cloud = make()
    cloud.put_hook(SPOT, DRAINS)
    cloud.start_refresh(SPOT, Preferences(), "8")
    cloud.advance(20.0)
    cloud.cancel_refresh(SPOT)
    # Its successor serves after 60 s; the hook holds it for 30.
    seen = [(cloud.advance(at_s), cloud.refreshes(SPOT)[0].status)[1] for at_s in (40.0, 120.0)]
    assert seen == [RefreshStatus.CANCELLING, RefreshStatus.CANCELLED]


def test_a_refresh_that_is_cancelled_completes_its_launch_and_the_oldest_version_is_ended() -> None:
    cloud = make()
    cloud.start_refresh(SPOT, replace(BOTH_100, checkpoints=(10, 100)), "8")
    cloud.advance(20.0)
    cloud.cancel_refresh(SPOT)
    assert cloud.refreshes(SPOT)[0].status is RefreshStatus.CANCELLING
    lost = next(one for one in cloud.group(SPOT).instances if one.template == "7")
    cloud.kill(lost.instance_id)
    seen = watch(cloud, 600.0)
    assert {new for *_, new in seen} == {1}
    assert (seen[-1], cloud.refreshes(SPOT)[0].status) == ((10, 10, 1), RefreshStatus.CANCELLED)


@pytest.mark.parametrize("how", ["alarm", "call", "stuck"])
def test_a_rollback_replaces_what_was_replaced(how: str) -> None:
    cloud = make()
    if how == "stuck":
        cloud.break_template(SPOT, "8")
        cloud.fail_launches(SPOT, 5.0, 5000.0, "no capacity")
    wish = replace(BOTH_100, checkpoints=(20, 100), auto_rollback=True, alarms=("worse",))
    cloud.start_refresh(SPOT, wish, "8")
    cloud.advance(900.0 if how != "stuck" else 4000.0)
    if how == "alarm":
        cloud.ringing.add("worse")
    elif how == "call":
        cloud.roll_refresh_back(SPOT)
    seen = watch(cloud, 9000.0)
    assert min(serving for _, serving, _ in seen) == 10
    assert seen[-1] == (10, 10, 0)
    assert cloud.refreshes(SPOT)[0].status is RefreshStatus.ROLLED_BACK
    assert cloud.group(SPOT).template == "7"


@pytest.mark.parametrize("waits", [True, False])
def test_a_refresh_waits_an_hour_for_standby_unless_it_ignores_it(waits: bool) -> None:
    cloud = make(2)
    cloud.enter_standby(SPOT, [cloud.group(SPOT).instances[0].instance_id], smaller=True)
    cloud.start_refresh(SPOT, replace(BOTH_100, waits_for_standby=waits), "8")
    cloud.advance(6000.0)
    ended = RefreshStatus.FAILED if waits else RefreshStatus.SUCCESSFUL
    assert cloud.refreshes(SPOT)[0].status is ended


def test_an_empty_group_takes_the_new_version_at_once() -> None:
    cloud = make(0)
    cloud.start_refresh(SPOT, replace(BOTH_100, checkpoints=(50, 100)), "8")
    cloud.advance(20.0)
    assert cloud.group(SPOT).template == "8"


def test_the_api_refuses_what_aws_refuses_and_describes_what_it_does() -> None:
    cloud = make()
    time = VirtualTime(datetime(2026, 1, 1, tzinfo=UTC))
    client: Any = Client("autoscaling", Answers(cloud, time).auto_scaling())
    group = {"AutoScalingGroupName": SPOT}
    for name, code in (
        ("cancel_instance_refresh", "ActiveInstanceRefreshNotFound"),
        ("rollback_instance_refresh", "ActiveInstanceRefreshNotFound"),
    ):
        with pytest.raises(ClientError, match=code):
            getattr(client, name)(**group)
    for wrong in (
        {"MaxHealthyPercentage": 110},
        {"MinHealthyPercentage": 50, "MaxHealthyPercentage": 160},
        {"CheckpointDelay": 60},
        {"CheckpointPercentages": [50, 20]},
        {"AutoRollback": True},
    ):
        with pytest.raises(ClientError, match="ValidationError"):
            client.start_instance_refresh(**group, Preferences=wrong)
    client.start_instance_refresh(**group)
    with pytest.raises(ClientError, match="InstanceRefreshInProgress"):
        client.start_instance_refresh(**group)
    with pytest.raises(ClientError, match="IrreversibleInstanceRefresh"):
        client.rollback_instance_refresh(**group)
    (shown,) = client.describe_instance_refreshes(**group)["InstanceRefreshes"]
    assert (shown["Status"], shown["InstancesToUpdate"]) == ("Pending", 10)


def test_nothing_is_launched_of_a_version_that_lacks_something_until_it_is_there() -> None:
    cloud, gone = make(), {"8"}
    cloud.lacks = lambda _, version: "The image id does not exist." if version in gone else ""
    with pytest.raises(CloudError, match="does not exist"):
        cloud.start_refresh(SPOT, BOTH_100, "8")
    gone.add("7")
    cloud.kill(cloud.group(SPOT).instances[0].instance_id)
    watch(cloud, 300.0)
    failed = [one.message for one in cloud.activities(SPOT, 0.0) if one.status_code == FAILED]
    assert {*failed} == {"The image id does not exist. Launching EC2 instance failed."}
    gone.clear()
    assert watch(cloud, 900.0)[-1][1] == 10
