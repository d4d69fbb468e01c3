"""What `Physics` makes stricter, as AWS is."""

from collections import Counter
from itertools import pairwise

import pytest

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError, EventKind, GroupSpec, Physics, Purchase
from spotkeeper_lab.traces.market import market_of

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"
DAY_S = 86_400.0


def cloud(
    physics: Physics, desired: int = 2, a: tuple[tuple[float, int], ...] = ((0.0, 9),)
) -> Cloud:
    """A spot group of `desired` over two pools, the second as large as the first."""
    spec = GroupSpec(
        name="spot",
        purchase=Purchase.SPOT,
        minimum=0,
        maximum=10,
        desired=desired,
        pools=(A, B),
    )
    return Cloud(market_of("strict", 3 * DAY_S, {A: a, B: a}), [spec], physics)


def states(one: Cloud) -> list[str]:
    """How the group's instances are shown."""
    return [instance.state for instance in one.group("spot").instances]


def ids(one: Cloud) -> list[str]:
    """The group's instances."""
    return [instance.instance_id for instance in one.group("spot").instances]


def test_a_ghost_is_shown_in_service_while_ec2_tells_that_it_is_gone() -> None:
    one = cloud(Physics(ghost_s=100.0))
    one.advance(600)
    first, _ = ids(one)
    one.reclaim([first], 600)
    assert [(e.kind, e.group) for e in one.advance(600)] == [(EventKind.TERMINATED, "")]
    assert first in ids(one)
    assert first not in {i.instance_id for i in one.instances()}
    events = one.advance(700)
    assert first not in ids(one)
    assert (EventKind.TERMINATED, "spot") in [(e.kind, e.group) for e in events]


def test_ending_a_ghost_by_name_lowers_desired() -> None:
    one = cloud(Physics(ghost_s=100.0))
    one.advance(600)
    first, second = ids(one)
    one.reclaim([first], 600)
    one.end(first)
    assert ids(one) == [second]
    assert one.group("spot").desired == 1


def test_a_bad_image_comes_into_service_and_never_serves() -> None:
    one = cloud(Physics(), desired=0)
    one.break_image("spot", 0.0, 100.0)
    one.set_desired("spot", 1)
    one.advance(200)
    one.set_desired("spot", 2)
    one.advance(400)
    assert states(one) == ["InService", "InService"]
    assert [i.serves_s for i in one.group("spot").instances] == [None, 320.0]


def test_the_launch_hook_holds_an_instance_until_its_worker_is_ready() -> None:
    one = cloud(Physics(cold_start_s=200.0, launch_hook_s=300.0), desired=1)
    one.advance(5)
    assert states(one) == ["Pending"]
    one.advance(11)
    assert states(one) == ["Pending:Wait"]
    one.advance(200)
    assert states(one) == ["InService"]


@pytest.mark.parametrize("continues", [True, False])
def test_at_its_time_out_the_hook_continues_or_abandons(continues: bool) -> None:
    physics = Physics(launch_hook_s=300.0, hook_continues=continues)
    one = cloud(physics, desired=0)
    one.break_image("spot", 0.0, 100.0)
    one.set_desired("spot", 1)
    (bad,) = ids(one)
    one.advance(311)
    if continues:
        assert states(one) == ["InService"]
    else:
        (cancelled,) = one.failures("spot", 0.0)
        assert cancelled.status_code == "Cancelled"
        assert "was abandoned: Heartbeat Timeout" in cancelled.message
        assert cancelled.start_s == 0.0
        assert bad not in ids(one)


def test_a_scale_in_of_aws_keeps_the_zones_even_and_takes_anybody() -> None:
    one = cloud(Physics(aws_scale_in=True), desired=8)
    one.advance(600)
    before = ids(one)
    one.set_desired("spot", 4)
    left = one.group("spot").instances
    assert Counter(i.pool for i in left) == {A: 2, B: 2}
    assert [i.instance_id for i in left] != before[:4]


def test_an_instance_that_died_while_it_started_is_a_cancelled_launch() -> None:
    one = cloud(Physics(ghost_s=50.0), desired=1)
    one.reclaim(ids(one), 0.0)
    one.advance(60)
    (cancelled,) = one.failures("spot", 0.0)
    assert cancelled.message.startswith("Instance became unhealthy while waiting")


def test_an_end_is_an_activity_with_its_cause() -> None:
    one = cloud(Physics(), desired=4)
    one.advance(600)
    taken, asked, sick, _ = ids(one)
    one.reclaim([taken], 0.0)
    one.advance(60)
    one.set_unhealthy(sick)
    one.end(asked)
    one.advance(60)
    ends = [a for a in one.activities("spot", 600.0) if a.description.startswith("Terminating")]
    causes = {end.instance_id: end.cause.partition("in response to ")[2] for end in ends}
    assert causes == {
        taken: "an EC2 health check indicating it has been terminated or stopped.",
        sick: "a user health-check.",
        asked: "a difference between desired and actual capacity, shrinking the capacity "
        "from 4 to 3.",
    }


def test_aws_suspends_a_group_that_launched_nothing_for_a_day_until_it_is_resumed() -> None:
    physics = Physics(suspend_after_s=DAY_S)
    one = cloud(physics, desired=1, a=((0.0, 0), (DAY_S + 60.0, 5)))
    one.advance(DAY_S - 1)
    assert one.group("spot").suspensions == {}
    one.advance(DAY_S + 600)
    assert one.group("spot").suspensions == {"Launch": "Administrative suspension"}
    assert ids(one) == []
    one.resume("spot", "Launch")
    assert len(ids(one)) == 1


def test_a_suspension_of_a_user_says_so() -> None:
    one = cloud(Physics())
    one.suspend("spot", "AZRebalance")
    assert one.group("spot").suspensions == {"AZRebalance": "User suspended"}


def test_retries_back_off_and_a_launch_ends_that() -> None:
    physics = Physics(retry_longest_s=120.0)
    one = cloud(physics, desired=1, a=((0.0, 0), (1000.0, 5)))
    one.advance(999)
    times = sorted({f.start_s for f in one.failures("spot", 0.0)})
    assert [b - a for a, b in pairwise(times)][:5] == [15, 30, 60, 120, 120]
    one.advance(1120)
    assert len(ids(one)) == 1


def test_events_come_twice_or_never() -> None:
    twice = cloud(Physics(event_twice=1.0)).advance(0)
    assert len(twice) == 4
    assert cloud(Physics(event_lost=1.0)).advance(0) == []


def test_aws_forgets_what_ended_an_hour_ago() -> None:
    one = cloud(Physics())
    one.advance(600)
    first, _ = ids(one)
    one.terminate([first])
    one.advance(3000)
    one.drain([first], 0.0)
    one.advance(4201)
    with pytest.raises(CloudError, match="does not exist"):
        one.drain([first], 0.0)


def test_a_mark_is_needed_to_terminate_and_what_ended_has_none() -> None:
    one = cloud(Physics(marks_needed=True))
    one.advance(600)
    first, second = ids(one)
    with pytest.raises(CloudError, match="not authorized"):
        one.terminate([first])
    one.drain([first], 700.0)
    with pytest.raises(CloudError, match="not authorized"):
        one.terminate([first])
    one.tag([first], {"spotkeeper:group": "spot", "spotkeeper:nonce": "nonce"})
    one.terminate([first])
    with pytest.raises(CloudError, match="not authorized"):
        one.terminate([first])
    one.drain([second], 700.0)
    one.undrain([second])
    assert not one.instance(second).draining
