"""The shadow fleets: what each keeps and costs, and which rule is followed."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.history import STEP_SLOTS, ArrivalLog, Scores
from spotkeeper.domain.sizing import shadows
from spotkeeper.domain.sizing.shadows import (
    DAY_S,
    FAMILY,
    PRUDENT,
    STEPS_A_TURN,
    Member,
    ObjectivePolicy,
    advanced,
    choose,
    in_bounds,
    judged,
    lag_slots,
    needed,
)

POLICY = ObjectivePolicy(wait_s=10.0, share=0.95, min_workers=1, max_workers=200, start_up_s=240.0)
HOUR = 360


def steady(load: float, service_s: float, slots: int, first: int = 0) -> ArrivalLog:
    """Requests of one length at even gaps."""
    every = [round(at * 10 * load / service_s) for at in range(slots + 1)]
    requests = [after - before for before, after in pairwise(every)]
    return ArrivalLog(first, requests, [count * service_s for count in requests])


def scores_of(log: ArrivalLog, own: dict[int, tuple[int, int]] | None = None) -> Scores:
    """What a fleet that judges every step in its time knows at the end of a log."""
    scores, stop = Scores(), len(log) // STEP_SLOTS
    for _ in range(0, stop, STEPS_A_TURN):
        scores = advanced(scores, log, stop, POLICY, 0.5, own or {})
    return scores


@pytest.mark.parametrize(("load", "service_s"), [(0.2, 2.0), (3.0, 1.0), (12.0, 0.5), (120.0, 1.0)])
def test_a_steady_load_is_kept_by_erlang_at_about_the_load(load: float, service_s: float) -> None:
    log = steady(load, service_s, 2 * HOUR)
    late, minutes = judged(log, 2 * HOUR, POLICY, 0.5)
    kept = FAMILY.index(Member(300, 0.0, 300))
    assert late[kept] <= 0.05 * 30 * 10 * load / service_s
    assert load * 5 <= minutes[kept] <= 5 * (load + 2 + 0.1 * load)


@pytest.mark.parametrize(
    ("load", "service_s", "most", "least"),
    # A shadow begins before its long requests, not empty.
    [(30.0, 2.0, 5, 800), (10.0, 1_200.0, 9, 2)],
)
def test_a_fleet_at_its_bound_is_late_by_every_rule(
    load: float, service_s: float, most: int, least: int
) -> None:
    log = steady(load, service_s, 2 * HOUR)
    late, minutes = judged(log, 2 * HOUR, replace(POLICY, max_workers=most), 0.5)
    assert min(late) > least - 1
    assert max(minutes) == 5 * most


@pytest.mark.parametrize(
    ("load", "waiting", "most"), [(1.0, 20, 40), pytest.param(60.0, 600, 600, id="a flow")]
)
def test_a_shadow_sees_no_log_of_what_waits(load: float, waiting: int, most: int) -> None:
    """Requests of 30 s arrive at once: the rule only clears the backlog."""
    counts, works_s = steady(load, 30.0, 2 * HOUR).slots()
    counts[-STEP_SLOTS] += waiting
    works_s[-STEP_SLOTS] += waiting * 30.0
    _, minutes = judged(ArrivalLog(0, counts, works_s), 2 * HOUR, POLICY, 0.5)
    assert minutes[FAMILY.index(Member(60, 0.0, 300))] < most


def test_a_quiet_night_costs_the_least_fleet_and_nothing_is_late() -> None:
    log = ArrivalLog(0, [1, *[0] * (3 * HOUR - 1)], [2.0, *[0.0] * (3 * HOUR - 1)])
    late, minutes = judged(log, 3 * HOUR, POLICY, 0.5)
    assert (max(late), min(minutes), max(minutes)) == (0, 5, 5)


def test_the_flow_is_near_the_exact_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that doubles every half hour: what each shadow costs and misses."""
    draw, slots = Random(1), 3 * HOUR
    requests = [
        sum(draw.random() < 0.1 for _ in range(250 * (1 + slot // 180 % 2)))
        for slot in range(slots)
    ]
    work_s = [sum(draw.expovariate(0.5) for _ in range(count)) for count in requests]
    log = ArrivalLog(0, requests, work_s)
    flow = scores_of(log)
    monkeypatch.setattr(shadows, "EXACT_A_DAY", 10**9)
    exact = scores_of(log)
    assert flow != exact
    assert flow.hours == pytest.approx(exact.hours, rel=0.02)
    assert flow.late == pytest.approx(exact.late, rel=0.3, abs=0.01 * exact.requests)


def test_a_young_fleet_follows_the_prudent_rule() -> None:
    assert choose(Scores()).member == PRUDENT
    assert choose(scores_of(steady(2.0, 2.0, 5 * STEP_SLOTS))).member == PRUDENT
    assert choose(scores_of(steady(2.0, 2.0, 12 * STEP_SLOTS))).index >= 0


def known(late: Sequence[float], hours: Sequence[float], **more: float) -> Scores:
    """Scores of a day in which two members are better than all others."""
    rest = len(FAMILY) - len(late)
    return replace(
        Scores(share=0.95, requests=10_000.0),
        late=(*late, *[5_000.0] * rest),
        squares=(*(each * 10 for each in late), *[0.0] * rest),
        hours=(*hours, *[1.0] * rest),
        **({"steps": 250.0} | more),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("scores", "index"),
    [
        pytest.param(known([100, 200], [60, 50]), 1, id="cheapest"),
        pytest.param(known([100, 2_000], [60, 50]), 0, id="late"),
        pytest.param(known([100, 200], [51, 50], followed=0), 0, id="hardly cheaper"),
        pytest.param(known([100, 200], [52, 50], followed=0), 1, id="cheaper"),
        pytest.param(
            known([100, 300], [60, 50], own_late=900.0, own_expected=300.0), 0, id="own lateness"
        ),
        pytest.param(
            known([100, 300], [80, 50], own_late=900.0, own_expected=300.0, own_requests=30_000.0),
            1,
            id="not at any price",
        ),
        pytest.param(
            known([100, 600], [60, 50], own_late=100.0, own_expected=600.0, own_requests=12_000.0),
            1,
            id="unspent",
        ),
        pytest.param(
            known([100, 500], [60, 50], own_expected=500.0, own_requests=12_000.0, steps=90.0),
            0,
            id="unspent for hours",
        ),
        pytest.param(known([900, 2_000], [60, 50]), 0, id="none keeps it"),
        pytest.param(known([100, 420], [60, 50]), 1, id="just kept over a day"),
        pytest.param(
            known([100, 420], [60, 50], own_late=320.0, own_expected=320.0, steps=90.0),
            0,
            id="just kept over hours",
        ),
        pytest.param(known([100, 420], [61, 50], steps=60.0), 1, id="doubt at its price"),
        pytest.param(
            known([100, 300], [60, 50], own_late=60.0, own_expected=20.0, own_requests=500.0),
            1,
            id="one surprise in the budget of hours",
        ),
    ],
)
def test_the_cheapest_member_that_kept_the_promise_is_followed(scores: Scores, index: int) -> None:
    choice = choose(scores)
    assert choice.index == index
    assert choice.kept(index)[1] >= choice.least_hours_a_day > 0
    # The budget of late requests is 5 %, and that of six hours at least.
    budget = 0.05 * max(scores.own_requests, 72 * scores.requests / scores.steps)
    assert choice.overspent == (scores.own_late > 0.8 * budget)
    assert f"{FAMILY[index]}" in str(choice)
    assert "worker-hours a day" in str(choice)


def test_a_window_of_a_day_is_followed_once_hours_of_it_are_known() -> None:
    hours = [40.0 if one.window_s == DAY_S else 50.0 for one in FAMILY]
    kept = known([0.0] * len(FAMILY), hours)
    assert choose(replace(kept, steps=60.0)).member.window_s < DAY_S
    assert choose(kept).member.window_s == DAY_S


def test_a_batch_of_yesterday_finds_workers_ready() -> None:
    """A batch each six hours, and a day later the workers that launch before it."""
    counts = [30 if slot % 2_160 < 30 else 1 for slot in range(10_830)]
    log = ArrivalLog(0, counts, [4.0 * count for count in counts])
    late, _ = judged(log, 10_830, POLICY, 0.5)
    yesterday = FAMILY.index(Member(120, 1.0, 300, yesterday=True))
    assert late[yesterday] < 0.1 * late[FAMILY.index(Member(600, 1.0, 300))]
    soon = 10_800 - 24 - lag_slots(4.0)
    assert needed(FAMILY[yesterday], log, soon, 4.0, POLICY) > 5
    assert "at this hour yesterday" in str(FAMILY[yesterday])


def test_another_promise_or_family_is_scored_again_from_the_start() -> None:
    log = steady(2.0, 2.0, 12 * STEP_SLOTS)
    scores = scores_of(log)
    looser = advanced(scores, log, 12, replace(POLICY, wait_s=30.0), 0.5, {})
    assert (looser.wait_s, looser.steps < scores.steps) == (30.0, True)
    other = advanced(replace(scores, family="0"), log, 12, POLICY, 0.5, {})
    assert other.family != "0"
    assert other.next_step == 3 + STEPS_A_TURN


def test_a_lost_memory_is_rebuilt_some_steps_a_turn() -> None:
    log = steady(2.0, 2.0, 30 * STEP_SLOTS, first=600)
    scores = advanced(Scores(), log, 20 + 30, POLICY, 0.5, {})
    assert scores.next_step == 20 + 3 + STEPS_A_TURN
    whole = scores_of(ArrivalLog(0, *log.slots()))
    again = Scores()
    while again.next_step < 50:
        again = advanced(again, log, 50, POLICY, 0.5, {})
    assert (again.hours, again.late) == (whole.hours, whole.late)


def test_steps_after_the_end_of_the_log_wait() -> None:
    """In a silence the log ends where requests did, and the steps that are known go on."""
    log = steady(2.0, 2.0, 5 * STEP_SLOTS + 7, first=600)
    scores = advanced(Scores(), log, 20 + 9, POLICY, 0.5, {})
    assert scores.next_step == 20 + 5


def test_late_requests_of_the_fleet_are_compared_with_those_expected() -> None:
    """The cheapest of many was lucky, too: it is expected to be as late as it was until then."""
    log = steady(2.0, 2.0, 20 * STEP_SLOTS)
    own = {step: (300, 30) for step in range(20)}
    scores = scores_of(log, own=own)
    assert scores.own_late > 200 > scores.own_expected
    before = replace(scores, late=(100.0,) * len(FAMILY), requests=1_000.0, own_expected=0.0)
    longer = steady(2.0, 2.0, 21 * STEP_SLOTS)
    after = advanced(before, longer, 21, POLICY, 0.5, {20: (500, 0)})
    assert after.next_step == before.next_step + 1
    assert after.own_expected == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("workers", "onprem", "per", "fleet"),
    [(0, 0, 1, 1), (5, 0, 1, 5), (5, 0, 4, 8), (5, 3, 4, 7), (2, 3, 1, 4), (999, 3, 4, 200)],
)
def test_shadows_have_whole_instances_within_the_bounds(
    workers: int, onprem: int, per: int, fleet: int
) -> None:
    assert in_bounds(workers, replace(POLICY, onprem=onprem, per_instance=per)) == fleet


@given(
    st.lists(st.integers(0, 3), min_size=4 * STEP_SLOTS, max_size=4 * STEP_SLOTS),
    st.floats(0.1, 60.0),
    st.integers(1, 9),
)
def test_late_requests_and_hours_are_those_of_a_fleet_within_its_bounds(
    requests: list[int], service_s: float, most: int
) -> None:
    log = ArrivalLog(7, requests, [count * service_s for count in requests])
    late, minutes = judged(log, len(log), replace(POLICY, max_workers=most), 0.5)
    assert all(0 <= each <= sum(requests[-STEP_SLOTS:]) for each in late)
    assert all(5 <= each <= 5 * most for each in minutes)
