"""A fleet that is met, or met again: nothing on demand goes before it is known to be needless."""

import pytest

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Group
from spotkeeper.domain.settings.sizing import SizingPolicy
from tests.builders import at, fleet, group, ids, instances, turn

SPOT, BACK = ids("a", 12), ids("b", 12)
NONE = group("on-demand", 0)
TEN = group("on-demand", 10, instances(BACK[:10]))
STEADY = AvailabilityMemory(need=4, spot_seen=4, seen_at=at(-60), in_service=4)


def spot(*serving: str) -> Group:
    return group("spot", 4, instances(serving))


def test_a_running_on_demand_fleet_is_adopted_and_not_ended() -> None:
    memory = AvailabilityMemory()
    for minute in range(30):
        held = turn(60 * minute, group("spot", 0), TEN, memory)
        assert (held.action, held.rule, held.ends) == (Action.HOLD, "adopting", ())
        assert held.alarms == (("adopting",) if minute >= 10 else ())
        memory = held.memory


def test_what_was_adopted_goes_once_spot_has_served_as_many() -> None:
    whole = group("spot", 10, instances(SPOT[:10]))
    first = turn(0, whole, TEN)
    assert turn(20, whole, TEN, first.memory).ends == ()
    assert len(turn(30, whole, TEN, first.memory).ends) == 10


@pytest.mark.parametrize(
    ("sizing", "logged", "seconds", "ended"),
    [
        (True, True, 3600, 0),  # As many serve, and who knows whether that is enough?
        (True, False, 599, 0),
        (True, False, 600, 4),  # Nobody sends search logs: an operator sizes.
        (False, True, 60, 4),
    ],
)
def test_while_the_load_is_not_known_nothing_goes_that_it_may_need(
    sizing: bool, logged: bool, seconds: float, ended: int
) -> None:
    """Four on spot and four on demand may serve a load of eight."""
    four = group("on-demand", 4, instances(BACK[:4]))
    of, memory = fleet(sizing=SizingPolicy(enabled=sizing)), AvailabilityMemory()
    ends: list[int] = []
    for second in (0, *range(60, 540, 60), seconds):
        met = turn(second, spot(*SPOT[:4]), four, memory, of, load_known=False, logged=logged)
        memory, ends = met.memory, [*ends, len(met.ends)]
    assert ends[-1] == ended


def test_the_load_may_name_the_need_of_what_was_adopted() -> None:
    four = group("spot", 4, instances(SPOT[:4]))
    first = turn(0, four, TEN)
    sized = CapacityRequest(at=at(30), need=4, spare=0)
    unknown = turn(60, four, TEN, first.memory, sized=sized, load_known=False)
    assert unknown.rule == "adopting"
    assert len(turn(60, four, TEN, first.memory, sized=sized).ends) == 10


def test_a_fleet_whose_memory_was_lost_is_adopted_again() -> None:
    short = turn(0, spot(*SPOT[:2]), group("on-demand", 2, instances(BACK[:2])), STEADY)
    assert short.memory.adoption is None
    lost = turn(60, spot(*SPOT[:4]), group("on-demand", 6, instances(BACK[:6])))
    assert (lost.rule, lost.ends) == ("adopting", ())


@pytest.mark.parametrize(("spot_name", "back_name"), [("other", "on-demand"), ("spot", "other")])
def test_other_groups_in_the_document_are_met_for_the_first_time(
    spot_name: str, back_name: str
) -> None:
    whole = turn(0, spot(*SPOT[:4]), NONE, STEADY)
    still = turn(3600, spot(*SPOT[:4]), NONE, whole.memory)
    ten = group(back_name, 10, instances(BACK[:10]))
    moved = turn(3660, group(spot_name, 0), ten, still.memory)
    assert (moved.rule, moved.ends) == ("adopting", ())
    assert moved.reason.endswith("its previous groups spot and on-demand are left as they are")
    assert moved.memory.risk.losses == ()
    assert "left as they are" not in turn(3720, group(spot_name, 0), ten, moved.memory).reason


def test_who_was_taken_out_of_a_group_is_ended_although_the_fleet_has_another() -> None:
    warned = turn(0, spot(*SPOT[:4]), NONE, STEADY, warned={SPOT[0]: at(0)})
    assert set(warned.memory.detached) == {SPOT[0]}
    moved = turn(60, group("other", 0), NONE, warned.memory)
    over = turn(660, group("other", 0), NONE, moved.memory, running=frozenset(SPOT[:1]))
    assert over.terminate == (SPOT[0],)


@pytest.mark.parametrize(("paused_s", "rule"), [(120, "release"), (7200, "adopting")])
def test_a_fleet_that_nobody_turned_for_long_is_adopted_again(paused_s: int, rule: str) -> None:
    """Paused or observed meanwhile, others may have moved its groups."""
    whole = turn(0, spot(*SPOT[:4]), NONE, STEADY)
    still = turn(60, spot(*SPOT[:4]), NONE, whole.memory)
    resumed = turn(60 + paused_s, group("spot", 0), TEN, still.memory)
    assert resumed.rule == rule


def test_what_is_adopted_and_needed_is_nothing_to_adopt() -> None:
    """After a pause on-demand may stand in as before: nobody has to raise or lower anything."""
    memory = AvailabilityMemory()
    three = group("on-demand", 3, instances(BACK[:3]))
    for minute in range(30):
        held = turn(60 * minute, spot(SPOT[0]), three, memory)
        assert (held.action, held.alarms) == (Action.HOLD, ())
        memory = held.memory


def test_who_is_met_after_a_pause_inherits_no_age() -> None:
    """Two were launching when Spotkeeper was paused; two others have been launched just now."""
    on_demand = group("on-demand", 0)
    before = turn(0, group("spot", 6, instances(SPOT[:4], SPOT[4:6])), on_demand)
    after = turn(3600, group("spot", 6, instances(SPOT[:4], SPOT[6:8])), on_demand, before.memory)
    assert (after.on_demand_desired, after.alarms) == (0, ())
