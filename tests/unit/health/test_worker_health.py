"""Who fails, who is slow, and who is replaced: workers, not instances."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.health.diagnosis import confirm, replaced
from spotkeeper.domain.load.histogram import histogram
from spotkeeper.domain.load.load import Cluster, WorkerLoad
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy
from tests.builders import at, fleet, group, instances
from tests.search_logs import SENT, digest_of, log
from tests.unit.health.seen import (
    HUNG,
    OLD,
    SPOT,
    busy,
    diagnosed,
    load,
    onprem,
    paced,
    passed,
    worker,
)


@pytest.mark.parametrize(
    ("finished", "failed", "suspect"),
    [(5, 5, True), (4, 4, False), (10, 9, True), (10, 8, False), (100, 0, False)],
)
def test_a_worker_that_fails_almost_everything_is_suspect(
    finished: int, failed: int, suspect: bool
) -> None:
    diagnosis = diagnosed(load(worker(SPOT[0], finished, failed), *busy(*SPOT[1:])))
    assert (diagnosis.reasons.get(SPOT[0]) == f"{failed} of {finished} requests failed") is suspect


def test_when_most_fail_the_service_is_ill_and_nobody_is_replaced() -> None:
    for ill in (4, 5, 6):
        failing = [worker(i, 10, 10) for i in SPOT[:ill]]
        assert diagnosed(load(*failing, *busy(*SPOT[ill:]))).reasons == {}
    half = [worker(i, 10, 10) for i in SPOT[:3]]
    assert set(diagnosed(load(*half, *busy(*SPOT[3:]))).reasons) == set(SPOT[:3])


def test_those_that_failed_and_are_gone_still_tell_that_the_service_is_ill() -> None:
    """AWS takes nine of twelve while all requests fail: the last three are no exceptions."""
    gone = [worker(f"i-0000000000000{n:03d}", 10, 10) for n in range(9)]
    left = [worker(i, 10, 10) for i in SPOT[:3]]
    assert diagnosed(load(*gone, *left)).reasons == {}


def test_an_instance_alone_is_never_told_from_its_service() -> None:
    alone = (group("spot", 1, instances(SPOT[:1])), group("on-demand", 0))
    assert diagnosed(load(worker(SPOT[0], 10, 10)), groups=alone).reasons == {}
    assert diagnosed(load(worker(SPOT[0], last=-400)), groups=alone).reasons == {}


@pytest.mark.parametrize(
    ("mean_s", "finished", "suspect"),
    [(6.0, 10, True), (5.9, 10, False), (6.0, 9, False), (60.0, 100, True), (0.1, 10, False)],
)
def test_a_worker_three_times_slower_than_its_peers_is_suspect(
    mean_s: float, finished: int, suspect: bool
) -> None:
    peers = [paced(i, 2.0) for i in SPOT[1:]]
    reasons = diagnosed(load(paced(SPOT[0], mean_s, finished), *peers)).reasons
    slow = f"serves {mean_s / 2:.1f} times slower than its peers"
    assert reasons == ({SPOT[0]: slow} if suspect else {})


def test_long_requests_by_chance_do_not_make_a_worker_slow() -> None:
    peers = [paced(i, 2.0) for i in SPOT[1:]]
    uneven = histogram([100] * 90 + [30_000] * 10)
    assert uneven.squared_variation > 5
    seen = replace(load(paced(SPOT[0], 8.0), *peers), service=uneven)
    assert diagnosed(seen).reasons == {}


def test_logs_that_were_held_up_make_nobody_slow_who_came_since() -> None:
    """All serve alike: the old ones for ten minutes, the new one for the last of them."""
    held_up = [
        log(began, began - 2.0, worker=i, instance_id=i, cluster=Cluster.AWS)
        for i in SPOT
        for began in range(2, 60 if i == SPOT[0] else 600, 3)
    ]
    seen = summarise([digest_of(held_up)], SENT, 120)
    assert diagnosed(seen).reasons == {}


def test_requests_that_fail_at_once_are_no_measure_of_speed() -> None:
    """A healthy worker was replaced as 18.6 times slower than its failing peers."""
    failing = [replace(paced(i, 0.1), failed=12) for i in SPOT[1:]]
    assert diagnosed(load(paced(SPOT[0], 2.0), *failing)).reasons == {}


def test_slow_needs_peers_of_the_same_kind() -> None:
    rack = [replace(it, served_s=9.0) for it in onprem(9)]
    pair = (group("spot", 2, instances(SPOT[:2])), group("on-demand", 0))
    seen = load(paced(SPOT[0], 9.0), paced(SPOT[1], 1.0), *rack)
    assert diagnosed(seen, groups=pair).reasons == {}


def test_two_observations_make_a_suspect_due() -> None:
    first = diagnosed(load(*busy(*SPOT[1:])), memory=HUNG)
    second = diagnosed(load(*busy(*SPOT[1:], seconds=60), seconds=60), memory=first.memory)
    assert (first.replace, second.replace) == ((), (SPOT[0],))
    assert second.memory.silent == (SPOT[0],)
    assert second.memory.suspects == {SPOT[0]: at(0)}


def test_a_turn_that_goes_round_again_has_not_observed_twice() -> None:
    seen = load(*busy(*SPOT[1:]))
    first = diagnosed(seen, memory=HUNG)
    assert diagnosed(seen, memory=first.memory).replace == ()
    soon = load(*busy(*SPOT[1:], seconds=29), seconds=29)
    assert diagnosed(soon, memory=first.memory).replace == ()


def test_a_suspect_that_works_again_starts_afresh() -> None:
    first = diagnosed(load(*busy(*SPOT[1:])), memory=HUNG)
    reported = replace(first.memory, expected={})
    well = diagnosed(load(*busy(*SPOT, seconds=60), seconds=60), memory=reported)
    assert well.memory.suspects == {}
    ill = load(*busy(*SPOT[1:], seconds=600), worker(SPOT[0], last=60), seconds=600)
    assert diagnosed(ill, memory=passed(SPOT[0], of=well.memory)).replace == ()


def test_the_last_check_spares_who_works_in_freshly_read_logs() -> None:
    due = diagnosed(load(*busy(*SPOT[1:])), memory=replace(HUNG, suspects={SPOT[0]: at(-60)}))
    assert due.replace == (SPOT[0],)
    assert confirm(due, load(*busy(*SPOT)), fleet(), at(0)) == ()
    assert confirm(due, load(*busy(*SPOT[1:])), fleet(), at(0)) == (SPOT[0],)


def test_replacements_stay_within_the_budget_of_an_hour() -> None:
    suspects = replace(OLD, suspects={i: at(-60) for i in SPOT[:4]})
    ill = replace(load(*busy(*SPOT[4:])), load_rate={Cluster.AWS: 1.0})
    first = diagnosed(ill, memory=passed(*SPOT[:4], of=suspects))
    assert (first.replace, first.over_budget) == (tuple(SPOT[:2]), tuple(SPOT[2:4]))
    assert first.memory.silent == tuple(SPOT[:4])
    spent = replaced(first.memory, first.replace, at(0))
    assert spent.suspects.keys() == set(SPOT[2:4])
    # Asked for up to half a minute after the turn began that is remembered.
    later = diagnosed(replace(ill, at=at(3629)), memory=spent)
    assert (later.replace, set(later.over_budget)) == ((), set(SPOT[2:4]))
    renewed = diagnosed(replace(ill, at=at(3630)), memory=later.memory)
    assert set(renewed.replace) == set(SPOT[2:4])


def test_switched_off_it_judges_nobody_but_remembers_who_serves() -> None:
    off = diagnosed(load(*busy(*SPOT[1:])), memory=HUNG, policy=WorkerHealthPolicy(enabled=False))
    assert (off.reasons, off.memory.in_service_since) == ({}, OLD.in_service_since)


WORKERS = st.lists(
    st.builds(
        worker,
        st.sampled_from([*SPOT, "i-0f0f0f0f0f0f0f0f0"]),
        st.integers(1, 40),
        st.integers(0, 40),
        last=st.integers(-900, 0),
        name=st.sampled_from(["left", "right"]),
    ),
    max_size=12,
)


@given(WORKERS, st.integers(0, 4), st.lists(st.integers(0, 5400), max_size=4))
def test_nobody_is_replaced_without_reason_second_look_and_budget(
    workers: list[WorkerLoad], budget: int, ages_s: list[int]
) -> None:
    policy = WorkerHealthPolicy(replacements_per_hour=budget)
    memory = replace(
        OLD, suspects={i: at(-60) for i in SPOT[:3]}, replaced=tuple(at(-age) for age in ages_s)
    )
    diagnosis = diagnosed(load(*workers), memory=memory, policy=policy)
    assert set(diagnosis.replace) <= diagnosis.reasons.keys() & set(SPOT[:3])
    lately = sum(age < 3600 for age in ages_s)
    assert len(diagnosis.replace) <= max(0, budget - lately)
    assert set(confirm(diagnosis, load(*workers), fleet(), at(0))) <= set(diagnosis.replace)
