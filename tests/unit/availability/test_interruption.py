"""Who is warned stops counting, drains, is replaced and, where AWS leaves it running, ended."""

from spotkeeper.domain.availability.actions import Unmark
from spotkeeper.domain.decision import Action
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from tests.builders import at, fleet, group, instances, turn
from tests.unit.availability.wholes import BACK, SPOT, STEADY


def test_a_warned_instance_stops_counting_and_is_replaced_and_drained() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    decision = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    assert (decision.on_demand_desired, decision.detach, decision.drain) == (
        1,
        (SPOT[0],),
        (SPOT[0],),
    )


def test_a_repeated_warning_changes_nothing() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    keep = fleet(availability=AvailabilityPolicy(early_replacement=False))
    first = turn(0, spot, group("on-demand", 0), STEADY, keep, warned={SPOT[0]: at(0)})
    filled = group("on-demand", 1, instances((), BACK[:1]))
    again = turn(20, spot, filled, first.memory, keep, warned={SPOT[0]: at(20)})
    assert (again.action, again.drain, again.detach) == (Action.HOLD, (), ())
    assert again.memory.at_risk == {SPOT[0]: at(0)}


def test_a_foreign_warning_is_ignored() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    decision = turn(0, spot, group("on-demand", 0), STEADY, warned={"i-0f0f0f0f0f0f0f0f0": at(0)})
    assert (decision.action, decision.memory.at_risk) == (Action.HOLD, {})


def test_an_instance_that_survives_its_warning_counts_again() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    on_demand = group("on-demand", 1, instances(BACK[:1]))
    later = turn(900, spot, on_demand, warned.memory)
    assert [unmark.instance_id for unmark in later.of(Unmark)] == [SPOT[0]]
    assert (later.spot.serving, later.memory.at_risk) == (3, {})
    again = turn(910, spot, on_demand, later.memory)
    assert (again.spot.serving, again.of(Unmark)) == (4, [])


def test_a_scheduled_change_counts_only_once_it_is_near() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    early = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(3600)})
    assert early.spot.serving == 4
    near = turn(3600, spot, group("on-demand", 0), early.memory)
    assert (near.spot.serving, near.drain) == (3, (SPOT[0],))


def test_a_detached_instance_that_aws_leaves_running_is_ended() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    after = group("spot", 4, instances(SPOT[1:4], SPOT[4:5]))
    waiting = turn(300, after, group("on-demand", 1), warned.memory)
    assert waiting.terminate == ()
    running = frozenset(SPOT[:1])
    over = turn(600, after, group("on-demand", 1), waiting.memory, running=running)
    assert over.terminate == (SPOT[0],)
    assert over.memory.detached == {}


def test_a_detached_instance_that_aws_took_is_looked_for_and_not_ended_again() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    after = group("spot", 4, instances(SPOT[1:4], SPOT[4:5]))
    unknown = turn(600, after, group("on-demand", 1), warned.memory)
    assert (unknown.terminate, set(unknown.memory.detached)) == ((), {SPOT[0]})
    ended = turn(660, after, group("on-demand", 1), unknown.memory, running=frozenset())
    assert (ended.terminate, ended.memory.detached) == ((), {})


def test_an_instance_whose_detaching_failed_is_not_ended() -> None:
    spot = group("spot", 4, instances(SPOT[:4]))
    warned = turn(0, spot, group("on-demand", 0), STEADY, warned={SPOT[0]: at(0)})
    survived = turn(960, spot, group("on-demand", 1, instances(BACK[:1])), warned.memory)
    assert (survived.terminate, survived.memory.detached) == ((), {})
