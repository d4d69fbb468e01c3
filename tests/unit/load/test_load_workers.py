"""How many workers ran at one time, whatever ids they had."""

from random import Random

import pytest

from spotkeeper.domain.load.load import Load, WorkerLoad
from spotkeeper.domain.load.summarise import onprem_at_once
from tests.builders import at
from tests.search_logs import worker

WINDOW_S = 300.0


def life(name: str, begins_s: float, ends_s: float, every_s: float) -> WorkerLoad:
    """A worker on premises that finishes a request every so often between two instants."""
    finished = max(1, round((ends_s - begins_s) / every_s))
    return worker(name, finished=finished, began=at(begins_s), last_finished=at(ends_s))


def seen(*workers: WorkerLoad) -> Load:
    return Load(at=at(WINDOW_S), window_s=int(WINDOW_S), workers=workers)


@pytest.mark.parametrize(
    ("lives", "count"),
    [
        pytest.param((), 0, id="nobody"),
        pytest.param([(0, 300)] * 20, 20, id="all the time"),
        pytest.param([(0, 100)] * 20 + [(160, 300)] * 20, 20, id="restarted at once"),
        pytest.param([(0, 100)] * 20 + [(100, 300)] * 20, 40, id="ids that meet may both be there"),
        pytest.param(
            [(0, 15 * n) for n in range(20)] + [(15 * n + 5, 300) for n in range(20)],
            21,
            id="one after the other",
        ),
        pytest.param([(0, 300)] * 5 + [(240, 300)] * 15, 20, id="more came"),
    ],
)
def test_workers_that_ran_at_one_time(lives: list[tuple[float, float]], count: int) -> None:
    workers = [life(f"rack-{n}", begins, ends, 5.0) for n, (begins, ends) in enumerate(lives)]
    assert onprem_at_once(seen(*workers)) == count


@pytest.mark.parametrize("mean_s", [2.0, 20.0, 100.0, 1_000.0])
def test_no_worker_is_missing_where_requests_are_random(mean_s: float) -> None:
    random, workers = Random(0), list[WorkerLoad]()
    for n in range(20):
        ends_s = [random.expovariate(1 / mean_s)]
        while ends_s[-1] < WINDOW_S:
            ends_s.append(ends_s[-1] + random.expovariate(1 / mean_s))
        if ends_s[1:]:
            workers.append(life(f"rack-{n}", ends_s[0], ends_s[-2], mean_s))
    assert onprem_at_once(seen(*workers)) == len(workers) > 0
