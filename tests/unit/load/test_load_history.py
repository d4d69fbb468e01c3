"""Steps of history and what the sizing rule is told of them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.load.arrivals import arrival_window
from spotkeeper.domain.load.digest import SearchLog
from spotkeeper.domain.load.history import (
    DAY_STEPS,
    KEPT_STEPS,
    LoadHistory,
    extended,
    load_summary,
)
from spotkeeper.domain.load.load import LoadDigest
from tests.laws import shuffles
from tests.search_logs import SENT, digest_of, log

FRESH = LoadHistory()


def steady(
    minutes: int, until: datetime = SENT, *, waited: float = 0.0, every_s: int = 5
) -> list[LoadDigest]:
    """A request of a second every so many seconds, each in a message of its own."""
    sent = [until - timedelta(seconds=ago_s) for ago_s in range(0, 60 * minutes, every_s)]
    return [digest_of([_served(at, waited)], at) for at in sent]


def _served(finished: datetime, waited: float) -> SearchLog:
    started = finished - timedelta(seconds=1)
    return log(
        1,
        0,
        request_id=finished.isoformat(),
        enqueued_at=started - timedelta(seconds=waited),
        started_at=started,
        finished_at=finished,
    )


def after(
    digests: Sequence[LoadDigest], now: datetime = SENT, history: LoadHistory = FRESH
) -> LoadHistory:
    """The history with what has settled by now."""
    return extended(history, digests, arrival_window(digests, now, 900), 10)


def test_only_whole_steps_that_have_settled_are_added() -> None:
    digests = steady(15)
    history = after(digests)
    assert history.work_ms == (60_000, 60_000)
    assert history.minute_work_ms == (12_000,) * 10
    assert (history.requests, history.late, history.roughness) == ((59, 60), (0, 0), (0, 0))
    assert history.squares == (59 * 1_000**2, 60 * 1_000**2)
    soon, settled = SENT + timedelta(seconds=59), SENT + timedelta(seconds=60)
    assert after(digests, soon, history) is history
    assert after(digests, settled, history).work_ms == (60_000,) * 3


def test_late_starts_are_counted_by_the_objective() -> None:
    assert after(steady(15, waited=9)).late == (0, 0)
    assert after(steady(15, waited=20)).late == (59, 60)


def test_nothing_is_added_before_the_first_log() -> None:
    assert after([]) is FRESH


def test_steps_that_no_turn_saw_are_quiet() -> None:
    history = after(steady(15))
    later = SENT + timedelta(hours=1)
    assert after(steady(15, later), later, history).work_ms == (
        60_000,
        60_000,
        *[0] * 10,
        60_000,
        60_000,
    )
    assert len(after(steady(15, later), later, history).minute_work_ms) == 14 * 5


def test_a_history_stays_bounded() -> None:
    long = LoadHistory(
        next_step=after(steady(15)).next_step - 1,
        work_ms=(1,) * KEPT_STEPS,
        requests=(1,) * DAY_STEPS,
        late=(0,) * DAY_STEPS,
        roughness=(0,) * DAY_STEPS,
        minute_work_ms=(0,) * (5 * DAY_STEPS),
        squares=(0,) * DAY_STEPS,
    )
    history = after(steady(15), SENT, long)
    assert (len(history.work_ms), len(history.requests)) == (KEPT_STEPS, DAY_STEPS)
    assert len(history.minute_work_ms) == 5 * DAY_STEPS
    assert len(history.squares) == DAY_STEPS
    away = after(steady(15, SENT + timedelta(days=99)), SENT + timedelta(days=99), long)
    assert away.work_ms == (*[0] * (KEPT_STEPS - 2), 60_000, 60_000)


@given(shuffles, st.integers(0, 3600))
def test_order_and_repetition_of_digests_do_not_matter(random: Random, seconds: int) -> None:
    now = SENT + timedelta(seconds=seconds)
    digests = steady(12, now, every_s=random.randrange(17, 61))
    shuffled = [*digests, *random.sample(digests, 9)]
    random.shuffle(shuffled)
    assert after(shuffled, now) == after(digests, now)


def test_a_young_fleet_is_not_taken_for_a_quiet_one() -> None:
    digests = steady(3)
    seen = arrival_window(digests, SENT, 900)
    summary = load_summary(seen, FRESH, SENT, SENT)
    assert len(summary.arrivals) == 18
    old = LoadHistory(next_step=after(steady(15)).next_step, work_ms=(1,) * 9)
    assert len(load_summary(seen, old, SENT, SENT).arrivals) == 90


def test_the_summary_says_what_the_logs_say() -> None:
    digests = steady(15, waited=3)
    summary = load_summary(arrival_window(digests, SENT, 900), after(digests), SENT, SENT)
    assert summary.arrivals == (2,) * 90
    assert summary.work_s == (2.0,) * 90
    assert (summary.service_mean_s, summary.service_second_moment_s2) == (1, 1)
    assert (summary.newest_start_age_s, summary.newest_wait_s) == (1, 3)
    assert (summary.newest_log_age_s, summary.past_loads) == (0, (0.2, 0.2))
    assert (summary.recent_loads, summary.recent_step_s) == ((0.2,) * 10, 60)
    assert (summary.requests_last_day, summary.late_last_day, summary.peakedness) == (119, 0, 1)


def test_late_requests_and_long_ones_of_the_day_are_told() -> None:
    history = LoadHistory(
        next_step=9, work_ms=(500_000, 8_000, 12_000), late=(3, 4), squares=(16_000**2, 4_000**2)
    )
    summary = load_summary(arrival_window(steady(15), SENT, 900), history, SENT, SENT)
    assert (summary.late_last_day, summary.late_error) == (7, 5)
    assert summary.running_last_day_s == pytest.approx((16**2 + 4**2) / 20)


def test_bursts_are_peaked() -> None:
    history = LoadHistory(
        next_step=1, work_ms=(60_000,), requests=(60,), late=(0,), roughness=(30 * 12_000**2,)
    )
    seen = arrival_window(steady(15), SENT, 900)
    assert load_summary(seen, history, SENT, SENT).peakedness == pytest.approx(36)
    calm = replace(history, roughness=(1,))
    assert load_summary(seen, calm, SENT, SENT).peakedness == 1
