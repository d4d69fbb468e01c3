"""The simulated cloud behaves as AWS does: its market, its groups, its verbs, its stricter side."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudError,
    CloudEvent,
    EventKind,
    GroupSpec,
    Physics,
    Purchase,
    two_groups,
)
from spotkeeper_lab.fakes import TIME
from spotkeeper_lab.traces.market import generate, market_of

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"
DAY_S = 86_400.0
type Steps = Sequence[tuple[float, int]]
PLENTY, NOTHING = ((0.0, 9),), ((0.0, 0),)


def make(
    a: Steps = PLENTY,
    b: Steps = NOTHING,
    *,
    desired: int = 2,
    minimum: int = 0,
    physics: Physics | None = None,
) -> Cloud:
    """A spot group of `desired` over two pools beside an empty on-demand group."""
    groups = two_groups("spot", "od", pools=(A, B), maximum=10, desired=desired, minimum=minimum)
    return Cloud(market_of("test", 3 * DAY_S, {A: a, B: b}), groups, physics or Physics())


def ids(cloud: Cloud) -> list[str]:
    return [instance.instance_id for instance in cloud.group("spot").instances]


def states(cloud: Cloud) -> list[str]:
    return [instance.state for instance in cloud.group("spot").instances]


def statuses(cloud: Cloud) -> list[tuple[str, str]]:
    """What the spot requests of instances say."""
    shown: Any = Answers(cloud, TIME).ec2()["describe_spot_instance_requests"]({})
    return [(r["InstanceId"], r["Status"]["Code"]) for r in shown["SpotInstanceRequests"]]


def kinds(events: list[CloudEvent], wanted: EventKind) -> list[tuple[float, str]]:
    return [(e.at_s, e.instance_id) for e in events if e.kind is wanted]


# --- the market -----------------------------------------------------------------------------------


def test_a_drop_takes_the_newest_and_warns_them_the_notice_before() -> None:
    cloud = make([(0.0, 5), (1000.0, 1)], desired=3)
    first, second, third = ids(cloud)
    events = cloud.advance(1000)
    assert kinds(events, EventKind.WARNING) == [(880.0, third), (880.0, second)]
    assert kinds(events, EventKind.TERMINATED) == [(1000.0, third), (1000.0, second)]
    assert ids(cloud) == [first]
    assert sum(view.lost for view in cloud.history()) == 2


def test_a_lost_notice_leaves_no_trace() -> None:
    cloud = make([(0.0, 5), (1000.0, 0)], desired=3, physics=Physics(notice_lost=1.0))
    assert not kinds(cloud.advance(999), EventKind.WARNING)
    assert statuses(cloud) == []
    cloud.advance(1000)
    assert {code for _, code in statuses(cloud)} == {"instance-terminated-no-capacity"}


def test_a_warned_instance_shows_in_its_spot_request() -> None:
    cloud = make([(0.0, 1), (1000.0, 0)], desired=1)
    cloud.advance(880)
    assert statuses(cloud) == [(ids(cloud)[0], "instance-terminated-no-capacity")]


def test_an_announced_drop_lets_nothing_launch_in_its_pool() -> None:
    cloud = make([(0.0, 5), (1000.0, 2)], desired=1)
    cloud.advance(890)
    cloud.set_desired("spot", 5)
    assert len(ids(cloud)) == 2
    assert cloud.failures("spot", 890.0)[0].message.startswith("Could not launch Spot Instances.")


def test_a_drought_is_retried_every_retry_and_ends_on_the_grid() -> None:
    cloud = make([(0.0, 0), (1007.0, 1)], desired=1)
    assert cloud.next_s() == 0.0
    assert len(kinds(cloud.advance(1009), EventKind.LAUNCH_UNSUCCESSFUL)) == 2
    assert [f.start_s for f in cloud.failures("spot", 950.0)] == [1005.0, 990.0, 975.0, 960.0]
    assert cloud.next_s() == 1020.0
    cloud.advance(1010)
    assert ids(cloud) == []
    cloud.advance(1020)
    assert len(ids(cloud)) == 1
    assert cloud.failures("spot", 1010.0) == []


def test_events_are_delivered_late_and_next_s_knows_when() -> None:
    cloud = make(desired=1, physics=Physics(event_delay_s=30))
    (fulfilled,) = cloud.advance(0)
    assert 0 < fulfilled.deliver_s <= 30
    assert cloud.next_s() == fulfilled.deliver_s
    assert cloud.advance(fulfilled.deliver_s) == []
    assert cloud.next_s() == 120.0


def test_events_arrive_twice_or_never() -> None:
    assert len(make(b=PLENTY, physics=Physics(event_twice=1.0)).advance(0)) == 4
    assert make(physics=Physics(event_lost=1.0)).advance(0) == []


@given(seed=st.integers(0, 10_000), notice=st.sampled_from([0.0, 45.0, 120.0]))
def test_held_never_exceeds_the_market_and_time_is_in_order(seed: int, notice: float) -> None:
    pools = (A, B)
    market = generate(seed, pools, hours=2, level=4)
    spec = GroupSpec(
        name="spot", purchase=Purchase.SPOT, minimum=0, maximum=9, desired=6, pools=pools
    )
    physics = Physics(notice_s=notice, notice_lost=0.2, event_delay_s=20)
    one, again = Cloud(market, [spec], physics, seed), Cloud(market, [spec], physics, seed)
    seen: list[CloudEvent] = []
    while (at_s := one.next_s()) is not None and at_s < market.end_s:
        seen += one.advance(at_s)
        held = Counter(instance.pool for instance in one.instances())
        assert all(held[pool] <= market.capacity(pool, at_s) for pool in pools)
    assert [e.at_s for e in seen] == sorted(e.at_s for e in seen)
    assert [e for e in again.advance(one.now_s) if e.at_s <= one.now_s][: len(seen)] == seen


# --- its verbs ------------------------------------------------------------------------------------


def test_the_verbs_keep_aws_bounds() -> None:
    cloud = make(minimum=2)
    with pytest.raises(CloudError, match="not in InService"):
        cloud.detach("spot", ids(cloud))
    cloud.advance(600)
    with pytest.raises(CloudError, match="above max value 10"):
        cloud.set_desired("spot", 11)
    with pytest.raises(CloudError, match="below min value 2"):
        cloud.set_desired("spot", 1)
    with pytest.raises(CloudError, match="equals minSize"):
        cloud.end(ids(cloud)[0])
    with pytest.raises(CloudError, match="No managed instance"):
        cloud.end("i-00000000000000fff")
    with pytest.raises(CloudError, match="not found"):
        cloud.group("gone")


def test_a_mark_is_needed_to_terminate_and_what_ended_has_none() -> None:
    cloud = make(physics=Physics(marks_needed=True))
    cloud.advance(600)
    first, second = ids(cloud)
    with pytest.raises(CloudError, match="not authorized"):
        cloud.terminate([first])
    cloud.tag([first], {}, 700.0)
    with pytest.raises(CloudError, match="not authorized"):
        cloud.terminate([first])
    cloud.tag([first], {"spotkeeper:group": "spot", "spotkeeper:nonce": "nonce"})
    cloud.terminate([first])
    with pytest.raises(CloudError, match="not authorized"):
        cloud.terminate([first])
    cloud.tag([second], {}, 700.0)
    cloud.untag([second], [], unmark=True)
    assert not cloud.instance(second).draining


def test_aws_forgets_what_ended_an_hour_ago() -> None:
    cloud = make()
    cloud.advance(600)
    first, _ = ids(cloud)
    cloud.terminate([first])
    cloud.advance(3000)
    cloud.tag([first], {}, 0.0)
    cloud.advance(4201)
    with pytest.raises(CloudError, match="does not exist"):
        cloud.tag([first], {}, 0.0)


# --- what it does by itself -----------------------------------------------------------------------


def test_a_dead_instance_is_shown_in_service_while_ec2_reports_it_gone() -> None:
    cloud = make(physics=Physics(ghost_s=100.0))
    cloud.advance(600)
    first, _ = ids(cloud)
    cloud.reclaim([first], 600)
    assert [(e.kind, e.group) for e in cloud.advance(600)] == [(EventKind.TERMINATED, "")]
    assert first in ids(cloud)
    assert first not in {i.instance_id for i in cloud.instances()}
    events = cloud.advance(700)
    assert first not in ids(cloud)
    assert (EventKind.TERMINATED, "spot") in [(e.kind, e.group) for e in events]


def test_ending_a_dead_instance_by_name_lowers_desired() -> None:
    cloud = make(physics=Physics(ghost_s=100.0))
    cloud.advance(600)
    first, second = ids(cloud)
    cloud.reclaim([first], 600)
    cloud.end(first)
    assert (ids(cloud), cloud.group("spot").desired) == ([second], 1)


def test_a_bad_image_goes_into_service_and_never_serves() -> None:
    cloud = make(desired=0)
    cloud.break_image("spot", 0.0, 100.0)
    cloud.set_desired("spot", 1)
    cloud.advance(200)
    cloud.set_desired("spot", 2)
    cloud.advance(400)
    assert states(cloud) == ["InService", "InService"]
    assert [i.serves_s for i in cloud.group("spot").instances] == [None, 320.0]


def test_awss_scale_in_keeps_zones_even_and_ends_any_instance() -> None:
    cloud = make(b=PLENTY, desired=8, physics=Physics(aws_scale_in=True))
    cloud.advance(600)
    before = ids(cloud)
    cloud.set_desired("spot", 4)
    left = cloud.group("spot").instances
    assert Counter(i.pool for i in left) == {A: 2, B: 2}
    assert [i.instance_id for i in left] != before[:4]


def test_an_instance_that_died_while_it_started_is_a_cancelled_launch() -> None:
    cloud = make(desired=1, physics=Physics(ghost_s=50.0))
    cloud.reclaim(ids(cloud), 0.0)
    cloud.advance(60)
    (cancelled,) = cloud.failures("spot", 0.0)
    assert cancelled.message.startswith("Instance became unhealthy while waiting")


def test_aws_suspends_a_group_that_launched_nothing_for_a_day_until_it_is_resumed() -> None:
    dry = ((0.0, 0), (DAY_S + 60.0, 5))
    cloud = make(dry, desired=1, physics=Physics(suspend_after_s=DAY_S))
    cloud.advance(DAY_S - 1)
    assert cloud.group("spot").suspensions == {}
    cloud.advance(DAY_S + 600)
    assert cloud.group("spot").suspensions == {"Launch": "Administrative suspension"}
    assert ids(cloud) == []
    cloud.resume("spot", "Launch")
    assert len(ids(cloud)) == 1
    cloud.suspend("spot", "AZRebalance")
    assert cloud.group("spot").suspensions == {"AZRebalance": "User suspended"}


def test_retries_back_off_and_a_launch_ends_that() -> None:
    cloud = make([(0.0, 0), (1000.0, 5)], desired=1, physics=Physics(retry_longest_s=120.0))
    cloud.advance(999)
    times = sorted({f.start_s for f in cloud.failures("spot", 0.0)})
    assert [b - a for a, b in pairwise(times)][:5] == [15, 30, 60, 120, 120]
    cloud.advance(1120)
    assert len(ids(cloud)) == 1


def test_by_a_maintenance_policy_what_is_replaced_stays_until_its_successor_serves() -> None:
    spot, on_demand = two_groups("spot", "od", pools=(A,), maximum=10, desired=2)
    market = market_of("test", DAY_S, {A: PLENTY})
    physics = Physics(cold_start_s=60.0, ghost_s=10.0)
    cloud = Cloud(market, [replace(spot, launch_first=True), on_demand], physics)
    cloud.advance(300)
    sick, dead = ids(cloud)
    cloud.set_unhealthy(sick)
    cloud.kill(dead)
    cloud.advance(330)
    there = {view.instance_id: view.healthy for view in cloud.group("spot").instances}
    assert (len(there), there[sick], there[dead]) == (4, False, False)
    cloud.advance(420)
    assert not {sick, dead} & {*ids(cloud)}
    assert states(cloud) == ["InService", "InService"]
    # What the group no longer needs makes room at once.
    cloud.set_unhealthy(ids(cloud)[0])
    cloud.set_desired("spot", 1)
    assert len([view for view in cloud.group("spot").instances if view.healthy]) == 1


def test_an_instance_in_standby_runs_on_and_comes_back_as_one_more() -> None:
    for smaller, launched in ((True, 1), (False, 2)):
        cloud = make(desired=2)
        cloud.advance(300)
        moved, stays = ids(cloud)
        cloud.enter_standby("spot", [moved], smaller=smaller)
        cloud.advance(600)
        serving = [v for v in cloud.group("spot").instances if v.state == "InService"]
        assert (len(serving), stays in {v.instance_id for v in serving}) == (launched, True)
        assert moved in {view.instance_id for view in cloud.instances()}
        cloud.exit_standby("spot", [moved])
        assert cloud.group("spot").desired == launched + 1
        with pytest.raises(CloudError, match="not in Standby"):
            cloud.exit_standby("spot", [moved])


def test_during_a_zonal_shift_the_group_launches_in_the_other_zones() -> None:
    cloud = make(PLENTY, PLENTY, desired=0)
    for zone, pool in (("us-east-1a", B), ("us-east-1b", A)):
        cloud.shift("spot", zone)
        cloud.set_desired("spot", 3)
        assert {view.pool for view in cloud.group("spot").instances} == {pool}
        cloud.set_desired("spot", 0)
