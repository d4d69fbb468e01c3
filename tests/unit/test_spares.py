"""Spares: held in a spell of losses without warning, and given back after it."""

from spotkeeper.domain.availability_memory import AvailabilityMemory
from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import AvailabilityPolicy
from tests.builders import fleet, group, instances, turn
from tests.unit.test_availability import BACK, SPOT, whole


def lost_one() -> AvailabilityMemory:
    """A memory in which one of four spot instances has just been lost without a warning."""
    _, memory = whole()
    return turn(0, group("spot", 4, instances(SPOT[:3])), group("on-demand", 0), memory).memory


def test_a_loss_without_warning_is_backfilled_with_a_spare() -> None:
    _, memory = whole()
    lost = turn(0, group("spot", 4, instances(SPOT[:3])), group("on-demand", 0), memory)
    assert (lost.spot_desired, lost.on_demand_desired) == (5, 2)
    spared = turn(60, group("spot", 5, instances(SPOT[:3])), group("on-demand", 2), lost.memory)
    assert (spared.spot.target, spared.spot_desired) == (4, 5)


def test_a_spare_is_given_back_after_the_spell() -> None:
    spot = group("spot", 5, instances(SPOT[:5]))
    held = turn(120, spot, group("on-demand", 0), lost_one())
    assert (held.spot.target, held.spot_ends) == (4, ())
    over = turn(3600, spot, group("on-demand", 0), held.memory)
    assert (over.spot_desired, over.spot_ends) == (5, (SPOT[0],))
    given = turn(3660, group("spot", 4, instances(SPOT[1:5])), group("on-demand", 0), over.memory)
    assert (given.spot.target, given.spot_desired, given.action) == (4, 4, Action.HOLD)


def test_a_desired_capacity_that_somebody_else_set_is_all_need() -> None:
    spot = group("spot", 9, instances(SPOT[:5]))
    assert turn(120, spot, group("on-demand", 0), lost_one()).spot.target == 9


def test_a_hung_worker_that_is_replaced_makes_no_spell() -> None:
    _, memory = whole()
    three = group("spot", 4, instances(SPOT[:3], SPOT[4:5]))
    gone = turn(0, three, group("on-demand", 0), memory, silent=frozenset(SPOT[3:4]))
    assert (gone.spot_desired, gone.memory.last_surprise) == (4, None)


def test_backfill_stays_longer_in_a_spell_unless_on_demand_is_warm() -> None:
    spot = group("spot", 5, instances(SPOT[:5]))
    on_demand = group("on-demand", 2, instances(BACK[:2]))
    served = turn(120, spot, on_demand, lost_one())
    assert turn(1019, spot, on_demand, served.memory).action is Action.HOLD
    assert turn(1020, spot, on_demand, served.memory).action is Action.RELEASE
    warm = fleet(availability=AvailabilityPolicy(on_demand_warm=True))
    assert turn(150, spot, on_demand, served.memory, warm).action is Action.RELEASE
