"""Workers serve every request once, in order, however instances come and go."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.traces.requests import generate_requests
from spotkeeper_lab.workers import MAX_RECEIVES, VISIBILITY_S, Workforce

if TYPE_CHECKING:
    from spotkeeper_lab.machines import Served


def test_requests_are_served_in_order_by_one_worker() -> None:
    served: list[Served] = []
    force = Workforce([(0, 10), (1, 5), (2, 1)], served.append)
    force.join("i-1")
    force.advance(100)
    assert [(s.request, s.started_s, s.finished_s) for s in served] == [
        (0, 0, 10),
        (1, 10, 15),
        (2, 15, 16),
    ]
    assert {(s.worker_id, s.instance_id) for s in served} == {("i-1/0", "i-1")}


def test_an_instance_runs_several_workers_and_machines_of_our_own_serve_too() -> None:
    served: list[Served] = []
    force = Workforce(
        [(0, 10), (0, 10), (0, 10)], served.append, workers_per_instance=2, onprem_workers=1
    )
    force.join("i-1")
    force.advance(10)
    assert {s.worker_id for s in served} == {"onprem-0", "i-1/0", "i-1/1"}
    assert {s.finished_s for s in served} == {10}


def test_a_draining_worker_finishes_and_takes_nothing_more() -> None:
    served: list[Served] = []
    force = Workforce([(0, 10), (1, 10)], served.append)
    force.join("i-1")
    force.advance(5)
    force.drain(["i-1", "i-unknown"])
    force.advance(100)
    assert [s.request for s in served] == [0]
    assert not force.serving("i-1")
    assert force.queued == 1


@pytest.mark.parametrize("end", ["lose", "hang"])
def test_a_request_of_a_lost_worker_comes_back_and_is_late(end: str) -> None:
    served: list[Served] = []
    force = Workforce([(0, 10)], served.append)
    force.join("i-1")
    force.advance(5)
    getattr(force, end)("i-1")
    force.join("i-2")
    force.advance(100)
    assert [(s.instance_id, s.started_s) for s in served] == [("i-2", 5 + VISIBILITY_S)]
    assert force.ledger.late(100, 10.0) == 1
    assert force.ledger.lost == []


def test_a_request_is_given_up_after_its_last_receive() -> None:
    force = Workforce([(0, 100)], lambda _: None)
    for n in range(MAX_RECEIVES):
        force.join(f"i-{n}")
        force.advance(force.now_s + 1)
        force.lose(f"i-{n}")
        force.advance(force.now_s + VISIBILITY_S)
    assert force.ledger.lost == [0]
    assert force.ledger.late(1000, 10.0) == 0
    assert force.queued == 0


def test_what_never_starts_is_late_once_it_has_waited_long_enough() -> None:
    force = Workforce([(0, 1), (95, 1)], lambda _: None)
    force.advance(100)
    assert force.ledger.late(100, 10.0) == 1


CHANGES = [(number, change) for number in range(4) for change in ("join", "lose", "hang")]


@given(
    seed=st.integers(0, 1000),
    changes=st.lists(st.sampled_from(CHANGES), max_size=20),
)
def test_every_request_is_served_once_lost_or_still_there(
    seed: int, changes: list[tuple[int, str]]
) -> None:
    served: list[Served] = []
    requests = generate_requests(seed, hours=0.05)
    pairs = zip(requests.arrival_s, requests.service_s, strict=True)
    force = Workforce(pairs, served.append, onprem_workers=1)
    for step, (number, change) in enumerate(changes):
        force.advance(step * 10.0)
        getattr(force, change)(f"i-{number}")
    force.advance(100_000.0)
    assert sorted([*(s.request for s in served), *force.ledger.lost]) == list(range(len(requests)))
    assert all(s.enqueued_s <= s.started_s <= s.finished_s for s in served)
