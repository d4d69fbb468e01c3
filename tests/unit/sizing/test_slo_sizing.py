"""The sizing rule by example: what it asks for, and what it says."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from random import Random

import pytest

from spotkeeper.domain.load.summary import LoadSummary
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper.domain.sizing.level import load_level, quick_level
from spotkeeper.domain.sizing.level import running_s as running
from spotkeeper.domain.sizing.objective import (
    allowance,
    delay_chance,
    late_chance,
    size_to_objective,
)
from spotkeeper.domain.sizing.values import Need, ObjectivePolicy, PastNeed

POLICY = ObjectivePolicy(wait_s=10.0, share=0.95, min_workers=1, max_workers=200, start_up_s=240.0)
DAY_STEPS = 288


def steady(load: float, service_s: float = 2.0, slots: int = 90) -> LoadSummary:
    """Fifteen minutes at a constant load, the newest seconds still running."""
    per_slot = load * 10.0 / service_s
    missing_s = 1.5 * service_s + 2.0
    times_s = [min(10.0 * slot, 10.0 * slots - missing_s) for slot in range(slots + 1)]
    edges = [round(per_slot * time_s / 10.0) for time_s in times_s]
    arrivals = [after - before for before, after in itertools.pairwise(edges)]
    return LoadSummary(
        arrivals=tuple(arrivals),
        work_s=tuple(count * service_s for count in arrivals),
        service_mean_s=service_s,
        service_second_moment_s2=1.5 * service_s**2,
        newest_start_age_s=4.0,
        newest_wait_s=0.0,
        newest_log_age_s=2.0,
    )


def size(
    load: LoadSummary,
    live: int = 1,
    booting: int = 0,
    policy: ObjectivePolicy = POLICY,
    past: tuple[PastNeed, ...] = (PastNeed(age_s=600.0, workers=1),),
) -> Need:
    return size_to_objective(load, live, booting, past, policy)


@pytest.mark.parametrize(
    ("load", "fewest", "most"),
    [(0.5, 1, 2), (1.2, 2, 2), (2.0, 3, 3), (31.0, 33, 36), (300.0, 310, 340)],
)
def test_workers_for_a_steady_load(load: float, fewest: int, most: int) -> None:
    policy = replace(POLICY, max_workers=1_000)
    assert fewest <= size(steady(load), policy=policy).workers <= most


def test_a_strict_promise_about_short_waits_needs_more_than_the_load() -> None:
    strict = replace(POLICY, wait_s=0.5, share=0.99)
    assert size(steady(31.0, service_s=6.0), policy=strict).workers >= 41


def test_requests_still_running_count() -> None:
    assert load_level(steady(31.0, service_s=11.0)) == pytest.approx(31.0, rel=0.05)


def test_a_step_is_seen_before_the_long_window_has_it() -> None:
    calm, busy = steady(4.0), steady(40.0)
    step = replace(
        busy,
        arrivals=calm.arrivals[:-12] + busy.arrivals[-12:],
        work_s=calm.work_s[:-12] + busy.work_s[-12:],
    )
    assert quick_level(step) > 25.0


def test_noise_moves_nothing_where_the_day_is_known() -> None:
    day = (10.0,) * 1440
    known = [replace(steady(load), recent_loads=day) for load in (9.6, 10.0, 10.4)]
    assert {load_level(load) for load in known} == {10.0}
    assert load_level(replace(steady(20.0), recent_loads=day)) > 18
    assert load_level(replace(steady(4.0), recent_loads=day)) < 5
    assert load_level(replace(steady(0.0), recent_loads=day)) < 0.2


def test_a_few_long_requests_are_no_bursts() -> None:
    """0.4 erlangs of 30 s: a worker more or less is a matter of waiting, not of bursts."""
    draw = Random(0)
    minutes = [0.0] * 1440
    for _ in range(1150):
        minutes[draw.randrange(1440)] += draw.expovariate(1 / 30) / 60
    load = replace(steady(0.4, 30.0), service_second_moment_s2=1800.0, recent_loads=tuple(minutes))
    assert size(load).workers <= 3


def test_down_slowly_never_below_the_recent_need() -> None:
    recent = (PastNeed(age_s=60.0, workers=9), PastNeed(age_s=600.0, workers=30))
    need = size(steady(2.0), live=9, past=recent)
    assert need.workers == 9
    assert "9 kept, the need of the recent past" in need.reason
    assert need.load_workers == 3
    assert size(steady(2.0), live=9).workers == 3


def test_a_young_fleet_is_not_scaled_in() -> None:
    assert size(steady(2.0, slots=12), live=7).workers == 7
    assert size(steady(2.0), live=7, past=()).workers == 7


def test_missing_logs_hold() -> None:
    need = size(replace(steady(2.0), newest_log_age_s=200.0), live=6, booting=2)
    assert need.workers == 8
    assert need.reason == "no search log for 200 s: hold 8"


def test_logs_are_missing_when_the_fleet_document_says_so() -> None:
    assert POLICY.stale_s == SizingPolicy().stale_after_s
    assert POLICY.quiet_after_s == SizingPolicy().quiet_after_s


def test_what_was_needed_before_a_silence_counts_until_the_window_is_whole() -> None:
    silent = size(
        replace(steady(2.0), newest_log_age_s=200.0), past=(PastNeed(age_s=60.0, workers=9),)
    )
    assert silent.held
    assert silent.load_workers == 9
    held = PastNeed(age_s=600.0, workers=9, held=True)
    assert size(steady(2.0), live=9, past=(held,)).workers == 9
    assert size(steady(2.0), live=9, past=(replace(held, age_s=960.0),)).workers == 3


SILENT = replace(
    steady(2.0), arrivals=(0,) * 90, work_s=(0.0,) * 90, newest_log_age_s=900.0, queued=0
)
ZERO = replace(POLICY, min_workers=0)


def test_down_to_the_least_only_after_a_quiet_time_of_an_empty_queue() -> None:
    assert size(SILENT, live=4, policy=ZERO).workers == 4
    quiet = replace(SILENT, quiet_s=599.0)
    assert size(quiet, live=4, policy=ZERO).workers == 4
    need = size(replace(SILENT, quiet_s=600.0), live=4, policy=ZERO)
    assert (need.workers, need.reason) == (0, "no request for 600 s")
    assert size(replace(SILENT, quiet_s=600.0), live=4, policy=POLICY).workers == 1
    assert size(replace(SILENT, queued=None), live=4, policy=ZERO).workers == 4


@pytest.mark.parametrize(("queued", "service_s", "workers"), [(1, 2, 1), (1, 0, 1), (900, 2, 6)])
def test_what_waits_wakes_a_sleeping_fleet(queued: int, service_s: float, workers: int) -> None:
    waiting = replace(SILENT, queued=queued, service_mean_s=service_s)
    need = size(waiting, live=0, policy=ZERO)
    assert need.workers == workers
    assert need.reason == (
        f"{queued} requests wait and no search log is fresh: {workers} to start with"
    )
    assert size(waiting, live=0, booting=workers, policy=ZERO).workers == workers


def test_a_wake_stays_within_the_bound_and_says_what_lacks() -> None:
    need = size(replace(SILENT, queued=900), live=0, policy=replace(ZERO, max_workers=4))
    assert (need.workers, need.missing) == (4, 2)


def test_the_bound_holds_and_the_reason_says_by_how_much_the_promise_is_missed() -> None:
    need = size(steady(31.0), policy=replace(POLICY, max_workers=31))
    assert need.workers == 31
    assert need.missing >= 2
    assert f"the bound of 31 is {need.missing} short: about" in need.reason
    assert "instead of 95% in time" in need.reason


def test_a_backlog_is_drained_and_nothing_is_given_back_while_it_lasts() -> None:
    calm = steady(10.0)
    waiting = replace(calm, newest_wait_s=60.0)
    need = size(waiting, live=10)
    assert need.workers > size(steady(10.0), live=10).workers
    assert "while requests wait" in need.reason
    assert size(waiting, live=50).workers == 50


def test_waits_longer_than_the_window_still_scale_out() -> None:
    assert size(replace(steady(2.0), newest_wait_s=1_200.0), live=2).workers > 8


def test_a_known_queue_counts() -> None:
    queue = replace(steady(2.0), queued=3_000)
    assert size(queue, live=3).workers > 20


def test_a_fleet_that_was_often_wrong_plans_for_it() -> None:
    calm = replace(steady(20.0), recent_loads=(20.0,) * 720)
    jumpy = replace(steady(20.0), recent_loads=((20.0,) * 25 + (32.0,) * 5) * 24)
    assert size(jumpy).workers >= size(calm).workers + 8


def test_a_longer_start_up_plans_for_more() -> None:
    slow = replace(POLICY, start_up_s=1_200.0)
    assert size(steady(100.0), policy=slow).workers > size(steady(100.0)).workers


def test_a_dead_hour_says_nothing_about_errors() -> None:
    gap = replace(steady(20.0), recent_loads=(20.0,) * 300 + (0.0,) * 60 + (20.0,) * 300)
    calm = replace(steady(20.0), recent_loads=(20.0,) * 600)
    assert size(gap).workers <= size(calm).workers + 1


def test_the_daily_cycle_is_learned_and_named() -> None:
    day = (10.0,) * 143 + (20.0,) * 145
    loads = (day * 3)[: 2 * DAY_STEPS + 142]
    need = size(replace(steady(10.0), past_loads=loads))
    assert "that it usually rises at this time" in need.reason
    assert need.workers > size(replace(steady(10.0), past_loads=loads[:DAY_STEPS])).workers


def budget(requests: int, late: int, *, error: float = 0.0, hours: float = 24.0) -> LoadSummary:
    """What the last day's requests, or those of the hours that are known, spent of the budget."""
    known = round(hours * 60)
    day = replace(steady(1.7), recent_loads=(1.7,) * known, requests_last_day=requests)
    return replace(day, late_last_day=late, late_error=error)


def test_an_unspent_budget_allows_more_and_an_overspent_one_less() -> None:
    assert allowance(steady(1.7), 0.95) == pytest.approx(0.05)
    assert allowance(budget(100_000, 0), 0.95) > 0.3
    assert allowance(budget(100_000, 8_000), 0.95) < 0.01
    late = replace(steady(1.7), requests_last_day=100_000, late_last_day=20_000)
    assert size(late).workers > size(replace(late, late_last_day=0)).workers


def test_where_requests_are_rare_a_whole_day_of_them_counts_by_itself() -> None:
    assert allowance(budget(1_000, 25), 0.95) == pytest.approx(0.27, abs=0.01)
    assert allowance(budget(500, 12, hours=12.0), 0.95) < 0.19
    assert allowance(budget(20, 0, hours=0.5), 0.95) < 0.06


def test_late_requests_that_come_together_leave_room_for_as_many_again() -> None:
    one_by_one = budget(10_000, 300, error=math.sqrt(300))
    together = budget(10_000, 300, error=150.0)
    assert allowance(together, 0.95) < 0.7 * allowance(one_by_one, 0.95)
    assert allowance(budget(10_000, 400, error=400.0), 0.95) < 0.01


@pytest.mark.parametrize(
    ("requests", "newest_s", "day_s", "running_s"),
    [
        (900, 4.0, 0.0, 4.0),
        (900, 4.0, 4.2, 4.2),
        (900, 4.0, 60.0, 4.53),
        (900, 60.0, 4.0, 53.7),
        (6, 20.0, 60.0, 60.0),
        (6, 300.0, 60.0, 122.8),
    ],
)
def test_how_long_requests_run_is_the_days_as_far_as_the_newest_allow(
    requests: int, newest_s: float, day_s: float, running_s: float
) -> None:
    load = replace(
        steady(2.0),
        arrivals=(requests,),
        service_mean_s=10.0,
        service_second_moment_s2=10.0 * newest_s,
        running_last_day_s=day_s,
    )
    assert running(load) == pytest.approx(running_s, rel=0.01)


def test_two_long_requests_of_a_slot_prove_no_overload() -> None:
    seldom = replace(
        steady(0.4, service_s=60.0),
        arrivals=(0,) * 79 + (2,) + (0,) * 10,
        work_s=(0.0,) * 79 + (700.0,) + (0.0,) * 10,
        newest_start_age_s=30.0,
        newest_wait_s=70.0,
    )
    assert quick_level(seldom) < 1.0
    short = replace(seldom, service_mean_s=2.0, service_second_moment_s2=6.0)
    assert quick_level(short) > 20.0


def test_service_times_without_variance_or_with_endless_variance_give_a_bounded_answer() -> None:
    endless = replace(steady(31.0), service_second_moment_s2=1e9)
    assert size(endless, policy=replace(POLICY, max_workers=10_000)).workers < 120
    constant = replace(steady(31.0), service_second_moment_s2=4.0)
    assert size(constant).workers <= size(steady(31.0)).workers


@pytest.mark.parametrize(
    ("servers", "load", "exact"),
    [(1, 0.2, 0.2), (2, 0.4, 0.0667), (3, 1.9, 0.3985), (30, 25, 0.2499)],
)
def test_the_chance_of_a_delay_is_erlangs(servers: int, load: float, exact: float) -> None:
    assert delay_chance(servers, load / servers) == pytest.approx(exact, rel=0.05)


def test_the_chance_of_waiting_is_near_erlangs() -> None:
    # M/M/3 at 1.9 erlangs: Erlang C 0.399, times exp(-(3 - 1.9) x 2) for twice the service time.
    load = replace(steady(1.9), service_second_moment_s2=8.0)
    assert late_chance(3, 1.9, load, 4.0) == pytest.approx(0.0442, rel=0.25)
    assert late_chance(1, 1.9, load, 4.0) == 1.0
    assert late_chance(3, 0.0, load, 4.0) == 0.0
