"""Which workers fail, are slow, silent or never reported, and which are replaced."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.fleet import Group
from spotkeeper.domain.health.diagnosis import Diagnosis, confirm, diagnose, replaced
from spotkeeper.domain.health.reports import in_service_since, not_met, watch_reports
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.load import (
    Cluster,
    Load,
    LoadDigest,
    WorkerLoad,
    histogram,
    slot_of,
)
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy
from tests.builders import at, fleet, group, ids, instances
from tests.search_logs import SENT, digest_of, log, shipped

SPOT = ids("a", 6)


OLD = HealthMemory(in_service_since={i: at(-3600) for i in SPOT})


def worker(
    instance_id: str,
    finished: int = 20,
    failed: int = 0,
    *,
    last: float = 0,
    name: str = "",
    cluster: Cluster = Cluster.AWS,
) -> WorkerLoad:
    return WorkerLoad(
        worker_id=name or f"worker-of-{instance_id}",
        cluster=cluster,
        instance_id=instance_id,
        finished=finished,
        failed=failed,
        last_finished=at(last),
    )


def onprem(count: int, *, last: float = 0) -> list[WorkerLoad]:
    return [worker("", name=f"rack-{n}", cluster=Cluster.ONPREM, last=last) for n in range(count)]


def load(*workers: WorkerLoad, seconds: float = 0) -> Load:
    finished = sum(each.finished for each in workers)
    return Load(at=at(seconds), window_s=300, workers=workers, finished=finished)


def busy(*instance_ids: str, seconds: float = 0) -> list[WorkerLoad]:
    return [worker(i, last=seconds) for i in instance_ids]


def diagnosed(
    seen: Load,
    *,
    memory: HealthMemory = OLD,
    groups: tuple[Group, ...] | None = None,
    policy: WorkerHealthPolicy | None = None,
    onprem_workers: int = 0,
) -> Diagnosis:
    of = replace(fleet(worker_health=policy), onprem_workers=onprem_workers)
    members = groups or (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    serving = in_service_since(members, memory, seen.at)
    memory = replace(memory, in_service_since=serving)
    return diagnose(seen, members, of, memory, seen.at)


def passed(*instance_ids: str, by: float = 20.0, of: HealthMemory = OLD) -> HealthMemory:
    """So many requests were the share of instances that have no log since."""
    return replace(of, expected=dict.fromkeys(instance_ids, by))


HUNG = passed(SPOT[0])
LONG_AGO = at(-86_400)


def watched(memory: HealthMemory, seconds: float, *served: str, requests: int = 60) -> HealthMemory:
    """The memory after a turn with this many requests, whose logs the instances `served` sent."""
    workers = [worker(i, last=seconds - 60) for i in served]
    members = (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    sent = counted(requests, seconds - 60, *served)
    return watch_reports(
        memory, members, load(*workers, seconds=seconds), sent, fleet(), at(seconds), LONG_AGO
    )


def counted(requests: int, seconds: float, *served: str) -> list[LoadDigest]:
    """A digest of this many requests, which these instances served, sent at an instant."""
    return [shipped(at(seconds), requests, dict.fromkeys(served, at(seconds)))]


def starting(since: float, *instance_ids: str, by: float = 20.0) -> HealthMemory:
    """Instances that have not reported since they were first seen."""
    who = instance_ids or SPOT[:1]
    return passed(*who, by=by, of=replace(OLD, starting=dict.fromkeys(who, at(since))))


def untouched(seconds: float, in_flight: int = 0) -> QueueMemory:
    """A queue whose requests have waited this long, seen in ten looks."""
    length = QueueLength(waiting=7, in_flight=in_flight)
    return QueueMemory(length=length, untouched_since=at(-seconds), untouched_looks=10)


EMPTY = QueueMemory(length=QueueLength(waiting=0, in_flight=0), empty_since=at(-300))


def nobody_reports(queue: QueueMemory | None, silence_s: float = 900) -> HealthMemory:
    """Six instances that have not reported for an hour; the newest log is `silence_s` old."""
    flow = LogFlow(known_since=at(-9000), newest=at(-silence_s), rate=1.0)
    seen = replace(starting(-3600, *SPOT, by=0.0), flow=flow)
    suspects = dict.fromkeys(SPOT, at(-60))
    return replace(seen, suspects=suspects, queue=queue)


def paced(instance_id: str, mean_s: float, finished: int = 20) -> WorkerLoad:
    return replace(worker(instance_id, finished), served_s=mean_s * finished)


# --- Who fails, who is slow, and who is replaced: workers, not instances ---


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


def test_a_single_instance_is_never_blamed_for_its_service() -> None:
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


def test_delayed_logs_do_not_make_a_newer_worker_slow() -> None:
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


def test_a_turn_that_goes_round_again_has_not_observed_twice() -> None:
    seen = load(*busy(*SPOT[1:]))
    first = diagnosed(seen, memory=HUNG)
    assert diagnosed(seen, memory=first.memory).replace == ()
    soon = load(*busy(*SPOT[1:], seconds=29), seconds=29)
    assert diagnosed(soon, memory=first.memory).replace == ()


def test_the_last_check_spares_an_instance_with_fresh_logs() -> None:
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


def test_switched_off_it_judges_no_instance_but_remembers_those_in_service() -> None:
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


# --- Who is silent and who only idles: requests that passed a worker by, and none that did ---


@pytest.mark.parametrize(("by", "suspect"), [(0.0, False), (13.9, False), (14.0, True)])
def test_an_idle_worker_is_idle_and_not_silent(by: float, suspect: bool) -> None:
    seen = load(*busy(*SPOT[1:]))
    assert bool(diagnosed(seen, memory=passed(SPOT[0], by=by)).reasons) is suspect


def half_silent(for_s: float = 900, **changes: Any) -> HealthMemory:
    """Half of the fleet, that logged until then, has been passed by since."""
    worked = replace(OLD, last_logs=dict.fromkeys(SPOT[:3], at(-for_s)), **changes)
    return passed(*SPOT[:3], of=replace(worked, suspects=dict.fromkeys(SPOT[:3], at(-60))))


AT_EASE = replace(load(*busy(*SPOT[3:])), load_rate={Cluster.AWS: 0.5})


def test_of_half_the_fleet_one_is_replaced_late_and_the_others_once_its_successor_reports() -> None:
    assert not diagnosed(AT_EASE, memory=half_silent(1799)).replace
    first = diagnosed(AT_EASE, memory=half_silent(1800))
    assert (first.replace, first.logs_missing) == ((SPOT[0],), 3)
    assert first.memory.silent == (SPOT[0],)
    assert first.reasons[SPOT[0]].endswith("replaced to see whether its successor reports")
    # The next one waits for half of the silence: 20 minutes.
    for ago_s, due in ((1199, ()), (1200, (SPOT[0],))):
        again = half_silent(2400, replaced=(at(-ago_s),))
        assert diagnosed(AT_EASE, memory=again).replace == due
    # An instance in service since then has logged requests. Two an hour are replaced.
    since = {**OLD.in_service_since, SPOT[3]: at(-300)}
    came = half_silent(2400, in_service_since=since, replaced=(at(-500),))
    assert diagnosed(AT_EASE, memory=came).replace == (SPOT[0],)
    assert not diagnosed(AT_EASE, memory=replace(came, starting={SPOT[3]: at(-300)})).replace
    spent = replace(came, replaced=(at(-500), at(-100)))
    assert not diagnosed(AT_EASE, memory=spent).memory.silent
    never = WorkerHealthPolicy(replacements_per_hour=0)
    kept = diagnosed(AT_EASE, memory=half_silent(1800), policy=never)
    assert (kept.memory.silent, kept.logs_missing) == ((), 3)


def test_requests_count_against_an_instance_until_its_next_log() -> None:
    memory = watched(OLD, 0)
    assert set(memory.expected.values()) == {0.0}
    memory = watched(memory, 60, *SPOT[1:])
    memory = watched(memory, 120, *SPOT[1:])
    assert memory.expected == {SPOT[0]: 20.0, **dict.fromkeys(SPOT[1:], 0.0)}
    assert memory.flow.partly_until is None
    memory = watched(memory, 180, SPOT[0])
    assert memory.expected == {SPOT[0]: 0.0, **dict.fromkeys(SPOT[1:], 10.0)}
    # It was certainly silent: perhaps its logs were missing, and the load was known in part.
    assert memory.flow.partly_until == at(180)


def test_silence_that_began_between_distant_turns_counts() -> None:
    memory = watched(OLD, 0)
    sent = [*counted(60, 60, SPOT[0]), *counted(300, 360)]
    members = (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    seen = watch_reports(memory, members, load(seconds=420), sent, fleet(), at(420), LONG_AGO)
    assert 30 < seen.expected[SPOT[0]] < 60 == seen.expected[SPOT[1]]


def test_no_instance_is_passed_by_without_requests() -> None:
    memory = watched(OLD, 0)
    for minute in range(1, 600):
        memory = watched(memory, 60 * minute, requests=0)
    assert set(memory.expected.values()) == {0.0}


def test_an_instance_that_launches_leaves_or_is_unhealthy_is_not_judged() -> None:
    members = (group("spot", 6, instances(SPOT[2:], SPOT[:1], SPOT[1:2])), group("on-demand", 0))
    seen = load(*busy(*SPOT[2:]))
    diagnosis = diagnosed(seen, groups=members)
    assert diagnosis.reasons == {}
    assert diagnosis.memory.in_service_since.keys() == set(SPOT[2:])
    marked = replace(instances(SPOT[:1])[0], healthy=False)
    members = (group("spot", 6, (marked, *instances(SPOT[1:]))), group("on-demand", 0))
    assert diagnosed(load(*busy(*SPOT[1:])), groups=members).reasons == {}


# --- workers that never reported, or stopped all together ---


@pytest.mark.parametrize(("since", "suspect"), [(-599, False), (-600, True), (-9000, True)])
def test_workers_that_never_report_are_bootstrap_failures_after_the_launch_deadline(
    since: float, suspect: bool
) -> None:
    diagnosis = diagnosed(load(*busy(*SPOT[1:])), memory=starting(since))
    assert diagnosis.bootstrap == ((SPOT[0],) if suspect else ())
    never = f"never reported in {-since:.0f} s: its workers do not start"
    assert diagnosis.reasons == ({SPOT[0]: never} if suspect else {})
    assert diagnosis.memory.unreported == {SPOT[0]: at(since)}


@pytest.mark.parametrize(("until", "late"), [(-301, False), (-300, True), (-1, True)])
def test_an_instance_launched_just_before_logs_stopped_is_no_bootstrap_failure(
    until: float, late: bool
) -> None:
    """Other workers reported for as long as a worker may be silent, or for less."""
    memory = replace(starting(-600), flow=LogFlow(newest=at(until)))
    assert diagnosed(load(), memory=memory).bootstrap == ((SPOT[0],) if late else ())


@pytest.mark.parametrize(
    ("since", "by", "rate", "launching"),
    [
        (0, 0.0, 1.0, True),  # It would get 100 requests before the deadline.
        (0, 0.0, 0.1, False),  # It would get 10: too few to tell.
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
        (0.005, 9000, -3599, False),  # Requests have stopped: nothing can be concluded.
        (0.005, 9000, -3600, True),
        (0.0, 60, -60, True),
    ],
)
def test_an_instance_that_never_reported_may_not_serve_where_requests_are_rare(
    lately: float, silence_s: float, since: float, known: bool
) -> None:
    flow = LogFlow(newest=at(-silence_s), rate=0.005, lately=lately, watched_since=at(-7200))
    memory = replace(starting(since, by=0.0), flow=flow)
    diagnosis = diagnosed(load(), memory=memory)
    assert diagnosis.memory.unheard == (() if known else (SPOT[0],))
    assert (diagnosis.reasons, diagnosis.memory.unreported) == ({}, {})


@pytest.mark.parametrize(
    ("rate", "watched_s", "known"),
    [
        (0.005, 90, False),
        (0.0, 3599, False),  # Only an hour shows that requests are rare.
        (0.0, 3600, True),
    ],
)
def test_less_than_an_hour_since_memory_was_lost_proves_no_worker(
    rate: float, watched_s: float, known: bool
) -> None:
    flow = LogFlow(newest=at(-60), rate=rate, lately=0.0, watched_since=at(-watched_s))
    memory = replace(starting(-60, by=0.0), flow=flow)
    assert diagnosed(load(), memory=memory).memory.unheard == (() if known else (SPOT[0],))


@pytest.mark.parametrize(
    ("queue", "unheard"),
    [
        (None, ()),
        (QueueMemory(length=QueueLength(waiting=0, in_flight=3)), (SPOT[0],)),
        (QueueMemory(length=QueueLength(waiting=0, in_flight=3), trouble="denied"), ()),
        (QueueMemory(length=QueueLength(waiting=0, in_flight=0)), (SPOT[0],)),
        (replace(EMPTY, empty_looks=5), ()),
    ],
)
def test_a_queue_in_use_shows_that_requests_have_not_stopped_with_their_logs(
    queue: QueueMemory | None, unheard: tuple[str, ...]
) -> None:
    """An instance that never reported was launched after the logs stopped: does it serve?"""
    flow = LogFlow(newest=at(-600), rate=1.0, lately=1.0, watched_since=at(-7200))
    memory = replace(starting(-60, by=0.0), flow=flow, worker_known_at=at(-60), queue=queue)
    assert diagnosed(load(), memory=memory).memory.unheard == unheard


@pytest.mark.parametrize(
    ("lately", "turned", "unknown"),
    [(1.0, -180, ["b"]), (1.0, -300, ["b"]), (1.0, -310, []), (0.0, -180, [])],
)
def test_an_instance_new_since_the_last_turn_may_not_serve(
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


@pytest.mark.parametrize("minutes", [1, 30])
def test_the_usual_load_follows_the_time_and_not_the_turns(minutes: int) -> None:
    """The load fell while no turn ran for half an hour: what is usual fell with it."""
    slot = slot_of(at(-60 * minutes - 30))
    memory = replace(OLD, usual_load=6.0, flow=LogFlow(newest=at(-60), counted=slot))
    members = (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    seen = replace(load(*busy(*SPOT)), load_rate={Cluster.AWS: 0.5})
    sent = counted(6, -10, *SPOT)
    usual = watch_reports(memory, members, seen, sent, fleet(), at(0), LONG_AGO).usual_load
    assert usual == pytest.approx(3 + 3 * 0.9**minutes, rel=0.01)


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
def test_an_instance_that_never_reported_counts_where_requests_are_taken(
    waiting: int, in_flight: int
) -> None:
    """One look at waiting requests proves nothing: workers that send no logs take them, too."""
    queue = QueueMemory(length=QueueLength(waiting=waiting, in_flight=in_flight))
    diagnosis = diagnosed(load(), memory=nobody_reports(queue))
    assert (diagnosis.reasons, diagnosis.memory.unreported) == ({}, {})


def test_a_fleet_whose_requests_ended_does_not_replace_its_instances_all_night() -> None:
    memory, replacements = nobody_reports(None, silence_s=0), 0
    for minute in range(15, 12 * 60):
        diagnosis = diagnosed(load(seconds=60 * minute), memory=memory)
        memory = replaced(diagnosis.memory, diagnosis.replace, at(60 * minute))
        replacements += len(diagnosis.replace)
    assert 0 < replacements < 10


# --- Workers on premises: nobody can replace them, so they are alarmed about ---


def test_workers_on_premises_are_only_alarmed_about() -> None:
    seen = load(*busy(*SPOT), *onprem(2))
    assert diagnosed(seen, onprem_workers=2).onprem_silent == 0
    missing = diagnosed(seen, onprem_workers=3)
    assert (missing.onprem_silent, missing.reasons, missing.replace) == (1, {}, ())
    hung = load(*busy(*SPOT), *onprem(3, last=-300))
    assert diagnosed(hung, onprem_workers=3).onprem_silent == 3


def rack(*means_s: float, last: float = 0) -> list[WorkerLoad]:
    """On-premises workers, with the mean service time of each."""
    return [
        replace(it, served_s=mean_s * it.finished)
        for it, mean_s in zip(onprem(len(means_s), last=last), means_s, strict=True)
    ]


def test_a_slow_worker_on_premises_is_compared_with_its_like_and_seen_twice() -> None:
    cloud = [paced(i, 1.0) for i in SPOT]
    first = diagnosed(load(*cloud, *rack(6.0, 6.0, 6.0)))
    assert first.onprem == {}
    first = diagnosed(load(*cloud, *rack(6.0, 6.0, 18.0)))
    slow = {"rack-2": "serves 3.0 times slower than its peers"}
    assert (first.onprem, first.onprem_due, first.onprem_suspect) == (slow, (), 0)
    later = [replace(it, last_finished=at(60)) for it in (*cloud, *rack(6.0, 6.0, 18.0))]
    second = diagnosed(load(*later, seconds=60), memory=first.memory)
    assert (second.onprem, second.onprem_due, second.onprem_suspect) == (slow, ("rack-2",), 1)
    assert (second.reasons, second.replace) == ({}, ())
    well = [replace(it, last_finished=at(120)) for it in (*cloud, *rack(6.0, 6.0, 6.0))]
    third = diagnosed(load(*well, seconds=120), memory=second.memory)
    assert (third.onprem, third.memory.onprem_suspects) == ({}, {})
