"""Who is silent and who only idles: requests that passed a worker by, and none that did."""

from dataclasses import replace

import pytest

from spotkeeper.domain.health.reports import watch_reports
from spotkeeper.domain.load.load import Cluster
from tests.builders import at, fleet, group, instances
from tests.unit.health.seen import (
    HUNG,
    OLD,
    SPOT,
    busy,
    counted,
    diagnosed,
    load,
    passed,
    watched,
)


def test_a_worker_that_requests_passed_by_is_suspect() -> None:
    diagnosis = diagnosed(load(*busy(*SPOT[1:])), memory=HUNG)
    assert diagnosis.reasons == {
        SPOT[0]: "finished nothing for 3600 s while 20 requests were its share"
    }
    assert (diagnosis.replace, diagnosis.memory.silent) == ((), ())
    assert diagnosis.memory.suspects == {SPOT[0]: at(0)}


def test_one_long_request_is_no_silence() -> None:
    hung = replace(HUNG, last_logs={SPOT[0]: at(-300)})
    assert set(diagnosed(load(*busy(*SPOT[1:])), memory=hung).reasons) == {SPOT[0]}
    slow = replace(HUNG, last_logs={SPOT[0]: at(-299)})
    assert diagnosed(load(*busy(*SPOT[1:])), memory=slow).reasons == {}


@pytest.mark.parametrize(("by", "suspect"), [(0.0, False), (13.9, False), (14.0, True)])
def test_an_idle_worker_is_idle_and_not_silent(by: float, suspect: bool) -> None:
    seen = load(*busy(*SPOT[1:]))
    assert bool(diagnosed(seen, memory=passed(SPOT[0], by=by)).reasons) is suspect


def test_half_the_fleet_at_once_rather_lost_its_logs_unless_the_others_are_busy() -> None:
    half = passed(*SPOT[:3], of=replace(OLD, suspects=dict.fromkeys(SPOT[:3], at(-60))))
    at_ease = replace(load(*busy(*SPOT[3:])), load_rate={Cluster.AWS: 0.5})
    diagnosis = diagnosed(at_ease, memory=half)
    assert set(diagnosis.reasons) == set(SPOT[:3])
    assert (diagnosis.logs_missing, diagnosis.replace, diagnosis.memory.silent) == (3, (), ())
    busy_all = replace(at_ease, load_rate={Cluster.AWS: 1.0})
    assert diagnosed(busy_all, memory=half).replace == tuple(SPOT[:2])
    two = passed(*SPOT[:2], of=half)
    assert diagnosed(at_ease, memory=two).replace == tuple(SPOT[:2])


def test_requests_pass_by_who_has_no_log_and_are_forgotten_with_the_next_log() -> None:
    memory = watched(OLD, 0)
    assert set(memory.expected.values()) == {0.0}
    memory = watched(memory, 60, *SPOT[1:])
    memory = watched(memory, 120, *SPOT[1:])
    assert memory.expected == {SPOT[0]: 20.0, **dict.fromkeys(SPOT[1:], 0.0)}
    memory = watched(memory, 180, SPOT[0])
    assert memory.expected == {SPOT[0]: 0.0, **dict.fromkeys(SPOT[1:], 10.0)}


def test_who_fell_silent_between_turns_that_lie_apart_was_passed_by() -> None:
    memory = watched(OLD, 0)
    sent = [*counted(60, 60, SPOT[0]), *counted(300, 360)]
    members = (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    seen = watch_reports(memory, members, load(seconds=420), sent, fleet(), at(420))
    assert 30 < seen.expected[SPOT[0]] < 60 == seen.expected[SPOT[1]]


def test_nobody_is_passed_by_while_no_requests_come() -> None:
    memory = watched(OLD, 0)
    for minute in range(1, 600):
        memory = watched(memory, 60 * minute, requests=0)
    assert set(memory.expected.values()) == {0.0}


def test_an_instance_that_comes_leaves_or_is_unhealthy_is_not_judged() -> None:
    members = (group("spot", 6, instances(SPOT[2:], SPOT[:1], SPOT[1:2])), group("on-demand", 0))
    seen = load(*busy(*SPOT[2:]))
    diagnosis = diagnosed(seen, groups=members)
    assert diagnosis.reasons == {}
    assert diagnosis.memory.in_service_since.keys() == set(SPOT[2:])
    marked = replace(instances(SPOT[:1])[0], healthy=False)
    members = (group("spot", 6, (marked, *instances(SPOT[1:]))), group("on-demand", 0))
    assert diagnosed(load(*busy(*SPOT[1:])), groups=members).reasons == {}
