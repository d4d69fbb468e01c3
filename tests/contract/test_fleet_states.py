"""What the states port promises."""

import pytest

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import AvailabilityFigures, Controller
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.ports import AtRiskNote, FleetError, FleetStates
from tests.builders import NOON, at, held
from tests.contract.conftest import taken

MEMORY = AvailabilityMemory(retry_at=NOON, backoff_s=60)


def note(*instance_ids: str) -> AtRiskNote:
    return AtRiskNote(instance_ids=instance_ids, at=NOON)


def is_busy(states: FleetStates, after_s: float, left: AtRiskNote | None = None) -> bool:
    """Whether another turn holds the lease."""
    return states.acquire("ocr", Controller.AVAILABILITY, at(after_s), left) is None


def test_what_is_kept_is_found_again(states: FleetStates) -> None:
    fresh = taken(states)
    assert (fresh.availability, fresh.health) == (AvailabilityMemory(), HealthMemory())
    assert (fresh.notes, fresh.written_at) == ((), None)
    assert states.commit(fresh, MEMORY, NOON)
    again = taken(states, 60)
    assert (again.availability, again.written_at) == (MEMORY, NOON)


def test_only_one_holds_the_lease(states: FleetStates) -> None:
    first = taken(states)
    assert is_busy(states, 1)
    assert states.commit(first, MEMORY, NOON) is False
    assert taken(states, 2).holder != first.holder


@pytest.mark.parametrize("ahead_s", [50, 3600, -3600])
def test_a_lease_of_a_clock_that_was_ahead_is_void(states: FleetStates, ahead_s: int) -> None:
    """A lease of the future would keep its fleet without a turn until then; a memory stays."""
    lease = taken(states, ahead_s)
    assert is_busy(states, ahead_s + 1)
    assert is_busy(states, 4) is False
    with pytest.raises(FleetError):
        states.commit(lease, MEMORY, at(ahead_s))
    assert states.commit(taken(states, 60), MEMORY, at(60 + ahead_s))
    assert taken(states, 120).availability == MEMORY


def test_a_lease_that_is_held_while_no_turn_ends_is_an_error(states: FleetStates) -> None:
    assert states.commit(taken(states), MEMORY, NOON)
    for seconds in (60, 120, 180, 240, 299):
        taken(states, seconds)
        assert is_busy(states, seconds + 1)
    taken(states, 360)
    with pytest.raises(FleetError, match="has ended since 2026-11-20 12:0"):
        states.acquire("ocr", Controller.AVAILABILITY, at(361), note("i-1"))


def test_fleets_and_halves_do_not_stand_in_each_others_way(states: FleetStates) -> None:
    taken(states)
    health = taken(states, controller=Controller.HEALTH)
    silent = HealthMemory(silent=("i-1",))
    assert states.commit(health, silent, NOON)
    assert states.acquire("other", Controller.AVAILABILITY, NOON, None)
    assert taken(states, 120).health == silent


def test_a_lease_ends_with_its_lifetime_and_cannot_be_given_back_for_another(
    states: FleetStates,
) -> None:
    dead = taken(states)
    living = taken(states, 60)
    with pytest.raises(FleetError):
        states.commit(dead, MEMORY, NOON)
    states.release(dead)
    assert is_busy(states, 61)
    assert states.commit(living, MEMORY, NOON) is False
    with pytest.raises(FleetError):
        states.commit(dead, AvailabilityMemory(), NOON)
    assert taken(states, 62).availability == MEMORY


def test_a_turn_finds_its_own_note_and_a_busy_one_leaves_its_own_to_the_one_at_work(
    states: FleetStates,
) -> None:
    lease = taken(states, left=note("i-1"))
    assert lease.notes == (note("i-1"),)
    assert is_busy(states, 1, note("i-2"))
    assert states.commit(lease, MEMORY, NOON) is False
    again = taken(states, 2)
    assert (again.notes, again.availability) == ((note("i-2"),), MEMORY)
    assert states.commit(again, MEMORY, NOON)
    assert taken(states, 3).notes == ()


def test_memory_kept_on_the_way_keeps_the_lease_and_survives_a_crash_with_the_notes(
    states: FleetStates,
) -> None:
    lease = taken(states, left=note("i-1"))
    assert states.commit(lease, MEMORY, NOON, release=False)
    after = taken(states, 60)
    assert (after.availability, after.notes) == (MEMORY, (note("i-1"),))
    assert is_busy(states, 61)


def test_a_lease_given_back_leaves_the_notes_to_the_next(states: FleetStates) -> None:
    states.release(taken(states, left=note("i-1")))
    assert taken(states, 1).notes == (note("i-1"),)


def test_records_are_taken(states: FleetStates) -> None:
    for _ in range(2):
        states.record(held(at=NOON, availability=AvailabilityFigures(spot_serving=2)))
