"""The optional policy of elevated risk: spares, and longer backfill, after unannounced losses."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.availability.elevated import (
    heavy_losses,
    settle_s,
)
from spotkeeper.domain.availability.memory import AvailabilityMemory, Loss
from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Group, Instance
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests import builders
from tests.builders import Turn, at, fleet, group, instances
from tests.unit.availability.wholes import BACK, SPOT, whole

NOTHING = group("on-demand", 0)
PROVEN_S = 28_800
POLICY = AvailabilityPolicy(elevated_risk_s=1800)


def turn(
    seconds: float,
    spot: Group,
    on_demand: Group,
    memory: AvailabilityMemory | None = None,
    policy: AvailabilityPolicy = POLICY,
    **more: object,
) -> Turn:
    """A turn of a fleet that has the policy."""
    return builders.turn(seconds, spot, on_demand, memory, fleet(availability=policy), **more)


def test_without_the_policy_nothing_is_held_and_spares_of_before_are_released() -> None:
    _, memory = whole()
    spot = group("spot", 4, instances(SPOT[:3]))
    lost = turn(0, spot, NOTHING, memory, AvailabilityPolicy())
    assert (lost.spot_desired, lost.on_demand_desired) == (4, 1)
    held = turn(120, group("spot", 5, instances(SPOT[:5])), NOTHING, lost_one())
    off = turn(
        180, group("spot", 5, instances(SPOT[:5])), NOTHING, held.memory, AvailabilityPolicy()
    )
    assert (off.spot.target, len(off.spot_ends)) == (4, 1)


def spread(ids: Iterable[str]) -> tuple[Instance, ...]:
    """Instances in service, each in a pool of its own."""
    return tuple(replace(i, pool=f"{i.instance_id}/g5.xlarge") for i in instances(ids))


def lost_one() -> AvailabilityMemory:
    """A memory in which one of four spot instances has just been lost without a warning."""
    _, memory = whole()
    return turn(0, group("spot", 4, instances(SPOT[:3])), group("on-demand", 0), memory).memory


def test_after_a_loss_without_warning_spot_is_asked_for_a_spare_and_then_on_demand() -> None:
    _, memory = whole()
    three = instances(SPOT[:3])
    lost = turn(0, group("spot", 4, three), NOTHING, memory)
    assert (lost.spot_desired, lost.on_demand_desired) == (5, 1)
    refused = turn(60, group("spot", 5, three), group("on-demand", 1), lost.memory)
    assert (refused.spot.target, refused.spot_desired, refused.on_demand_desired) == (4, 5, 2)


def test_a_spare_that_shares_a_pool_with_another_is_given_back_after_the_elevated_risk() -> None:
    spot = group("spot", 5, instances(SPOT[:5]))
    held = turn(120, spot, NOTHING, lost_one())
    assert (held.spot.target, held.spot_ends) == (4, ())
    over = turn(1800, spot, NOTHING, held.memory)
    assert (over.spot_desired, over.spot_ends) == (5, (SPOT[0],))
    given = turn(1860, group("spot", 4, instances(SPOT[1:5])), NOTHING, over.memory)
    assert (given.spot.target, given.spot_desired, given.action) == (4, 4, Action.HOLD)


def test_a_spare_that_covers_the_loss_of_any_pool_stays_until_the_need_is_proven() -> None:
    spot = group("spot", 5, spread(SPOT[:5]))
    held = turn(120, spot, NOTHING, lost_one())
    kept = turn(PROVEN_S, spot, NOTHING, held.memory)
    assert (kept.spot.target, kept.spot_desired, kept.spot_ends) == (4, 5, ())
    proven = turn(PROVEN_S + 120, spot, NOTHING, kept.memory)
    assert proven.spot_ends == (SPOT[0],)


def test_a_spare_is_backfilled_while_risk_is_elevated_only() -> None:
    spot = group("spot", 5, spread(SPOT[:4]))
    in_it = turn(180, spot, NOTHING, lost_one())
    after_it = turn(1860, spot, NOTHING, in_it.memory)
    assert (in_it.shortfall, after_it.shortfall) == (1, 0)


@pytest.mark.parametrize(("notice_s", "spot_desired"), [(120, 4), (0, 5)])
def test_a_fleet_that_is_never_warned_starts_with_a_spare(notice_s: int, spot_desired: int) -> None:
    policy = replace(POLICY, notice_s=notice_s)
    first = turn(0, group("spot", 4, instances(SPOT[:4])), NOTHING, policy=policy)
    assert first.spot_desired == spot_desired


@pytest.mark.parametrize(
    ("count", "need", "spares", "heavy"),
    [(1, 3, 1, 0), (2, 3, 1, 1), (1, 2, 1, 0), (1, 1, 0, 1), (7, 16, 1, 0), (8, 16, 1, 1)],
)
def test_a_loss_of_half_the_need_that_no_spare_covers_is_heavy(
    count: int, need: int, spares: int, heavy: int
) -> None:
    assert heavy_losses((Loss(at=at(0), count=count),), need, spares) == heavy


@pytest.mark.parametrize(
    ("heavy", "elevated", "settles_s"),
    [(0, False, 30), (0, True, 600), (1, False, 600), (2, True, 1200), (99, True, 7200)],
)
def test_heavy_losses_lengthen_the_settling_up_to_their_window(
    heavy: int, elevated: bool, settles_s: int
) -> None:
    assert settle_s(POLICY, heavy, elevated=elevated) == settles_s
    assert settle_s(AvailabilityPolicy(), heavy, elevated=elevated) == 30


@given(st.integers(90, 86_400), st.integers(0, 99), st.booleans())
def test_one_length_stretches_all_that_elevated_risk_does(
    elevated_risk_s: int, heavy: int, elevated: bool
) -> None:
    short, twice = (
        AvailabilityPolicy(elevated_risk_s=each) for each in (elevated_risk_s, 2 * elevated_risk_s)
    )
    longer = settle_s(twice, heavy, elevated=elevated)
    assert (
        settle_s(short, heavy, elevated=elevated)
        <= longer
        <= settle_s(twice, heavy + 1, elevated=True)
    )
    assert longer <= 4 * twice.elevated_risk_s


def test_a_hung_worker_that_is_replaced_makes_no_elevated_risk() -> None:
    _, memory = whole()
    three = group("spot", 4, instances(SPOT[:3], SPOT[4:5]))
    gone = turn(0, three, group("on-demand", 0), memory, silent=frozenset(SPOT[3:4]))
    assert (gone.spot_desired, gone.memory.risk.last_surprise) == (4, None)


@pytest.mark.parametrize(("let_go", "losses"), [(SPOT[3:4], 0), ((), 1)])
def test_what_was_asked_to_go_makes_no_elevated_risk(let_go: Sequence[str], losses: int) -> None:
    """An instance refresh, or somebody who ended it in the group."""
    _, memory = whole()
    three = group("spot", 4, instances(SPOT[:3], (), SPOT[3:4]))
    gone = turn(0, three, group("on-demand", 0), memory, let_go=frozenset(let_go))
    assert sum(loss.count for loss in gone.memory.risk.losses) == losses
    assert gone.on_demand_desired == 1


def test_backfill_stays_longer_in_elevated_risk_unless_on_demand_is_warm() -> None:
    spot = group("spot", 5, instances(SPOT[:5]))
    on_demand = group("on-demand", 2, instances(BACK[:2]))
    served = turn(120, spot, on_demand, lost_one())
    still = turn(420, spot, on_demand, served.memory)
    assert turn(719, spot, on_demand, still.memory).action is Action.HOLD
    assert turn(720, spot, on_demand, still.memory).action is Action.RELEASE
    warm = replace(POLICY, on_demand_warm=True)
    assert turn(150, spot, on_demand, served.memory, warm).action is Action.RELEASE
