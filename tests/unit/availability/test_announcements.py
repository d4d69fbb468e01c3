"""Which event is sent when: one for each change of state, with an id that stays."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.availability import announcements
from spotkeeper.domain.availability.announcements import UNSENT_AT_MOST, Announced
from spotkeeper.domain.decision import Alarm, AvailabilityFigures, Controller, DecisionRecord
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.permission import Control, Pause, Permission
from spotkeeper.domain.spread import Place, Report, Standing
from tests.builders import at, counted, held


def record(
    minute: int = 0, *, need: int = 4, spot: int = 4, short: int = 0, on_demand: int = 0,
    serving: int = 0, alarms: tuple[Alarm, ...] = (), permission: Permission = Permission.ACT,
) -> DecisionRecord:  # fmt: skip
    """The record of a turn: `on_demand` instances are wanted, `serving` of them serve."""
    seen = AvailabilityFigures(
        spot_desired=need, spot_serving=spot, shortfall=short,
        on_demand_desired=on_demand, on_demand_serving=serving,
    )  # fmt: skip
    when, by = at(60.0 * minute), Controller.AVAILABILITY
    return held(controller=by, at=when, availability=seen, alarms=alarms, permission=permission)


def announce(before: Announced, turn: DecisionRecord, control: Control) -> Announced:
    return announcements.announce(before, turn, counted(turn), control, {})


def announced(*records: DecisionRecord, control: Control | None = None) -> list[tuple[int, str]]:
    """The events of some turns, by minute, each sent at once."""
    kept, events = Announced(), list[tuple[int, str]]()
    for each in records:
        kept = announce(kept, each, control or Control())
        events += [(int((e.at - at(0)).total_seconds() // 60), e.state) for e in kept.unsent]
        kept = replace(kept, unsent=())
    return events


NEW = [(0, "whole"), (0, "released"), (0, "awake")]
STORIES = {
    "nothing happens": ((record(1), record(2)), []),
    "a launch is no shortage": ((record(1, need=6, spot=4), record(2, need=6, spot=6)), []),
    "on-demand stands in, and is released": (
        (
            record(1, spot=2, short=2, on_demand=2),
            record(2, spot=2, short=2, on_demand=2),
            record(3, spot=2, short=2, on_demand=2, serving=2),
            record(4, spot=4, on_demand=2, serving=2),
            record(5, spot=4),
        ),
        [(1, "short"), (1, "backfilled"), (3, "whole"), (5, "released")],
    ),
    "neither can be had": (
        (
            record(1, spot=2, short=2, on_demand=2, alarms=(Alarm.BOTH_SHORT,)),
            record(2, spot=2, short=2, on_demand=2),
            record(3, spot=2, on_demand=2),
            record(4, spot=4, on_demand=0),
        ),
        [(1, "both-short"), (1, "backfilled"), (2, "short"), (4, "whole"), (4, "released")],
    ),
    "a night": (
        (record(1, need=0, spot=1), record(2, need=0, spot=0), record(3, need=1, spot=0, short=0)),
        [(1, "sleeping"), (3, "awake")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_each_change_is_announced_once(story: str) -> None:
    records, events = STORIES[story]
    assert announced(record(), *records) == NEW + events


def test_a_region_that_is_refused_or_gone_is_announced_once_and_when_it_serves_again() -> None:
    """A rest of two minutes is followed by another try, which is the same trouble."""
    report = Report(at=at(0), serving=1, refused={FailureClass.CAPACITY: at(0)}, release=1)
    resting = Place(report=report, rests_until=at(120))
    kept, events = announce(Announced(), record(), Control()), list[tuple[str, str]]()
    for minute, place in enumerate(
        (resting, replace(resting, rests_until=at(300)), resting, Place(standing=Standing.GONE),
         replace(resting, rests_until=at(-600)))
    ):  # fmt: skip
        turn = record(minute)
        places, kept = {"east": place, "west": Place()}, replace(kept, unsent=())
        kept = announcements.announce(kept, turn, counted(turn), Control(), places)
        events += [(e.region, e.state) for e in kept.unsent]
    east = ("region-refused", "region-gone", "region-serves")
    assert events == [("east", state) for state in east]
    assert "east: cover 0, ask 0, 1 on spot" in kept.unsent[0].reason


def test_a_pause_is_announced_once_and_the_states_after_it_again() -> None:
    pause = Pause(until=at(7200), why="maintenance", by="ops", at=at(90))
    paused = Control(pause=pause, version=1)
    first = announce(Announced(), record(), Control())
    # A paused fleet has a memory of its own.
    turn = announce(Announced(), record(2, permission=Permission.PAUSED), paused)
    assert [(e.state, e.at, e.permission) for e in turn.unsent] == [("paused", at(90), "paused")]
    assert turn.unsent[0].reason == "until 2026-11-20 14:00 UTC: maintenance"
    assert announce(turn, record(3, permission=Permission.PAUSED), paused) == turn
    again = announce(replace(first, unsent=()), record(4), Control(version=2))
    assert [e.state for e in again.unsent] == ["whole", "released", "awake"]


@given(
    st.lists(
        st.builds(
            record,
            need=st.integers(0, 4),
            spot=st.integers(0, 4),
            short=st.integers(0, 4),
            on_demand=st.integers(0, 2),
            serving=st.integers(0, 2),
            alarms=st.sampled_from([(), (Alarm.BOTH_SHORT,)]),
        )
    )
)
def test_unsent_announcements_keep_their_ids_and_are_bounded(records: list[DecisionRecord]) -> None:
    """Of a bus that takes nothing: each turn keeps the ids of before, the oldest go first."""
    kept = Announced()
    for minute, each in enumerate(records):
        after = announce(kept, replace(each, at=at(60.0 * minute)), Control())
        ids = [e.id for e in after.unsent]
        assert len(ids) <= UNSENT_AT_MOST
        new = [e for e in after.unsent if e.at == at(60.0 * minute)]
        assert [*(e.id for e in kept.unsent), *(e.id for e in new)][-UNSENT_AT_MOST:] == ids
        assert len({e.id for e in new}) == len(new)
        kept = after
