"""A warning may be lost in a burst of them: a few more of the pool are taken for warned."""

from dataclasses import replace

import pytest

from spotkeeper.domain.availability.memory import WarningBurst
from spotkeeper.domain.availability.risk import lost_warnings
from spotkeeper.domain.fleet import Group
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests.builders import at, fleet, group, ids, instances, turn

POOL, NONE = ids("a", 20), group("on-demand", 0)
WARM = fleet(availability=AvailabilityPolicy(on_demand_warm=True))


def spot(serving: int) -> Group:
    """A spot group in one pool."""
    return group("spot", serving, instances(POOL[:serving]))


@pytest.mark.parametrize(
    ("warned", "others", "allowance"), [(0, 9, 0), (1, 9, 1), (8, 9, 2), (8, 1, 1)]
)
def test_the_allowance_is_a_share_of_the_warned_and_no_more_than_the_others(
    warned: int, others: int, allowance: int
) -> None:
    gone, spot_group = dict.fromkeys(POOL[:warned], at(0)), spot(warned + others)
    bursts = turn(0, spot_group, NONE, of=WARM, warned=gone).memory.risk.warning_bursts
    assert lost_warnings(bursts, spot_group, gone.keys(), 0.15) == allowance


def test_a_burst_is_over_after_the_notice() -> None:
    warned = turn(0, spot(4), NONE, of=WARM, warned={POOL[0]: at(-20)}).memory
    bursts = (WarningBurst(since=at(-20), pool="us-east-1a/g4dn.xlarge", warned=1),)
    for seconds, left in ((0, bursts), (129, bursts), (130, ())):
        later = turn(seconds, spot(4), NONE, warned, WARM)
        assert later.memory.risk.warning_bursts == left


def test_a_cold_on_demand_group_is_not_asked_for_an_allowance() -> None:
    before = turn(0, spot(6), group("on-demand", 0))
    risk = {POOL[0]: at(60)}
    warned = turn(60, spot(6), group("on-demand", 0), before.memory, warned=risk)
    assert warned.on_demand_desired == 1


def test_another_pool_needs_no_allowance() -> None:
    bursts = (WarningBurst(since=at(0), pool="us-east-1f/g4dn.xlarge", warned=5),)
    assert lost_warnings(bursts, spot(4), frozenset(), 0.15) == 0


def test_a_warned_instance_brings_one_more_and_it_goes_after_the_burst() -> None:
    warm = WARM
    before = turn(0, spot(6), group("on-demand", 0), of=warm)
    risk = {POOL[0]: at(60)}
    warned = turn(60, spot(6), group("on-demand", 0), before.memory, warm, warned=risk)
    assert warned.on_demand_desired == 2
    back = group("on-demand", 2, instances(ids("b", 2)))
    healed = replace(spot(6), instances=instances(POOL[1:7]))
    held = turn(200, healed, back, warned.memory, warm)
    assert held.on_demand_desired - len(held.ends) == 1
    after = turn(260, healed, back, held.memory, warm)
    assert after.on_demand_desired - len(after.ends) == 0
