"""What holds of the division of a need among regions, whatever they report."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from timeit import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.spread import (
    CHEAPER_FOR,
    EXPIRES,
    KEPT,
    LONG_REST,
    REST,
    Place,
    Report,
    Share,
    Standing,
    spread,
)
from tests.builders import at

NAMES = ("us-west-2", "us-east-1", "eu-west-1", "eu-north-1")
HOME, NOW = NAMES[0], at(0)
CAPACITY, QUOTA = FailureClass.CAPACITY, FailureClass.QUOTA
small = st.integers(0, 6)
instants = st.none() | st.integers(-3600, 3600).map(at)
reports = st.builds(
    Report,
    at=st.just(NOW),
    serving=small,
    launching=st.integers(0, 3),
    bare=st.integers(0, 3),
    most=st.just(100) | small,
    refused=st.dictionaries(st.sampled_from(FailureClass), st.just(NOW), max_size=2),
)
places = st.builds(
    Place,
    share=st.builds(Share, cover=small, written=st.just(NOW)),
    report=reports,
    price=st.sampled_from((0.0, 0.3, 0.31, 0.5, 1.0)),
    standing=st.sampled_from(Standing),
    rests_until=instants,
    cheaper=instants,
)


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Place]:
    return {name: draw(places) for name in NAMES[: draw(st.integers(1, 4))]}


def divide(
    need: int, fleet: Mapping[str, Place], now: datetime = NOW
) -> dict[str, tuple[int, int]]:
    """Cover and ask of each region."""
    division = spread(need, HOME, fleet, now)
    return {r: (place.share.cover, place.share.ask) for r, place in division.items()}


@given(fleets(), st.integers(0, 20))
def test_the_covers_are_the_need_and_a_trial_is_no_more_than_what_moves(
    fleet: Mapping[str, Place], need: int
) -> None:
    after = spread(need, HOME, fleet, NOW)
    assert sum(place.share.cover for place in after.values()) == need
    moving = sum(place.share.ask - place.share.cover for place in after.values())
    assert moving <= max(1, sum(place.short(place.share.cover) for place in after.values()))
    for place in after.values():
        assert 0 <= place.share.cover <= place.share.ask
        assert place.standing is Standing.OPEN or place.share.ask == place.share.cover


@given(fleets())
def test_a_cover_leaves_a_region_only_for_where_it_is_served(fleet: Mapping[str, Place]) -> None:
    """Make before break: at a constant need, what a region takes on serves there already.

    The others are what neither group serves anywhere.
    """
    division = divide(sum(place.share.cover for place in fleet.values()), fleet)
    bare = sum(min(place.report.bare, division[r][0] + 20) for r, place in fleet.items())
    unserved = 0
    for r, (cover, _) in division.items():
        gained = max(0, cover - fleet[r].share.cover)
        unserved += max(0, gained - max(0, fleet[r].report.serving - fleet[r].share.cover))
    assert unserved <= bare


@given(fleets(), st.integers(0, 20), st.integers(-90, 90))
def test_clocks_apart_change_nothing(fleet: Mapping[str, Place], need: int, apart_s: int) -> None:
    """A region's instants are compared with each other only; those of a rest are the home's."""
    then = at(apart_s)
    aside = {
        r: replace(
            place,
            report=replace(
                place.report, at=then, refused=dict.fromkeys(place.report.refused, then)
            ),
        )
        for r, place in fleet.items()
    }
    assert divide(need, aside) == divide(need, fleet)


@pytest.mark.parametrize(
    ("after", "floor", "held"),
    [
        (timedelta(0), 1, (3, 5)),
        (EXPIRES + KEPT - timedelta(seconds=1), 1, (3, 5)),
        (EXPIRES + KEPT, 1, (3, 3)),
        (EXPIRES + 2 * KEPT - timedelta(seconds=1), 1, (3, 3)),
        (EXPIRES + 2 * KEPT, 1, (1, 1)),
        (EXPIRES + 2 * KEPT, 4, (3, 3)),
    ],
)
def test_a_share_that_nobody_renews_loses_its_trial_then_its_cover(
    after: timedelta, floor: int, held: tuple[int, int]
) -> None:
    share = Share(term=7, cover=3, ask=5, written=NOW).in_force(floor, NOW + after)
    assert (share.cover, share.ask) == held


def place(cover: int, serving: int, price: float = 0.3, **more: object) -> Place:
    fields = {k: more.pop(k) for k in ("launching", "bare", "refused", "most") if k in more}
    if "refused" in fields:
        fields["refused"] = {fields["refused"]: NOW}
    report = Report(at=NOW, serving=serving, **fields)  # type: ignore[arg-type]
    share = Share(cover=cover, written=NOW)
    return Place(share=share, report=report, price=price, **more)  # type: ignore[arg-type]


WEST, EAST, EU = NAMES[:3]


@pytest.mark.parametrize(
    ("fleet", "division"),
    [
        # One unit that the home was refused is on trial in the cheapest other region.
        (
            {WEST: place(3, 2, refused=CAPACITY), EAST: place(0, 0, 0.4), EU: place(0, 0, 0.35)},
            {WEST: (3, 3), EAST: (0, 0), EU: (0, 1)},
        ),
        # It launches: it is kept, and nobody else is tried.
        (
            {
                WEST: place(3, 2, refused=CAPACITY),
                EAST: place(0, 0, launching=1),
                EU: place(0, 0, 0.2),
            },
            {WEST: (3, 3), EAST: (0, 1), EU: (0, 0)},
        ),
        # It serves: its cover moves.
        ({WEST: place(3, 2, refused=CAPACITY), EAST: place(0, 1)}, {WEST: (2, 2), EAST: (1, 1)}),
        # A launch that is only late moves nothing.
        ({WEST: place(3, 2, launching=1), EAST: place(0, 0)}, {WEST: (3, 3), EAST: (0, 0)}),
        # AWS throttles: no evidence of missing capacity.
        (
            {WEST: place(3, 2, refused=FailureClass.THROTTLE), EAST: place(0, 0)},
            {WEST: (3, 3), EAST: (0, 0)},
        ),
        # On-demand is refused, too: another region covers it at once, by on-demand if it must.
        (
            {WEST: place(3, 0, refused=CAPACITY, bare=2), EAST: place(0, 0)},
            {WEST: (1, 1), EAST: (2, 3)},
        ),
        # Not to one that refused of late: two that are dry would take turns.
        (
            {
                WEST: place(3, 0, refused=CAPACITY, bare=3),
                EAST: place(0, 0, rests_until=at(-1)),
                EU: place(0, 0, 0.5),
            },
            {WEST: (0, 0), EAST: (0, 0), EU: (3, 3)},
        ),
        # Both are short everywhere: the covers stay.
        (
            {
                WEST: place(2, 0, refused=CAPACITY, bare=2),
                EAST: place(1, 0, refused=CAPACITY, bare=1),
            },
            {WEST: (2, 2), EAST: (1, 1)},
        ),
        # A region that is paused, or removed, gives its cover away by trials first.
        (
            {WEST: place(2, 2), EAST: place(2, 2, standing=Standing.LEAVING)},
            {WEST: (2, 4), EAST: (2, 2)},
        ),
        (
            {WEST: place(2, 4), EAST: place(2, 2, standing=Standing.LEAVING)},
            {WEST: (4, 4), EAST: (0, 0)},
        ),
        # An old report, or one of an earlier release, keeps its cover and gets no trial.
        (
            {WEST: place(2, 1, refused=CAPACITY), EAST: place(2, 0, standing=Standing.STALE)},
            {WEST: (2, 2), EAST: (2, 2)},
        ),
        (
            {WEST: place(2, 3), EAST: place(2, 0, bare=2, standing=Standing.STALE)},
            {WEST: (2, 2), EAST: (2, 2)},
        ),
        # What a group may not hold is on trial elsewhere, as far as that group may hold it.
        (
            {WEST: place(9, 5, most=5), EAST: place(2, 2, most=4), EU: place(0, 0, 0.5)},
            {WEST: (9, 9), EAST: (2, 4), EU: (0, 0)},
        ),
        (
            {WEST: place(9, 5, most=5), EAST: place(2, 4, most=4), EU: place(0, 0, 0.5)},
            {WEST: (7, 7), EAST: (4, 4), EU: (0, 2)},
        ),
        # No price is known: nothing is cheaper.
        ({WEST: place(3, 4, 0.0), EAST: place(2, 2, 0.0)}, {WEST: (3, 3), EAST: (2, 2)}),
        ({WEST: place(3, 3), EAST: place(0, 1, 0.0)}, {WEST: (3, 3), EAST: (0, 0)}),
        # A smaller need: what nothing serves yet, then from the dearest. A larger one: the home's.
        ({WEST: place(3, 1), EAST: place(2, 2, 0.4)}, {WEST: (1, 1), EAST: (2, 2)}),
        ({WEST: place(3, 3), EAST: place(3, 3, 0.4)}, {WEST: (3, 3), EAST: (1, 1)}),
        ({WEST: place(1, 1), EAST: place(1, 1)}, {WEST: (3, 3), EAST: (1, 1)}),
    ],
)
def test_a_unit_moves_in_one_way(
    fleet: Mapping[str, Place], division: Mapping[str, tuple[int, int]]
) -> None:
    assert divide(sum(cover for cover, _ in division.values()), fleet) == division


@pytest.mark.parametrize(
    ("refused", "rest"), [(CAPACITY, REST), (QUOTA, LONG_REST), (FailureClass.BOOTSTRAP, LONG_REST)]
)
def test_a_region_that_refused_rests_for_a_fixed_time(
    refused: FailureClass, rest: timedelta
) -> None:
    west = place(3, 2, refused=CAPACITY)
    fleet = {WEST: west, EAST: place(0, 0, refused=refused)}
    rests = spread(3, HOME, fleet, NOW)[EAST].rests_until
    fleet = {WEST: west, EAST: place(0, 0, refused=refused, rests_until=rests)}
    assert spread(3, HOME, fleet, NOW + rest / 2)[EAST].rests_until == rests
    for later, asked in ((rest - timedelta(seconds=1), 0), (rest, 1)):
        fleet = {WEST: west, EAST: place(0, 0, rests_until=rests)}
        assert divide(3, fleet, NOW + later)[EAST] == (0, asked)


def test_one_unit_at_a_time_moves_to_a_price_that_has_been_lower_for_long() -> None:
    fleet = {WEST: place(3, 3, 0.4), EAST: place(0, 0, 0.3)}
    now = NOW
    for minute in range(0, 31, 10):
        now = NOW + timedelta(minutes=minute)
        fleet = spread(3, HOME, fleet, now)
        assert fleet[EAST].share.ask == int(now - NOW >= CHEAPER_FOR)
    # The next one is a trial of its own.
    for serving in (1, 2):
        fleet[EAST] = replace(fleet[EAST], report=Report(at=NOW, serving=serving))
        fleet = spread(3, HOME, fleet, now)
        shares = {r: (place.share.cover, place.share.ask) for r, place in fleet.items()}
        assert shares == {WEST: (3 - serving,) * 2, EAST: (serving, serving + 1)}


def test_a_home_of_eight_regions_divides_a_thousand_in_five_milliseconds() -> None:
    fleet = {f"r{n}": place(125, 120, 0.3 + n / 100, refused=CAPACITY) for n in range(8)}
    took = timeit(lambda: spread(1000, "r0", fleet, NOW), number=20) / 20
    assert took < 0.005
