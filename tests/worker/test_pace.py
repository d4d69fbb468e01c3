"""When a message of search logs is sent: sooner while load moves, later while it stands still."""

import itertools
from collections.abc import Callable

from bench.cost import GOAL_USD, sent
from spotkeeper_lab.traces.requests import generate_requests
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.logs.pace import Pace, PaceSettings


def paced(rates: list[tuple[float, float]], wait_s: Callable[[float], float]) -> list[float]:
    """When a worker sends messages. `rates` are pairs of seconds and logs per second."""
    now, sent, pace = 0.0, [], Pace(PaceSettings(latest_s=30.0), 0.0)
    credit = 0.0
    for seconds, rate in rates:
        for _ in range(int(seconds)):
            now += 1.0
            credit += rate
            while credit >= 1.0:
                credit -= 1.0
                pace.add(300, wait_s(now), now)
            if pace.due(now):
                pace.sent(now)
                sent.append(now)
    return sent


def test_while_nothing_moves_messages_are_rare() -> None:
    sent = paced([(900, 2.0)], lambda now: 0.1)
    late = [at for at in sent if at > 300]
    assert all(after - before == 30.0 for before, after in itertools.pairwise(late))


def test_a_step_is_told_within_seconds() -> None:
    sent = paced([(600, 2.0), (60, 6.0)], lambda now: 0.1)
    assert next(at for at in sent if at > 600) <= 606
    gaps = [b - a for a, b in itertools.pairwise(sent) if 600 < a <= 640]
    assert max(gaps) < 15


def test_waits_that_grow_are_told_though_the_worker_is_no_faster() -> None:
    sent = paced([(600, 1.0), (60, 1.0)], lambda now: 0.1 if now <= 600 else now - 600)
    assert next(at for at in sent if at > 600) <= 615


def test_no_log_waits_for_longer_than_it_may() -> None:
    pace = Pace(PaceSettings(), 0.0)
    for number in range(100):
        pace.add(300, 0.1, 3.0 * number)
        if pace.due(3.0 * number):
            pace.sent(3.0 * number)
    pace.sent(300.0)
    pace.add(300, 0.1, 307.0)
    assert not pace.due(316.9)
    assert pace.due(317.0)


def test_a_full_message_does_not_wait() -> None:
    pace = Pace(PaceSettings(), 0.0)
    for _ in range(500):
        pace.add(300, 0.0, 0.0)
    assert pace.due(0.0)


def test_the_default_pace_is_as_fresh_as_every_ten_seconds_and_keeps_the_bill() -> None:
    default = Settings()
    assert PaceSettings(default.send_after_s, default.send_at_most_s) == PaceSettings()
    day = generate_requests(0, hours=1.0, mean_load=10.0)
    by_default, before = sent(day, PaceSettings()), sent(day, PaceSettings(10, 10))
    assert by_default.mean_age_s <= before.mean_age_s < sent(day, PaceSettings(5, 30)).mean_age_s
    assert by_default.usd() < GOAL_USD
