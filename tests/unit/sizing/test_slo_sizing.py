"""The sizing rule by example: what it asks for, and what it says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from spotkeeper.domain.load.history import ArrivalLog, LoadSummary
from spotkeeper.domain.sizing.shadows import Member, ObjectivePolicy, erlang_workers
from spotkeeper.domain.sizing.size import Need, PastNeed, size_to_objective

POLICY = ObjectivePolicy(wait_s=10.0, share=0.95, min_workers=1, max_workers=200, start_up_s=240.0)
FIVE_MINUTES = Member(300, 0.0, 300)


def steady(load: float, service_s: float = 2.0, slots: int = 90) -> LoadSummary:
    """Fifteen minutes at a constant load, the newest seconds still running."""
    per_slot = load * 10.0 / service_s
    missing_s = 1.5 * service_s + 2.0
    times_s = [min(10.0 * slot, 10.0 * slots - missing_s) for slot in range(slots + 1)]
    edges = [round(per_slot * time_s / 10.0) for time_s in times_s]
    arrivals = [after - before for before, after in itertools.pairwise(edges)]
    return LoadSummary(
        log=ArrivalLog(0, arrivals, [count * service_s for count in arrivals]),
        service_mean_s=service_s,
        newest_start_age_s=4.0,
        newest_wait_s=0.0,
    )


def size(
    load: LoadSummary,
    live: int = 1,
    booting: int = 0,
    policy: ObjectivePolicy = POLICY,
    past: tuple[PastNeed, ...] = (PastNeed(age_s=600.0, workers=1),),
) -> Need:
    return size_to_objective(load, live, booting, past, policy, FIVE_MINUTES)


@pytest.mark.parametrize(
    ("load", "fewest", "most"),
    [(0.5, 1, 2), (1.2, 2, 2), (2.0, 3, 3), (31.0, 32, 33), (300.0, 301, 305)],
)
def test_workers_for_a_steady_load(load: float, fewest: int, most: int) -> None:
    policy = replace(POLICY, max_workers=1_000)
    assert fewest <= size(steady(load), policy=policy).workers <= most


def test_a_strict_promise_about_short_waits_needs_more_than_the_load() -> None:
    strict = replace(POLICY, wait_s=0.5, share=0.99)
    assert size(steady(31.0, service_s=6.0), policy=strict).workers >= 41


def test_down_as_the_rule_says_and_after_a_silence_not_below_what_was_held() -> None:
    before = (PastNeed(age_s=60.0, workers=9), PastNeed(age_s=600.0, workers=30))
    assert size(steady(2.0), live=9, past=before).workers == 3
    held = PastNeed(age_s=600.0, workers=9, held=True)
    need = size(steady(2.0), live=9, past=(*before, held))
    assert need.workers == 9
    assert "9 kept, the need of the recent past" in need.reason
    assert need.load_workers == 3
    assert size(steady(2.0), live=9, past=(held._replace(age_s=960.0),)).workers == 3


def test_a_young_fleet_is_not_scaled_in() -> None:
    assert size(steady(2.0, slots=12), live=7).workers == 7
    assert size(steady(2.0), live=7, past=()).workers == 7


def test_a_young_fleet_keeps_what_a_spike_needed_for_the_next_one() -> None:
    """Three erlangs, and twelve for two minutes, 20 minutes ago."""
    calm = steady(3.0, slots=180)
    requests = [4 * n if 54 <= at < 66 else n for at, n in enumerate(calm.log.requests)]
    spiky = replace(calm, log=ArrivalLog(0, requests, [2.0 * n for n in requests]))
    past = (PastNeed(age_s=600.0, workers=1),)
    assert size_to_objective(calm, 5, 0, past, POLICY).workers <= 5
    assert 12 <= size_to_objective(spiky, 5, 0, past, POLICY).workers <= 14


def test_a_young_fleet_does_not_keep_a_minute_that_chance_explains() -> None:
    """Twenty erlangs, and 24 or 36 for a minute, 20 minutes ago."""
    calm = steady(20.0, slots=192)
    past = (PastNeed(age_s=600.0, workers=1),)

    def after(erlangs: float) -> int:
        requests = list(calm.log.requests)
        requests[63:69] = [round(erlangs / 20 * n) for n in requests[63:69]]
        log = ArrivalLog(0, requests, [2.0 * n for n in requests])
        return size_to_objective(replace(calm, log=log), 25, 0, past, POLICY).workers

    assert after(24.0) <= 22
    assert after(36.0) >= 36


def test_while_no_request_is_known_the_fleet_holds() -> None:
    nothing = replace(steady(2.0), log=ArrivalLog(0, [0] * 90, [0.0] * 90), service_mean_s=0.0)
    assert size(nothing, live=6, booting=2).workers == 8


def test_a_backlog_is_drained_and_nothing_is_given_back_while_it_lasts() -> None:
    calm = steady(10.0)
    waiting = replace(calm, newest_wait_s=60.0)
    need = size(waiting, live=10)
    assert need.workers > size(steady(10.0), live=10).workers
    assert "while requests wait" in need.reason
    assert size(waiting, live=50).workers == 50


def test_a_step_is_seen_in_the_seconds_of_it_that_were_served() -> None:
    """One erlang, then forty: two minutes later two workers have served ten seconds of that."""
    requests = [5] * 77 + [200] + [0] * 12
    load = replace(
        steady(1.0),
        log=ArrivalLog(0, requests, [2.0 * n for n in requests]),
        newest_wait_s=110.0,
        newest_start_age_s=10.0,
    )
    assert 40 <= size(load, live=2).workers <= 80
    assert size(replace(load, newest_wait_s=30.0, newest_start_age_s=90.0), live=2).workers < 20


def test_a_known_queue_counts() -> None:
    queue = replace(steady(2.0), queued=3_000)
    assert size(queue, live=3).workers > 20


@pytest.mark.parametrize(
    ("load", "wait_s", "share", "workers"),
    [(0.0, 10, 0.95, 1), (0.5, 10, 0.95, 1), (1.9, 4, 0.95, 3), (25, 0, 0.7501, 30)],
)
def test_workers_are_erlangs(load: float, wait_s: float, share: float, workers: int) -> None:
    assert erlang_workers(load, 2.0, wait_s, share) == workers


def test_a_need_is_kept_as_long_as_the_member_keeps_it() -> None:
    busy, calm = steady(9.0, slots=30), steady(2.0, slots=48)
    log = ArrivalLog(
        0, [*busy.log.requests, *calm.log.requests], [*busy.log.work_s, *calm.log.work_s]
    )
    load = replace(calm, log=log)
    past = (PastNeed(age_s=600.0, workers=1),)
    short, long = (
        size_to_objective(load, 1, 0, past, POLICY, Member(120, 0.0, keep_s))
        for keep_s in (180, 1_800)
    )
    assert short.workers == 3
    assert long.workers >= 10
    assert f"needs 3 workers, {long.workers} in the last 30 min" in long.reason
