"""How load becomes a size of the spot group: tables, then laws."""

from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health_memory import HealthMemory, Needed, Silence
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.load import Load, WorkerLoad, histogram
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from spotkeeper.domain.sizing.size import (
    Sizing,
    partly_known,
    size,
    slots_when_full,
    workers_needed,
)
from tests.builders import at, fleet, group
from tests.search_logs import worker

FRESH = HealthMemory()
KNOWN = LogFlow(known_since=at(-7200), newest=at(0), watched_since=at(-7200))


def working(count: int, busy_s: float) -> tuple[WorkerLoad, ...]:
    """So many workers that were busy for a part of five minutes."""
    return tuple(
        worker(f"gpu-{n}", f"i-{n}", busy_s=busy_s, capacity_s=300.0) for n in range(count)
    )


def load(
    erlangs: float, seconds: float = 0, *, onprem: int = 0, newest: datetime | None = None
) -> Load:
    """This much offered load at an instant, with `onprem` live on-premises workers."""
    now = at(seconds)
    workers = tuple(worker(f"rack-{n}", last_finished=now) for n in range(onprem))
    return Load(
        at=now,
        window_s=300,
        offered=erlangs,
        arrival_rate=erlangs,
        workers=workers,
        newest=newest or now,
    )


def sized(
    seen: Load,
    desired: int = 4,
    *,
    of: Fleet | None = None,
    memory: HealthMemory = FRESH,
    spot: Group | None = None,
) -> Sizing:
    return size(seen, of or fleet(), spot or group("spot", desired), memory, seen.at)


@pytest.mark.parametrize(
    ("erlangs", "target", "workers"),
    [
        (0.0, 0.7, 0),
        (0.0001, 0.7, 1),
        (0.7, 0.7, 1),
        (0.71, 0.7, 2),
        (7.0, 0.7, 10),
        (7.0, 1.0, 7),
        (3.5, 0.5, 7),
        (70.0, 0.7, 100),
    ],
)
def test_the_fewest_workers_that_hold_the_target_are_needed(
    erlangs: float, target: float, workers: int
) -> None:
    assert workers_needed(load(erlangs), target, 0) == workers
    assert workers_needed(replace(load(0.0), arrival_rate=0.01), 0.7, 0) == 1


@pytest.mark.parametrize(
    ("busy_s", "waited_s", "desired"),
    [
        pytest.param(300.0, 1500, 12, id="full, behind a backlog of 25 minutes"),
        pytest.param(300.0, 60, 3, id="full, a backlog of a minute"),
        pytest.param(200.0, 1500, 2, id="idle at times: the sender's clock is behind"),
    ],
)
def test_full_workers_clear_the_backlog_that_their_logs_show(
    busy_s: float, waited_s: int, desired: int
) -> None:
    """Nothing that arrived in the window has been served, and no queue tells its length."""
    waits = histogram([waited_s * 1000] * 9)
    seen = replace(load(0.0), workers=working(2, busy_s), waits=waits)
    assert sized(seen, 2, of=fleet(spot_max=40)).spot_desired == desired


@pytest.mark.parametrize(
    ("busy_s", "waited_s", "waiting", "held"),
    [
        pytest.param(240.0, 300, None, True, id="busy, behind a backlog of unknown length"),
        pytest.param(240.0, 300, 5, False, id="the queue is known"),
        pytest.param(240.0, 9, None, False, id="requests hardly wait"),
        pytest.param(200.0, 300, None, False, id="workers have time left"),
    ],
)
def test_a_load_behind_a_backlog_of_unknown_length_is_partly_known(
    busy_s: float, waited_s: int, waiting: int | None, held: bool
) -> None:
    waits = histogram([waited_s * 1000] * 9)
    seen = replace(load(0.0), workers=working(1, busy_s), waits=waits)
    queue = QueueMemory(length=QueueLength(waiting=waiting, in_flight=1)) if waiting else None
    memory = HealthMemory(flow=KNOWN, queue=queue)
    assert bool(partly_known(seen, memory, fleet(), 300, at(0))[0]) == held


@pytest.mark.parametrize(
    ("window_s", "ago_s", "held"),
    [(60, 299, True), (60, 301, False), (600, 599, True), (600, 601, False), (3_600, 901, False)],
)
def test_a_rule_holds_until_its_window_is_known_but_not_for_hours(
    window_s: int, ago_s: int, held: bool
) -> None:
    memory = HealthMemory(flow=replace(KNOWN, partly_until=at(-ago_s)))
    assert bool(partly_known(load(1.0), memory, fleet(), window_s, at(0))[0]) == held


@pytest.mark.parametrize(
    ("new", "age_s", "held"), [(11, 60, True), (11, 120, False), (2, 60, True), (1, 60, False)]
)
def test_the_first_logs_of_most_instances_make_no_fleet_smaller(
    new: int, age_s: int, held: bool
) -> None:
    """After an outage of all but one: what has just begun looks idle, and the backlog gone."""
    there = {"i-old": at(-3600)} | {f"i-{number}": at(-age_s) for number in range(new)}
    memory = HealthMemory(flow=KNOWN, in_service_since=there)
    assert bool(partly_known(load(1.0), memory, fleet(), 300, at(0))[0]) == held


@pytest.mark.parametrize(
    ("alive", "finished", "desired"),
    [
        pytest.param(4, 150, 5, id="all alive"),
        pytest.param(2, 150, 10, id="two of four dead"),
        pytest.param(1, 150, 20, id="three of four dead"),
        pytest.param(2, 5, 5, id="too few requests to tell"),
    ],
)
def test_dead_workers_of_living_instances_are_replaced_by_more_instances(
    alive: int, finished: int, desired: int
) -> None:
    """Only throughput reads as load: divided by all that an instance should carry it never grew."""
    here = [f"i-{n:017x}" for n in range(5)]
    workers = tuple(worker(f"gpu-{n}", i, finished=finished) for i in here for n in range(alive))
    memory = HealthMemory(in_service_since=dict.fromkeys(here, at(-3600)))
    of = fleet(workers_per_instance=4, spot_max=40, sizing=SizingPolicy(growth_per_turn=3.0))
    sizing = sized(replace(load(14.0), workers=workers), 5, of=of, memory=memory)
    assert sizing.spot_desired == desired


def test_more_load_raises_the_group_at_once() -> None:
    sizing = sized(load(7.0))
    assert (sizing.action, sizing.rule) == (Action.RESIZE, "load rate")
    assert (sizing.spot_desired, sizing.workers) == (10, 10)
    assert sizing.reason == "Spot 4 -> 10. At 70% busy, the load needs 10 workers now."


@pytest.mark.parametrize(("age_s", "stale"), [(0, False), (180, False), (180.1, True), (9e9, True)])
def test_stale_search_logs_hold_whatever_they_say(age_s: float, stale: bool) -> None:
    seen = load(70.0, newest=at(-min(age_s, 9e9)))
    sizing = sized(seen)
    assert sizing.stale is stale
    assert (sizing.spot_desired == 4) is stale
    if stale:
        assert (sizing.action, sizing.rule) == (Action.HOLD, "stale search logs")
        assert "Spot stays at 4." in sizing.reason
    never = sized(replace(load(0.0), newest=None))
    assert (never.action, never.spot_desired, never.stale) == (Action.HOLD, 4, True)
    assert "none ever arrived" in never.reason


def test_silence_does_not_forget_what_was_needed() -> None:
    before = sized(load(7.0), 10)
    silent = sized(load(0.0, 400, newest=at(0)), 10, memory=before.memory)
    assert (silent.workers, silent.spot_desired) == (10, 10)
    assert [(held.workers, held.at) for held in silent.memory.needed] == [(10, at(400))]


@pytest.mark.parametrize(
    ("rack", "usual", "desired"), [(True, True, 0), (True, False, 1), (False, True, 1)]
)
def test_a_usual_pause_beside_a_rack_starts_nothing(rack: bool, usual: bool, desired: int) -> None:
    yesterday = Silence(since=at(-90_000), until=at(-50_000))
    flow = replace(KNOWN, newest=at(-600), watched_since=at(-172_800), rate=1.0, lately=1.0)
    memory = HealthMemory(
        flow=flow,
        onprem_at=at(-600) if rack else at(-9000),
        silences=(yesterday,) if usual else (),
        needed=(Needed(at=at(-900), workers=4),),
    )
    sizing = sized(load(0.0, newest=at(-600)), 0, memory=memory)
    assert (sizing.spot_desired, any(n.held for n in sizing.memory.needed)) == (
        desired,
        desired > 0,
    )


def test_workers_on_premises_appear_by_their_logs_up_to_the_number_that_is_known() -> None:
    assert sized(load(7.0, onprem=3), of=fleet()).spot_desired == 7
    some = replace(fleet(), onprem_workers=3)
    assert sized(load(7.0, onprem=400), of=some).spot_desired == 7


def test_the_size_stays_within_the_operators_and_the_groups_bounds() -> None:
    bounded = replace(fleet(), bounds=Bounds(spot_min=2, spot_max=6, on_demand_max=10))
    high, low = sized(load(70.0), of=bounded), sized(load(0.1), of=bounded)
    assert (high.spot_desired, high.rule) == (6, "spot maximum")
    assert (low.spot_desired, low.rule) == (2, "spot minimum")
    tight = replace(group("spot", 4), minimum=3, maximum=5)
    assert sized(load(70.0), of=bounded, spot=tight).spot_desired == 5
    assert sized(load(0.1), of=bounded, spot=tight).spot_desired == 3
    # AWS refuses less than a group's minimum.
    above = replace(group("spot", 8), minimum=7, maximum=9)
    assert sized(load(70.0), of=bounded, spot=above).spot_desired == 7


LOADS = st.floats(0.001, 500)
FLEETS = st.builds(
    lambda least, most, per, target: replace(
        fleet(workers_per_instance=per, sizing=SizingPolicy(target_load_rate=target)),
        bounds=Bounds(spot_min=min(least, most), spot_max=max(least, most), on_demand_max=0),
    ),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(1, 8),
    st.floats(0.05, 1),
)


@given(LOADS, LOADS, FLEETS, st.integers(0, 20), st.integers(0, 60))
def test_more_load_never_means_fewer_workers_and_the_size_never_leaves_the_bounds(
    one: float, other: float, of: Fleet, onprem: int, desired: int
) -> None:
    less, more = (sized(load(x, onprem=onprem), desired, of=of) for x in sorted((one, other)))
    assert less.workers <= more.workers
    assert of.bounds.spot_min <= less.spot_desired <= more.spot_desired <= of.bounds.spot_max
    assert (less.action is Action.HOLD) is (less.spot_desired == desired)


@given(st.lists(LOADS, min_size=1, max_size=30), st.integers(0, 900))
def test_the_size_is_what_the_stabilisation_window_needed_at_most(
    loads: list[float], scale_in_after_s: int
) -> None:
    of = fleet(sizing=SizingPolicy(scale_in_after_s=scale_in_after_s))
    memory, needed, desired = FRESH, [0] * len(loads), 0
    for turn, erlangs in enumerate(loads):
        most = min(100, desired + max(10, desired))
        sizing = sized(load(erlangs, 60 * turn), desired, of=of, memory=memory)
        needed[turn] = sizing.workers
        recent = [n for k, n in enumerate(needed[: turn + 1]) if 60 * (turn - k) < scale_in_after_s]
        assert sizing.spot_desired == min(most, max([*recent, needed[turn]]))
        memory, desired = sizing.memory, sizing.spot_desired


@given(LOADS, FLEETS, st.integers(1, 60))
def test_a_constant_load_settles_in_one_turn_and_then_holds(
    erlangs: float, of: Fleet, desired: int
) -> None:
    of = replace(of, sizing=replace(of.sizing, growth_per_turn=100.0))
    first = sized(load(erlangs), desired, of=of)
    again = sized(load(erlangs, 60), first.spot_desired, of=of, memory=first.memory)
    assert (again.action, again.spot_desired) == (Action.HOLD, first.spot_desired)


@given(st.lists(LOADS, min_size=1, max_size=50))
def test_what_is_remembered_stays_small(loads: list[float]) -> None:
    memory = FRESH
    for turn, erlangs in enumerate(loads):
        memory = sized(load(erlangs, 60 * turn), memory=memory).memory
    assert len(memory.needed) <= 16
    assert [n.workers for n in memory.needed] == sorted(
        {n.workers for n in memory.needed}, reverse=True
    )


EIGHT = replace(fleet(), slots=8)
WAITS, QUEUED = histogram([20_000] * 9), QueueMemory(length=QueueLength(waiting=9, in_flight=0))
EMPTY = QueueMemory(length=QueueLength(waiting=0, in_flight=0))


@pytest.mark.parametrize(
    ("share", "waits", "queue", "known", "full"),
    [
        pytest.param(0.5, True, QUEUED, 0.0, 4.0, id="requests wait at half of the slots"),
        pytest.param(0.5, True, None, 0.0, 4.0, id="they waited, and the queue is not known"),
        pytest.param(0.5, True, EMPTY, 0.0, 0.0, id="a sender's clock is wrong: none wait"),
        pytest.param(0.5, False, QUEUED, 0.0, 0.0, id="none waited for long"),
        pytest.param(0.25, True, QUEUED, 4.0, 2.0, id="they wait at fewer"),
        pytest.param(0.25, True, None, 4.0, 4.0, id="a wrong clock does not lower it again"),
        pytest.param(0.25, False, EMPTY, 4.0, 4.0, id="it is known"),
        pytest.param(0.75, False, EMPTY, 4.0, 6.0, id="more share a worker, and none wait"),
        pytest.param(0.05, True, QUEUED, 0.0, 1.0, id="a worker serves one at least"),
    ],
)
def test_waits_show_how_many_requests_a_worker_serves_at_once(
    share: float, waits: bool, queue: QueueMemory | None, known: float, full: float
) -> None:
    workers = tuple(
        worker(f"gpu-{n}", f"i-{n}", busy_s=share * 2400, capacity_s=2400.0) for n in range(3)
    )
    seen = replace(load(24.0), workers=workers, waits=WAITS if waits else histogram([0]))
    memory = replace(FRESH, queue=queue, full=known, full_of=8)
    anew = slots_when_full(replace(memory, full_of=16), seen, EIGHT)
    assert anew == slots_when_full(replace(memory, full=0.0), seen, EIGHT)
    assert slots_when_full(memory, seen, EIGHT) == pytest.approx(full)
    assert slots_when_full(memory, seen, fleet()) == 0.0


def test_a_worker_with_fewer_slots_than_its_document_counts_as_what_it_has() -> None:
    believed, known = (sized(load(24.0), of=EIGHT, memory=replace(FRESH, full=n)) for n in (0, 4))
    of_four = sized(load(24.0), of=replace(EIGHT, slots=4))
    assert believed.workers < known.workers == of_four.workers
    assert "the document has 8 slots, but requests wait at 4.0" in known.reason
