"""The simulated cloud behaves as AWS does: its market, its groups, its verbs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from spotkeeper_lab.traces.market import Market, generate, market_of

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"


QUIET = Physics(cold_start_s=120, notice_s=120)


def market(a: list[tuple[float, int]], b: list[tuple[float, int]] | None = None) -> Market:
    """Two pools for three hours."""
    return market_of("test", 10_800.0, {A: a, B: b or [(0.0, 0)]})


def cloud(
    given_market: Market, desired: int, physics: Physics = QUIET, *, minimum: int = 0
) -> Cloud:
    """A spot group of `desired` beside an empty on-demand group."""
    groups = two_groups("spot", "od", pools=(A, B), maximum=10, desired=desired, minimum=minimum)
    return Cloud(given_market, groups, physics)


def ids(one: Cloud, group: str) -> list[str]:
    return [instance.instance_id for instance in one.group(group).instances]


def kinds(events: list[CloudEvent], *wanted: EventKind) -> list[tuple[EventKind, float, str]]:
    return [(e.kind, e.at_s, e.instance_id) for e in events if e.kind in wanted]


def test_a_drop_takes_the_newest_and_warns_them_the_notice_before() -> None:
    one = cloud(market([(0.0, 5), (1000.0, 1)]), 3)
    first, *rest = ids(one, "spot")
    events = one.advance(1000)
    assert kinds(events, EventKind.WARNING) == [
        (EventKind.WARNING, 880.0, rest[1]),
        (EventKind.WARNING, 880.0, rest[0]),
    ]
    assert kinds(events, EventKind.TERMINATED) == [
        (EventKind.TERMINATED, 1000.0, rest[1]),
        (EventKind.TERMINATED, 1000.0, rest[0]),
    ]
    assert ids(one, "spot") == [first]
    assert one.bill().losses == 2


def test_a_lost_notice_leaves_no_trace() -> None:
    one = cloud(market([(0.0, 5), (1000.0, 0)]), 3, Physics(notice_lost=1.0))
    assert not kinds(one.advance(999), EventKind.WARNING)
    assert one.spot_requests() == ()
    one.advance(1000)
    assert {r.status_code for r in one.spot_requests()} == {"instance-terminated-no-capacity"}


def test_a_warned_instance_shows_in_its_spot_request() -> None:
    one = cloud(market([(0.0, 1), (1000.0, 0)]), 1)
    one.advance(880)
    (request,) = one.spot_requests()
    assert request.status_code == "marked-for-termination"
    assert request.instance_id == ids(one, "spot")[0]
    assert request.updated_s == 880.0


def test_an_announced_drop_lets_nothing_launch_in_its_pool() -> None:
    one = cloud(market([(0.0, 5), (1000.0, 2)]), 1)
    one.advance(890)
    one.set_desired("spot", 5)
    assert len(ids(one, "spot")) == 2
    assert one.failures("spot", 890.0)[0].message.startswith("Could not launch Spot Instances.")


def test_a_drought_is_retried_every_retry_and_ends_on_the_grid() -> None:
    one = cloud(market([(0.0, 0), (1007.0, 1)]), 1)
    assert one.next_s() == 0.0
    assert len(kinds(one.advance(1009), EventKind.LAUNCH_UNSUCCESSFUL)) == 2
    assert [f.start_s for f in one.failures("spot", 950.0)] == [1005.0, 990.0, 975.0, 960.0]
    assert one.next_s() == 1020.0
    one.advance(1010)
    assert ids(one, "spot") == []
    one.advance(1020)
    assert len(ids(one, "spot")) == 1
    assert one.failures("spot", 1010.0) == []


def test_a_warm_pool_serves_sooner_until_it_is_used_up() -> None:
    physics = Physics(cold_start_s=300, warm_start_s=60, warm_pool=2)
    one = cloud(market([(0.0, 5)]), 0, physics)
    one.set_desired("od", 3)
    one.advance(60)
    assert one.ready(Purchase.ON_DEMAND) == 2
    one.advance(300)
    assert one.ready(Purchase.ON_DEMAND) == 3
    one.set_desired("od", 0)
    one.advance(360)
    one.set_desired("od", 2)
    one.advance(420)
    assert one.ready(Purchase.ON_DEMAND) == 2


def test_events_are_delivered_late_and_next_s_knows_when() -> None:
    one = cloud(market([(0.0, 5)]), 1, Physics(event_delay_s=30))
    (fulfilled,) = one.advance(0)
    assert 0 < fulfilled.deliver_s <= 30
    assert one.next_s() == fulfilled.deliver_s
    assert one.advance(fulfilled.deliver_s) == []
    assert one.next_s() == 120.0


@given(seed=st.integers(0, 10_000), notice=st.sampled_from([0.0, 45.0, 120.0]))
def test_held_never_exceeds_the_market_and_time_is_in_order(seed: int, notice: float) -> None:
    pools = (A, B)
    one_market = generate(seed, pools, hours=2, level=4)
    spec = GroupSpec(
        name="spot", purchase=Purchase.SPOT, minimum=0, maximum=9, desired=6, pools=pools
    )
    physics = Physics(notice_s=notice, notice_lost=0.2, event_delay_s=20)
    one, again = Cloud(one_market, [spec], physics, seed), Cloud(one_market, [spec], physics, seed)
    seen: list[CloudEvent] = []
    while (at_s := one.next_s()) is not None and at_s < one_market.end_s:
        seen += one.advance(at_s)
        for pool in pools:
            held = sum(i.pool == pool for i in one.instances())
            assert held <= one_market.capacity(pool, at_s)
    assert [e.at_s for e in seen] == sorted(e.at_s for e in seen)
    assert [e for e in again.advance(one.now_s) if e.at_s <= one.now_s][: len(seen)] == seen


def test_the_verbs_keep_aws_bounds() -> None:
    one = cloud(market([(0.0, 5)]), 2, minimum=2)
    with pytest.raises(CloudError, match="above max value 10"):
        one.set_desired("spot", 11)
    with pytest.raises(CloudError, match="below min value 2"):
        one.set_desired("spot", 1)
    with pytest.raises(CloudError, match="equals minSize"):
        one.end(ids(one, "spot")[0])
    with pytest.raises(CloudError, match="No managed instance"):
        one.end("i-00000000000000fff")
    with pytest.raises(CloudError, match="not found"):
        one.group("gone")


def test_an_instance_that_has_not_come_cannot_be_detached() -> None:
    one = cloud(market([(0.0, 5)]), 1)
    with pytest.raises(CloudError, match="not in InService"):
        one.detach("spot", ids(one, "spot"))
