"""Workers that never reported, or stopped all together: bootstrap failures, hangs, missing logs."""

from dataclasses import replace

import pytest

from spotkeeper.domain.health.diagnosis import confirm, replaced
from spotkeeper.domain.health.reports import not_met
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.load import Cluster
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.load.slots import slot_of
from tests.builders import at, fleet, ids
from tests.unit.health.seen import (
    OLD,
    SPOT,
    busy,
    diagnosed,
    load,
    nobody_reports,
    onprem,
    passed,
    starting,
    untouched,
)


@pytest.mark.parametrize(("since", "suspect"), [(-599, False), (-600, True), (-9000, True)])
def test_workers_that_never_report_are_bootstrap_failures_after_the_launch_deadline(
    since: float, suspect: bool
) -> None:
    diagnosis = diagnosed(load(*busy(*SPOT[1:])), memory=starting(since))
    assert diagnosis.bootstrap == ((SPOT[0],) if suspect else ())
    never = f"never reported in {-since:.0f} s: its workers do not start"
    assert diagnosis.reasons == ({SPOT[0]: never} if suspect else {})
    assert diagnosis.memory.unreported == {SPOT[0]: at(since)}
    assert diagnosis.memory.never_reported == diagnosis.bootstrap


@pytest.mark.parametrize(("until", "late"), [(-301, False), (-300, True), (-1, True)])
def test_who_came_just_before_logs_stopped_is_no_bootstrap_failure(
    until: float, late: bool
) -> None:
    """Others were heard of beside it for as long as a worker may be silent, or for less."""
    memory = replace(starting(-600), flow=LogFlow(newest=at(until)))
    assert diagnosed(load(), memory=memory).bootstrap == ((SPOT[0],) if late else ())


@pytest.mark.parametrize(
    ("since", "by", "rate", "launching"),
    [
        (0, 0.0, 1.0, True),  # 100 requests would come its way until the deadline
        (0, 0.0, 0.1, False),  # 10 would: too few to tell
        (-60, 8.0, 0.1, True),
        (-9000, 13.0, 1.0, False),  # Nobody could have reported, so it serves.
    ],
)
def test_in_service_is_launching_while_it_would_have_reported_by_its_deadline(
    since: float, by: float, rate: float, launching: bool
) -> None:
    seen = replace(load(*busy(*SPOT[1:])), arrival_rate=rate)
    memory = diagnosed(seen, memory=starting(since, by=by)).memory
    assert memory.unreported == ({SPOT[0]: at(since)} if launching else {})


@pytest.mark.parametrize(
    ("lately", "silence_s", "since", "known"),
    [
        (0.005, 60, -60, False),  # Three requests an hour are the share of each of six.
        (0.0049, 60, -60, True),
        (0.005, 60, -90_000, False),
        (0.005, 9000, -3599, False),  # No request comes any more: it cannot be told.
        (0.005, 9000, -3600, True),
        (0.0, 60, -60, True),
    ],
)
def test_who_never_reported_may_not_serve_where_requests_are_rare(
    lately: float, silence_s: float, since: float, known: bool
) -> None:
    flow = LogFlow(newest=at(-silence_s), rate=0.005, lately=lately, watched_since=at(-7200))
    memory = replace(starting(since, by=0.0), flow=flow)
    diagnosis = diagnosed(load(), memory=memory)
    assert diagnosis.memory.unheard == (() if known else (SPOT[0],))
    assert (diagnosis.reasons, diagnosis.memory.unreported) == ({}, {})


def test_minutes_without_a_request_since_memory_was_lost_prove_no_worker() -> None:
    flow = LogFlow(newest=at(-60), rate=0.005, lately=0.0, watched_since=at(-90))
    memory = replace(starting(-60, by=0.0), flow=flow)
    assert diagnosed(load(), memory=memory).memory.unheard == (SPOT[0],)


def test_who_is_launching_was_not_heard_of_when_it_comes_into_service() -> None:
    """Between two health turns an instance may serve as far as anybody can tell."""
    new = ids("b", 1)[0]
    memory = replace(OLD, starting={new: at(-90)}, flow=LogFlow(newest=at(-1), lately=1.0))
    assert diagnosed(load(*busy(*SPOT)), memory=memory).memory.unheard == (new,)


@pytest.mark.parametrize(
    ("lately", "turned", "unknown"),
    [(1.0, -180, ["b"]), (1.0, -300, ["b"]), (1.0, -310, []), (0.0, -180, [])],
)
def test_who_came_since_the_last_turn_may_not_serve(
    lately: float, turned: float, unknown: list[str]
) -> None:
    """Where turns have stopped, or requests are too rare to tell, whoever is in service serves."""
    flow = LogFlow(
        newest=at(-1), lately=lately, watched_since=at(-7200), counted=slot_of(at(turned))
    )
    assert list(not_met(replace(OLD, flow=flow), [SPOT[0], "b"], at(0))) == unknown


@pytest.mark.parametrize(
    ("queue", "last_log", "replaced_ago_s", "due"),
    [
        (untouched(300), -300, None, SPOT[:1]),
        (untouched(299), -300, None, []),
        (untouched(300), -299, None, []),
        (untouched(300), -300, 599, []),
        (untouched(300), -300, 600, SPOT[:1]),
        (replace(untouched(300), trouble="denied"), -300, None, []),
        (replace(untouched(300), untouched_looks=4), -300, None, []),
    ],
)
def test_workers_that_all_hang_beside_waiting_requests_are_replaced_one_at_a_time(
    queue: QueueMemory, last_log: float, replaced_ago_s: float | None, due: list[str]
) -> None:
    memory = replace(
        OLD,
        queue=queue,
        last_logs=dict.fromkeys(SPOT, at(last_log)),
        suspects=dict.fromkeys(SPOT, at(-60)),
        replaced=() if replaced_ago_s is None else (at(-replaced_ago_s),),
    )
    assert list(diagnosed(load(), memory=memory).replace) == due


@pytest.mark.parametrize(
    ("usual", "now", "missing"), [(0.4, 0.5, True), (0.4, 0.61, False), (0.0, 0.61, True)]
)
def test_workers_whose_requests_the_others_took_over_are_dead(
    usual: float, now: float, missing: bool
) -> None:
    """Of half of six dead, the others are twice as busy; where logs are missing, as before."""
    half = passed(*SPOT[:3], of=replace(OLD, usual_load=6 * usual))
    seen = replace(load(*busy(*SPOT[3:])), load_rate={Cluster.AWS: now})
    assert (diagnosed(seen, memory=half).logs_missing == 3) is missing


def test_a_smaller_fleet_is_busier_without_anybody_dead() -> None:
    """Ten that shared a load of 4 became six; half of them ship no logs."""
    half = passed(*SPOT[:3], of=replace(OLD, usual_load=4.0))
    seen = replace(load(*busy(*SPOT[3:])), load_rate={Cluster.AWS: 0.67})
    assert diagnosed(seen, memory=half).logs_missing == len(SPOT) // 2


@pytest.mark.parametrize(("now", "missing"), [(0.5, True), (0.58, False)])
def test_workers_on_premises_take_over_too(now: float, missing: bool) -> None:
    """Five of twelve dead, the others are 12/7 as busy."""
    dead = passed(*SPOT[:5], of=replace(OLD, usual_load=4.8))
    seen = replace(load(*busy(SPOT[5]), *onprem(6)), load_rate={Cluster.AWS: now})
    assert (diagnosed(seen, memory=dead, onprem_workers=6).logs_missing == 5) is missing


def test_without_a_living_peer_one_is_replaced_at_a_time_while_requests_flow() -> None:
    waiting = untouched(300)
    assert diagnosed(load(), memory=nobody_reports(waiting)).replace == tuple(SPOT[:1])
    assert diagnosed(load(), memory=nobody_reports(None)).replace == tuple(SPOT[:1])
    for ago_s, due in ((599, ()), (600, tuple(SPOT[:1]))):
        memory = replace(nobody_reports(waiting), replaced=(at(-ago_s),))
        assert diagnosed(load(), memory=memory).replace == due


@pytest.mark.parametrize(("waiting", "in_flight"), [(0, 0), (0, 3), (7, 3), (7, 0)])
def test_who_never_reported_serves_where_requests_are_taken(waiting: int, in_flight: int) -> None:
    """One look at requests that wait tells nothing: who ships no logs takes them, too."""
    queue = QueueMemory(length=QueueLength(waiting=waiting, in_flight=in_flight))
    diagnosis = diagnosed(load(), memory=nobody_reports(queue))
    assert (diagnosis.reasons, diagnosis.memory.unreported) == ({}, {})


def test_logs_that_stop_for_all_replace_nobody() -> None:
    memory = nobody_reports(None)
    one_worked = {i: since for i, since in memory.starting.items() if i != SPOT[5]}
    assert diagnosed(load(), memory=replace(memory, starting=one_worked)).replace == ()


def test_a_fleet_whose_requests_ended_does_not_replace_its_instances_all_night() -> None:
    memory, replacements = nobody_reports(None, silence_s=0), 0
    for minute in range(15, 12 * 60):
        diagnosis = diagnosed(load(seconds=60 * minute), memory=memory)
        memory = replaced(diagnosis.memory, diagnosis.replace, at(60 * minute))
        replacements += len(diagnosis.replace)
    assert 0 < replacements < 10


def test_a_bootstrap_failure_is_checked_again() -> None:
    due = replace(starting(-9000), suspects={SPOT[0]: at(-60)})
    diagnosis = diagnosed(load(*busy(*SPOT[1:])), memory=due)
    assert diagnosis.replace == (SPOT[0],)
    assert confirm(diagnosis, load(*busy(*SPOT[1:])), fleet(), at(0)) == (SPOT[0],)
    assert confirm(diagnosis, load(*busy(*SPOT)), fleet(), at(0)) == ()
