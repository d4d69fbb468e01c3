"""Workers serve every request once, in order; instances serve as the agent's rules say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.cloud.values import IN_SERVICE, InstanceView, Purchase
from spotkeeper_lab.traces.requests import generate_requests
from spotkeeper_lab.workers import POLL_S, VISIBILITY_S, Machines, Served, Workforce

ONE = "i-00000000000000001"
IN_USE = InstanceView(
    instance_id=ONE,
    pool="a/x",
    purchase=Purchase.SPOT,
    group="spot",
    state=IN_SERVICE,
    healthy=True,
    launched_s=0.0,
    in_service_s=0.0,
    serves_s=0.0,
    warned_s=None,
    gone_s=None,
    ended_s=None,
    lost=False,
)


def test_a_warning_that_is_taken_back_means_serving_again() -> None:
    force = Workforce((), lambda _: None)
    machines = Machines(force, notice_s=120.0)
    machines.update([IN_USE], 0.0)
    at_s, marked = 100.0, replace(IN_USE, gone_s=101.0)
    next_s = machines.update([marked], at_s)
    while next_s is not None and force.serving(ONE):
        at_s = next_s
        next_s = machines.update([marked], at_s)
    assert not force.serving(ONE)
    assert at_s <= 100.0 + POLL_S
    machines.update([IN_USE], 110.0)
    machines.update([IN_USE], 110.0 + POLL_S)
    assert force.serving(ONE)


# --- workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["lose", "hang"])
def test_a_request_of_a_lost_worker_is_delivered_again(end: str) -> None:
    served: list[Served] = []
    force = Workforce([(0, 10)], served.append)
    force.join("i-1")
    force.advance(5)
    getattr(force, end)("i-1")
    force.join("i-2")
    force.advance(100)
    assert [(s.instance_id, s.started_s) for s in served] == [("i-2", 5 + VISIBILITY_S)]
    assert force.lost == []


CHANGES = [(number, change) for number in range(4) for change in ("join", "lose", "hang")]


@given(seed=st.integers(0, 1000), changes=st.lists(st.sampled_from(CHANGES), max_size=20))
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
    assert sorted([*(s.request for s in served), *force.lost]) == list(range(len(requests)))
    assert all(s.enqueued_s <= s.started_s <= s.finished_s for s in served)
