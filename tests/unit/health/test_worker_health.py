"""Which workers fail, are slow, silent or never reported, and which are replaced."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.decision import NewVersion, Suspicion
from spotkeeper.domain.fleet import Group
from spotkeeper.domain.health.diagnosis import Diagnosis, confirm, diagnose, replaced
from spotkeeper.domain.health.reports import in_service_since, not_met, watch_reports
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.load import Cluster, Load, LoadDigest, WorkerLoad, histogram, slot_of
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy
from tests import search_logs
from tests.builders import NOON, at, fleet, group, ids, instances
from tests.search_logs import SENT, digest_of, log, shipped

SPOT = ids("a", 6)
SIX = (group("spot", 6, instances(SPOT)), group("on-demand", 0))
OLD = HealthMemory(in_service_since={i: at(-3600) for i in SPOT})
LONG_AGO = at(-86_400)


def worker(
    instance_id: str, finished: int = 20, failed: int = 0, *, mean_s: float = 0.0, last: float = 0,
    name: str = "",
) -> WorkerLoad:  # fmt: skip
    """A worker whose requests take `mean_s`; on premises without an instance."""
    return search_logs.worker(
        name or f"worker-of-{instance_id}", instance_id, finished=finished, failed=failed,
        served_s=mean_s * finished, last_finished=at(last),
    )  # fmt: skip


def onprem(*means_s: float, last: float = 0) -> list[WorkerLoad]:
    return [worker("", name=f"rack-{n}", mean_s=s, last=last) for n, s in enumerate(means_s)]


def busy(*instance_ids: str, seconds: float = 0) -> list[WorkerLoad]:
    return [worker(i, last=seconds) for i in instance_ids]


def load(*workers: WorkerLoad, seconds: float = 0, rate: float = 0.0) -> Load:
    """What the workers served in five minutes, at this load rate."""
    finished = sum(each.finished for each in workers)
    return Load(at=at(seconds), window_s=300, workers=workers, finished=finished, load_rate=rate)


def diagnosed(
    seen: Load,
    memory: HealthMemory = OLD,
    *,
    groups: tuple[Group, ...] = SIX,
    policy: WorkerHealthPolicy | None = None,
    onprem_workers: int = 0,
) -> Diagnosis:
    of = replace(fleet(worker_health=policy), onprem_workers=onprem_workers)
    memory = replace(memory, in_service_since=in_service_since(groups, memory, seen.at))
    return diagnose(seen, groups, of, memory, seen.at)


def passed(*instance_ids: str, by: float = 20.0, **changes: Any) -> HealthMemory:
    """So many requests were the share of instances that have no log since."""
    return replace(OLD, expected=dict.fromkeys(instance_ids, by), **changes)


HUNG = passed(SPOT[0])


def counted(requests: int, seconds: float, *served: str) -> list[LoadDigest]:
    """A digest of this many requests, which these instances served, sent at an instant."""
    return [shipped(at(seconds), requests, dict.fromkeys(served, at(seconds)))]


def watched(memory: HealthMemory, seen: Load, sent: list[LoadDigest]) -> HealthMemory:
    return watch_reports(memory, SIX, seen, sent, fleet(), seen.at, LONG_AGO)


def minute(memory: HealthMemory, seconds: float, *served: str) -> HealthMemory:
    """The memory after a turn with sixty requests, whose logs the instances `served` sent."""
    seen = load(*busy(*served, seconds=seconds - 60), seconds=seconds)
    return watched(memory, seen, counted(60, seconds - 60, *served))


def starting(since: float, *instance_ids: str, by: float = 20.0, **changes: Any) -> HealthMemory:
    """Instances that have not reported since they were first seen."""
    waiting = instance_ids or SPOT[:1]
    return passed(*waiting, by=by, starting=dict.fromkeys(waiting, at(since)), **changes)


def holding(waiting: int, in_flight: int = 0, **more: Any) -> QueueMemory:
    return QueueMemory(length=QueueLength(waiting=waiting, in_flight=in_flight), **more)


QUIET = holding(0, empty_since=at(-300), empty_looks=5)


def untouched(seconds: float, looks: int = 10, **more: Any) -> QueueMemory:
    """A queue whose requests have waited this long."""
    return holding(7, untouched_since=at(-seconds), untouched_looks=looks, **more)


def none_reports(queue: QueueMemory | None, **changes: Any) -> HealthMemory:
    """Six instances that have not reported for an hour; the newest log is 15 minutes old."""
    flow = LogFlow(known_since=at(-9000), newest=at(-900), rate=1.0)
    suspects = dict.fromkeys(SPOT, at(-60))
    return starting(-3600, *SPOT, by=0.0, flow=flow, suspects=suspects, queue=queue, **changes)


# --- Workers that fail or are slow ---


@pytest.mark.parametrize(
    ("finished", "failed", "suspect"),
    [
        (5, 5, True), (4, 4, False), (10, 9, True), (10, 8, False), (100, 0, False),
        (200, 180, True), (200, 150, False), (200, 151, False),
    ],
)  # fmt: skip
def test_a_worker_that_fails_almost_everything_is_suspect(
    finished: int, failed: int, suspect: bool
) -> None:
    """The others finish a hundred. An alarm rings if most of all requests fail."""
    diagnosis = diagnosed(load(worker(SPOT[0], finished, failed), *busy(*SPOT[1:])))
    failing = {SPOT[0]: f"{failed} of {finished} requests failed"}
    assert diagnosis.reasons == (failing if suspect else {})
    assert bool(diagnosis.nobody_serves) is (2 * failed > 100 + finished)


@pytest.mark.parametrize(
    ("failing", "well", "suspects"),
    [
        pytest.param(SPOT[:3], SPOT[3:], SPOT[:3], id="half"),
        pytest.param(SPOT[:4], SPOT[4:], SPOT[:1], id="most, and others succeed: one is tried"),
        pytest.param(SPOT, [], [], id="all"),
        pytest.param([*ids("c", 9), *SPOT[:3]], [], [], id="all, and AWS took nine of twelve"),
    ],
)
def test_when_most_fail_an_alarm_rings_and_none_is_replaced_unless_others_succeed(
    failing: list[str], well: list[str], suspects: list[str]
) -> None:
    seen = load(*(worker(i, 10, 10) for i in failing), *busy(*well))
    diagnosis = diagnosed(seen)
    assert [*diagnosis.reasons] == suspects
    assert bool(diagnosis.nobody_serves) is (len(failing) > len(well))


MOST = load(*(worker(i, 10, 10) for i in SPOT[:4]), *busy(*SPOT[4:]))


def test_of_most_that_fail_the_next_is_tried_after_the_launch_deadline() -> None:
    for ago_s, before, tried in ((599, [], []), (600, [], SPOT[:1]), (600, SPOT[1:2], SPOT[1:2])):
        memory = replace(OLD, replaced=(at(-ago_s),), suspects=dict.fromkeys(before, at(-60)))
        assert [*diagnosed(MOST, memory).reasons] == tried
    # Once a new instance fails as well, no other is tried.
    since = {**OLD.in_service_since, SPOT[3]: at(-900)}
    tried_before = replace(OLD, in_service_since=since, replaced=(at(-1200),))
    assert not diagnosed(MOST, tried_before).reasons


@pytest.mark.parametrize(
    ("failures", "others_failed", "suspect"),
    [(5, 0, True), (4, 0, False), (6, 3, False), (10, 3, True), (9, 30, False), (60, 30, True)],
)
def test_failures_count_since_the_last_success_and_more_where_others_fail(
    failures: int, others_failed: int, suspect: bool
) -> None:
    """No request of the first arrived in the window; the others finished sixty."""
    seen = load(worker(SPOT[1], 60, others_failed), *(worker(i, 0) for i in SPOT[2:]))
    reasons = diagnosed(seen, replace(OLD, failures={SPOT[0]: failures})).reasons
    assert reasons == ({SPOT[0]: f"its last {failures} requests failed"} if suspect else {})


def test_where_requests_are_rare_failures_add_up_until_a_success() -> None:
    def turn(memory: HealthMemory, seconds: float, **ended: int) -> HealthMemory:
        each: dict[str, Any] = {"ok": 0, "failed": 0, **ended}
        (sent,) = counted(1, seconds - 60, SPOT[0])
        sent = replace(sent, workers=(replace(sent.workers[0], **each),))
        return watched(memory, load(seconds=seconds), [sent])

    memory = turn(minute(OLD, 0), 60, failed=1)
    memory = turn(turn(memory, 120, failed=1), 180, failed=3)
    assert memory.failures == {SPOT[0]: 5}
    assert turn(memory, 240, ok=1, failed=2).failures == {}
    beside = watched(memory, load(seconds=240), counted(1, 180, SPOT[1]))
    assert beside.failures == {SPOT[0]: 5, SPOT[1]: -1}
    many, well = replace(OLD, failures=dict.fromkeys(SPOT[:4], 30)), busy(*SPOT[4:])
    assert "4 of 6 instances fail" in diagnosed(load(*well), many).nobody_serves


def test_an_instance_alone_is_no_exception_from_its_service() -> None:
    alone = (group("spot", 1, instances(SPOT[:1])), group("on-demand", 0))
    for only, rings in (
        (worker(SPOT[0], 10, 10), True),
        (worker(SPOT[0], 4, 4), False),
        (worker(SPOT[0], last=-400), False),
        (worker(SPOT[0], mean_s=9.0), False),
    ):
        diagnosis = diagnosed(load(only, *onprem(1.0, 1.0)[: 2 * (only.failed == 0)]), groups=alone)
        assert (diagnosis.reasons, bool(diagnosis.nobody_serves)) == ({}, rings)


@pytest.mark.parametrize(
    ("mean_s", "finished", "suspect"),
    [(6.0, 10, True), (5.9, 10, False), (6.0, 9, False), (60.0, 100, True), (0.1, 10, False)],
)
def test_a_worker_three_times_slower_than_its_peers_is_suspect(
    mean_s: float, finished: int, suspect: bool
) -> None:
    peers = [worker(i, mean_s=2.0) for i in SPOT[1:]]
    reasons = diagnosed(load(worker(SPOT[0], finished, mean_s=mean_s), *peers)).reasons
    slow = f"serves {mean_s / 2:.1f} times slower than its peers"
    assert reasons == ({SPOT[0]: slow} if suspect else {})


def test_long_requests_by_chance_do_not_make_a_worker_slow() -> None:
    peers = [worker(i, mean_s=2.0) for i in SPOT[1:]]
    uneven = histogram([100] * 90 + [30_000] * 10)
    assert uneven.squared_variation > 5
    seen = replace(load(worker(SPOT[0], mean_s=8.0), *peers), service=uneven)
    assert diagnosed(seen).reasons == {}


def test_delayed_logs_do_not_make_a_new_worker_slow() -> None:
    """All serve alike: the old ones for ten minutes, the new one for the last of them."""
    delayed = [
        log(began, began - 2.0, worker=i, instance_id=i, cluster=Cluster.AWS)
        for i in SPOT
        for began in range(2, 60 if i == SPOT[0] else 600, 3)
    ]
    assert diagnosed(summarise([digest_of(delayed)], SENT, 120)).reasons == {}


def test_requests_that_fail_at_once_are_no_measure_of_speed() -> None:
    """A healthy worker was replaced as 18.6 times slower than its failing peers."""
    failing = [worker(i, failed=12, mean_s=0.1) for i in SPOT[1:]]
    assert diagnosed(load(worker(SPOT[0], mean_s=2.0), *failing)).reasons == {}


@pytest.mark.parametrize("seconds", [0, 29])
def test_a_turn_that_is_repeated_has_not_observed_twice(seconds: float) -> None:
    first = diagnosed(load(*busy(*SPOT[1:])), HUNG)
    again = load(*busy(*SPOT[1:], seconds=seconds), seconds=seconds)
    assert diagnosed(again, first.memory).replace == ()


def test_replacements_stay_within_the_budget_of_an_hour() -> None:
    """One that fails is before those that are silent; a day later, replacements are forgotten."""
    ill = load(worker(SPOT[3], 10, 10), *busy(*SPOT[4:]), rate=1.0)
    before = (at(-86_400), at(-86_399))
    suspects = {i: at(-60) for i in SPOT[:4]}
    first = diagnosed(ill, passed(*SPOT[:3], suspects=suspects, replaced=before))
    assert (first.replace, first.over_budget) == ((SPOT[3], SPOT[0]), tuple(SPOT[1:3]))
    assert set(first.memory.silent) == set(SPOT[:4])
    spent = replaced(first.memory, first.replace, at(0))
    assert ({*spent.suspects}, spent.replaced) == ({*SPOT[1:3]}, (before[1], at(0), at(0)))
    # A replacement is requested up to half a minute after the turn that is remembered.
    later = diagnosed(replace(ill, at=at(3629)), spent)
    assert (later.replace, set(later.over_budget)) == ((), set(SPOT[1:3]))
    assert later.replaces_at == at(3600)
    renewed = diagnosed(replace(ill, at=at(3630)), later.memory)
    assert set(renewed.replace) == set(SPOT[1:3])


def test_a_disabled_policy_judges_no_worker_and_remembers_service() -> None:
    seen = dict.fromkeys(SPOT[:1], at(-60))
    judged = replace(HUNG, suspects=seen, onprem_suspects=seen, silent=tuple(SPOT[:1]))
    judged = replace(judged, unreported=seen, unproven=tuple(SPOT[:1]))
    off = diagnosed(load(*busy(*SPOT[1:])), judged, policy=WorkerHealthPolicy(enabled=False))
    assert (off.reasons, off.memory) == ({}, HUNG)


WORKERS = st.lists(
    st.builds(
        worker,
        st.sampled_from([*SPOT, "i-0f0f0f0f0f0f0f0f0"]),
        st.integers(5, 40),
        st.integers(0, 5),
        last=st.integers(-900, 0),
        name=st.sampled_from(["left", "right"]),
    ),
    max_size=12,
)


@given(WORKERS, st.integers(0, 4), st.lists(st.integers(0, 5400), max_size=4))
def test_a_replacement_has_a_reason_a_second_observation_and_a_budget(
    workers: list[WorkerLoad], budget: int, ages_s: list[int]
) -> None:
    suspects, before = {i: at(-60) for i in SPOT[:3]}, tuple(at(-age) for age in ages_s)
    memory = replace(OLD, suspects=suspects, replaced=before)
    policy = WorkerHealthPolicy(replacements_per_hour=budget)
    diagnosis = diagnosed(load(*workers), memory, policy=policy)
    assert set(diagnosis.replace) <= diagnosis.reasons.keys() & set(SPOT[:3])
    lately = sum(age < 3600 for age in ages_s)
    assert len(diagnosis.replace) <= max(0, budget - lately)
    assert set(confirm(diagnosis, load(*workers), fleet(), at(0))) <= set(diagnosis.replace)


# --- Silent workers and idle ones: requests that passed a worker by, and none that did ---


@pytest.mark.parametrize(("by", "suspect"), [(0.0, False), (13.9, False), (14.0, True)])
def test_an_idle_worker_is_idle_and_not_silent(by: float, suspect: bool) -> None:
    reasons = diagnosed(load(*busy(*SPOT[1:])), passed(SPOT[0], by=by)).reasons
    why = "finished no request for 3600 s, although its share was 14"
    assert reasons == ({SPOT[0]: why} if suspect else {})


def test_a_suspect_of_several_stays_one_until_it_logs_when_others_are_replaced() -> None:
    many = ids("b", 13)
    of = (group("spot", 13, instances(many)), SIX[1])
    evidence = dict(zip(many, (6.0, 7.0, 9.0, 8.0), strict=False))
    seen, memory = load(*busy(*many[4:])), replace(
        OLD, in_service_since=dict.fromkeys(many, at(-3600)), expected=evidence
    )  # fmt: skip
    first = diagnosed(seen, memory, groups=of)
    assert first.reasons.keys() == evidence.keys()
    again = diagnosed(replace(seen, at=at(60)), first.memory, groups=of)
    assert (again.replace, again.over_budget) == ((many[2], many[3]), (many[1], many[0]))
    left = group("spot", 13, instances([*many[:2], *many[4:]]))
    memory = replaced(again.memory, again.replace, at(60))
    later = diagnosed(replace(seen, at=at(120)), memory, groups=(left, SIX[1]))
    assert later.memory.silent == (many[1], many[0])
    logs = {many[0]: at(170)}
    logged = replace(later.memory, expected={**evidence, many[0]: 0.0}, last_logs=logs)
    assert diagnosed(replace(seen, at=at(180)), logged, groups=of).memory.silent == (many[1],)


def half_silent(for_s: float = 900, **changes: Any) -> HealthMemory:
    """Half of the fleet, that logged until then, has been passed by since."""
    half, suspects = dict.fromkeys(SPOT[:3], at(-for_s)), dict.fromkeys(SPOT[:3], at(-60))
    return passed(*SPOT[:3], last_logs=half, suspects=suspects, **changes)


def test_of_a_silent_half_one_is_replaced_late_and_the_others_once_its_successor_reports() -> None:
    at_ease = load(*busy(*SPOT[3:]), rate=0.5)
    assert not diagnosed(at_ease, half_silent(1799)).replace
    first = diagnosed(at_ease, half_silent(1800))
    assert (first.replace, first.logs_missing) == ((SPOT[0],), 3)
    assert first.memory.silent == (SPOT[0],)
    why = "finished no request for 1800 s, although its share was 20"
    tried = {SPOT[0]: f"{why}; it is replaced to see whether its successor reports"}
    assert first.reasons == {**dict.fromkeys(SPOT[:3], why), **tried}
    assert [one.since for one in first.suspects] == [at(-60), at(-1800), at(-1800)]
    # The next one waits for half of the silence: 20 minutes.
    for ago_s, due in ((1199, ()), (1200, (SPOT[0],))):
        again = half_silent(2400, replaced=(at(-ago_s),))
        found = diagnosed(at_ease, again)
        assert (found.replace, found.replaces_at) == (due, None)
    # An instance in service since then has logged requests. Two an hour are replaced.
    since = {**OLD.in_service_since, SPOT[3]: at(-300)}
    came = half_silent(2400, in_service_since=since, replaced=(at(-500),))
    assert diagnosed(at_ease, came).replace == (SPOT[0],)
    assert not diagnosed(at_ease, replace(came, starting={SPOT[3]: at(-300)})).replace
    spent = replace(came, replaced=(at(-500), at(-100)))
    assert not diagnosed(at_ease, spent).memory.silent
    never = WorkerHealthPolicy(replacements_per_hour=0)
    kept = diagnosed(at_ease, half_silent(1800), policy=never)
    assert (kept.memory.silent, kept.logs_missing) == ((), 3)


def test_requests_pass_by_instances_without_a_log_until_their_next_log() -> None:
    memory = minute(OLD, 0)
    assert set(memory.expected.values()) == {0.0}
    memory = minute(minute(memory, 60, *SPOT[1:]), 120, *SPOT[1:])
    assert memory.expected == {SPOT[0]: 20.0, **dict.fromkeys(SPOT[1:], 0.0)}
    assert memory.flow.partly_until is None
    memory = minute(memory, 180, SPOT[0])
    assert memory.expected == {SPOT[0]: 0.0, **dict.fromkeys(SPOT[1:], 10.0)}
    # It was certainly silent: perhaps its logs were missing, and the load was known in part.
    assert memory.flow.partly_until == at(180)


def test_requests_between_turns_that_lie_apart_pass_by_an_instance_after_its_log() -> None:
    sent = [*counted(60, 60, SPOT[0]), *counted(300, 360)]
    seen = watched(minute(OLD, 0), load(seconds=420), sent)
    assert 30 < seen.expected[SPOT[0]] < 60 == seen.expected[SPOT[1]]


def test_an_instance_that_launches_leaves_or_is_unhealthy_is_not_judged() -> None:
    members = (group("spot", 6, instances(SPOT[2:], SPOT[:1], SPOT[1:2])), SIX[1])
    diagnosis = diagnosed(load(*busy(*SPOT[2:])), groups=members)
    assert diagnosis.reasons == {}
    assert diagnosis.memory.in_service_since.keys() == set(SPOT[2:])
    marked = replace(instances(SPOT[:1])[0], healthy=False)
    members = (group("spot", 6, (marked, *instances(SPOT[1:]))), SIX[1])
    assert diagnosed(load(*busy(*SPOT[1:])), groups=members).reasons == {}


# --- Workers that never reported, or stopped all together ---


@pytest.mark.parametrize(("since", "suspect"), [(-599, False), (-600, True), (-9000, True)])
def test_workers_that_never_report_are_bootstrap_failures_after_the_launch_deadline(
    since: float, suspect: bool
) -> None:
    diagnosis = diagnosed(load(*busy(*SPOT[1:])), starting(since))
    assert diagnosis.bootstrap == ((SPOT[0],) if suspect else ())
    never = f"never reported in {-since:.0f} s: its workers do not start"
    assert diagnosis.reasons == ({SPOT[0]: never} if suspect else {})
    assert diagnosis.memory.unreported == {SPOT[0]: at(since)}


@pytest.mark.parametrize(
    ("last_began", "free"),
    [
        pytest.param(-900, (SPOT[0],), id="what was launched last reports"),
        pytest.param(-7200, (), id="what was launched last never reported"),
    ],
)
def test_what_never_started_is_replaced_outside_the_budget_once_a_later_launch_reports(
    last_began: float, free: tuple[str, ...]
) -> None:
    """One after the other: the next one follows when the successor has reported."""
    spent, broken, last = (at(-60), at(-50)), SPOT[:4], SPOT[4]
    memory = starting(-4000, *broken, replaced=spent, suspects=dict.fromkeys(broken, at(-60)))
    since = {i: at(-4000) for i in broken} | {last: at(last_began), SPOT[5]: at(-9000)}
    memory = replace(memory, in_service_since=since)
    diagnosis = diagnosed(load(*busy(*SPOT[4:])), memory)
    assert (diagnosis.replace, diagnosis.free) == (free, free)
    # Where nothing may be replaced, this is not either.
    none = WorkerHealthPolicy(replacements_per_hour=0)
    assert diagnosed(load(*busy(*SPOT[4:])), memory, policy=none).replace == ()
    memory = replace(memory, starting={**memory.starting, "i-next": at(-30)})
    more = (group("spot", 7, instances((*SPOT, "i-next"))), group("on-demand", 0))
    assert diagnosed(load(*busy(*SPOT[4:])), memory, groups=more).replace == ()


@pytest.mark.parametrize("since", [-5000, -3000])
def test_what_returns_from_standby_is_no_later_launch(since: float) -> None:
    stuck, back = SPOT[:2]
    memory = starting(-4000, stuck, suspects={stuck: at(-60)}, replaced=(at(-60), at(-50)))
    before = {**dict.fromkeys(SPOT, at(-9000)), stuck: at(-4000), back: at(since)}
    memory = replace(memory, in_service_since=before)
    rest = [i for i in SPOT if i != back]
    without = (group("spot", 6, instances(rest, leaving=(back,))), SIX[1])
    for groups in (without, without, SIX):
        memory = watch_reports(memory, groups, load(), [], fleet(), NOON, LONG_AGO)
        assert memory.in_service_since.keys() == {*(SPOT if groups == SIX else rest)}
    assert (memory.in_service_since, memory.out_of_service) == (before, {})
    assert diagnosed(load(*busy(*SPOT[1:])), memory).free == ((stuck,) if since > -4000 else ())


@pytest.mark.parametrize(("began", "covered"), [(-899, True), (-900, False)])
def test_what_alone_tries_a_new_version_is_covered_at_first_and_replaced_outside_the_budget(
    began: float, covered: bool
) -> None:
    new = replace(instances(SPOT[:1])[0], template="8")
    members = (new, *instances(SPOT[1:], leaving=("gone",)))
    groups = (group("spot", 6, members), group("on-demand", 0))
    trial = NewVersion(version="8", since=at(-5000), instances=1)
    spent = passed(SPOT[0], replaced=(at(-60), at(-50)), suspects={SPOT[0]: at(-60)}, trial=trial)
    spent = replace(spent, in_service_since={**OLD.in_service_since, SPOT[0]: at(began)})
    diagnosis = diagnosed(load(*busy(*SPOT[1:])), spent, groups=groups)
    assert (diagnosis.replace, diagnosis.free) == ((SPOT[0],), (SPOT[0],))
    assert (SPOT[0] in diagnosis.memory.unproven) is covered
    # A refresh that rolls the version back has launched its successor.
    more = (group("spot", 5, groups[0].instances), groups[1])
    assert diagnosed(load(*busy(*SPOT[1:])), spent, groups=more).replace == ()


@pytest.mark.parametrize(("until", "late"), [(-301, False), (-300, True), (-1, True)])
def test_an_instance_of_the_last_minutes_before_logs_stopped_is_no_bootstrap_failure(
    until: float, late: bool
) -> None:
    """Other workers reported for as long as a worker may be silent, or for less."""
    memory = starting(-600, flow=LogFlow(newest=at(until)))
    assert diagnosed(load(), memory).bootstrap == ((SPOT[0],) if late else ())


@pytest.mark.parametrize(
    ("since", "by", "rate", "launching"),
    [
        pytest.param(0, 0.0, 1.0, True, id="it would get 100 requests before the deadline"),
        pytest.param(0, 0.0, 0.1, False, id="it would get 10, too few to tell"),
        pytest.param(-60, 8.0, 0.1, True, id="8 passed by, and it would get some more"),
        pytest.param(-9000, 13.0, 1.0, False, id="none could have reported, so it serves"),
    ],
)
def test_in_service_is_launching_while_it_would_have_reported_by_its_deadline(
    since: float, by: float, rate: float, launching: bool
) -> None:
    seen = replace(load(*busy(*SPOT[1:])), arrival_rate=rate)
    memory = diagnosed(seen, starting(since, by=by)).memory
    assert memory.unreported == ({SPOT[0]: at(since)} if launching else {})


@pytest.mark.parametrize(("silence_s", "launching"), [(5, True), (120, False)])
def test_in_service_is_not_launching_once_requests_have_stopped(
    silence_s: float, launching: bool
) -> None:
    """Spot was lost just after them; what stands in for it then seemed never to start."""
    flow = LogFlow(newest=at(-silence_s), rate=1.0, lately=1.0, watched_since=at(-7200))
    seen = replace(load(*busy(*SPOT[1:], seconds=-silence_s)), arrival_rate=1.0)
    unreported = diagnosed(seen, starting(-60, by=0.0, flow=flow)).memory.unreported
    assert [*unreported] == ([SPOT[0]] if launching else [])


@pytest.mark.parametrize(
    ("rate", "lately", "watched_s", "silence_s", "since", "known"),
    [
        # Three requests an hour are the share of each of six.
        (0.005, 0.005, 7200, 60, -60, False),
        (0.005, 0.0049, 7200, 60, -60, True),
        (0.005, 0.005, 7200, 60, -90_000, False),
        # Requests have stopped: nothing can be concluded.
        (0.005, 0.005, 7200, 9000, -3599, False),
        (0.005, 0.005, 7200, 9000, -3600, True),
        (0.005, 0.0, 7200, 60, -60, True),
        # Only an hour since memory was lost shows that requests are rare.
        (0.005, 0.0, 90, 60, -60, False),
        (0.0, 0.0, 3599, 60, -60, False),
        (0.0, 0.0, 3600, 60, -60, True),
    ],
)
def test_instances_that_never_reported_may_not_serve_where_requests_are_rare(
    rate: float, lately: float, watched_s: float, silence_s: float, since: float, known: bool
) -> None:
    flow = LogFlow(
        newest=at(-silence_s), rate=rate, lately=lately, watched_since=at(-watched_s)
    )  # fmt: skip
    diagnosis = diagnosed(load(), starting(since, by=0.0, flow=flow))
    assert diagnosis.memory.unproven == (() if known else (SPOT[0],))
    assert (diagnosis.reasons, diagnosis.memory.unreported) == ({}, {})


@pytest.mark.parametrize(
    ("queue", "known_s", "unproven"),
    [
        (None, -60, ()),
        (holding(0, 3), -60, (SPOT[0],)),
        (holding(0, 3, trouble="denied"), -60, ()),
        (holding(0), -60, (SPOT[0],)),
        (QUIET, -60, ()),
        # The last one that worked was lost just after the last request.
        (None, -590, (SPOT[0],)),
        (QUIET, -590, ()),
    ],
)
def test_a_queue_in_use_shows_that_requests_have_not_stopped_with_their_logs(
    queue: QueueMemory | None, known_s: float, unproven: tuple[str, ...]
) -> None:
    """An instance that never reported was launched after the logs stopped: does it serve?"""
    flow = LogFlow(newest=at(-600), rate=1.0, lately=1.0, watched_since=at(-7200))
    memory = starting(-60, by=0.0, flow=flow, worker_known_at=at(known_s), queue=queue)
    assert diagnosed(load(), memory).memory.unproven == unproven


@pytest.mark.parametrize(
    ("lately", "turned", "unknown"),
    [(1.0, -180, ["b"]), (1.0, -300, ["b"]), (1.0, -310, []), (0.0, -180, [])],
)
def test_instances_that_are_new_since_the_last_turn_may_not_serve(
    lately: float, turned: float, unknown: list[str]
) -> None:
    """Where turns have stopped, or requests are too rare to tell, instances in service serve."""
    counted_to = slot_of(at(turned))
    flow = LogFlow(newest=at(-1), lately=lately, watched_since=at(-7200), counted=counted_to)
    assert list(not_met(replace(OLD, flow=flow), [SPOT[0], "b"], at(0))) == unknown


@pytest.mark.parametrize(
    ("queue", "last_log", "replaced_ago_s", "due"),
    [
        (untouched(300), -300, None, SPOT[:1]),
        (untouched(299), -300, None, []),
        (untouched(300), -299, None, []),
        (untouched(300), -300, 599, []),
        (untouched(300), -300, 600, SPOT[:1]),
        (untouched(300, trouble="denied"), -300, None, []),
        (untouched(300, looks=4), -300, None, []),
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
    assert list(diagnosed(load(), memory).replace) == due


@pytest.mark.parametrize(
    ("seconds", "mean_s", "spot", "due"),
    [
        (300, 10, 1, SPOT[:1]),
        (299, 10, 1, []),
        (300, 11, 1, []),
        (309, 11, 1, SPOT[:1]),
        # Two may serve without logs, and behind a queue that grows.
        (3600, 10, 2, []),
    ],
)
def test_a_lone_worker_that_hangs_while_it_holds_a_request_is_replaced(
    seconds: float, mean_s: float, spot: int, due: list[str]
) -> None:
    queue = replace(untouched(seconds), length=QueueLength(waiting=7, in_flight=1))
    there = SPOT[:spot]
    memory = replace(
        OLD,
        queue=queue,
        service_mean_s=mean_s,
        last_logs=dict.fromkeys(there, at(-7000)),
        suspects=dict.fromkeys(there, at(-60)),
    )
    groups = (group("spot", spot, instances(there)), group("on-demand", 0))
    assert list(diagnosed(load(), memory, groups=groups).replace) == due


def test_what_took_no_request_stays_suspect_until_it_logs_although_others_take_them_now() -> None:
    hung = dict.fromkeys(SPOT[:4], at(-600)) | {SPOT[3]: at(-60)}
    memory = replace(
        OLD,
        queue=holding(7, 2),
        last_logs=hung,
        silent=(*SPOT[:4],),
        suspects=dict.fromkeys(hung, LONG_AGO),
    )
    diagnosis = diagnosed(load(*busy(*SPOT[4:])), memory)
    assert [*diagnosis.reasons] == [*SPOT[:3]]
    assert (diagnosis.logs_missing, list(diagnosis.replace)) == (0, SPOT[:2])


def turns_of(before: int, since: int, later: int = 0) -> dict[int, int]:
    """The requests that turns counted each minute, up to a silence of an hour and since then."""
    each = [before] * 60 + [since] * 30 + [later or since] * 30
    return {slot_of(at(60 * (n - 119))): count for n, count in enumerate(each)}


@pytest.mark.parametrize(
    ("dead", "racks", "counts", "rate", "missing"),
    [
        pytest.param(3, 0, turns_of(60, 30), 0.5, True, id="the others serve as many as before"),
        pytest.param(3, 0, turns_of(60, 60), 0.5, False, id="the others serve all"),
        pytest.param(3, 0, turns_of(60, 45), 0.5, False, id="more like all"),
        pytest.param(3, 0, turns_of(60, 42), 0.5, True, id="less like all"),
        pytest.param(3, 0, turns_of(60, 30), 0.9, False, id="the others have no time left"),
        pytest.param(3, 0, turns_of(60, 30, 90), 0.5, True, id="the load rose much later"),
        pytest.param(3, 0, turns_of(60, 60, 20), 0.5, False, id="the load fell much later"),
        pytest.param(3, 0, {}, 0.5, True, id="the load before is not known"),
        pytest.param(2, 0, turns_of(60, 40), 0.5, False, id="only a third"),
        pytest.param(5, 6, turns_of(60, 35), 0.5, True, id="workers on premises serve as many"),
        pytest.param(5, 6, turns_of(60, 60), 0.5, False, id="five of twelve are dead"),
    ],
)
def test_workers_whose_requests_the_others_serve_are_dead_and_no_logs_are_missing(
    dead: int, racks: int, counts: dict[int, int], rate: float, missing: bool
) -> None:
    seen = load(*busy(*SPOT[dead:]), *onprem(*[0.0] * racks), rate=rate)
    silent_since = dict.fromkeys(SPOT[:dead], at(-3600))
    memory = passed(*SPOT[:dead], counts=counts, last_logs=silent_since)
    assert (diagnosed(seen, memory, onprem_workers=racks).logs_missing == dead) is missing


def test_dead_workers_stay_dead_when_others_fall_silent_whose_logs_may_be_missing() -> None:
    since = {**dict.fromkeys(SPOT[:2], at(-7000)), **dict.fromkeys(SPOT[2:4], at(-3600))}
    known, counts = dict.fromkeys(SPOT[:2], at(-60)), turns_of(60, 30)
    memory = passed(*SPOT[:4], suspects=known, silent=SPOT[:2], last_logs=since, counts=counts)
    diagnosis = diagnosed(load(*busy(*SPOT[4:]), rate=0.5), memory)
    assert (set(SPOT[:2]) <= set(diagnosis.memory.silent), diagnosis.logs_missing) == (True, 2)
    lately = {**since, **dict.fromkeys(SPOT[2:4], at(-100))}
    idle = replace(memory, last_logs=lately, counts={})
    assert diagnosed(load(*busy(*SPOT[4:]), rate=0.5), idle).logs_missing == 0


def test_turns_remember_the_requests_of_two_hours() -> None:
    memory = OLD
    for minutes in range(180):
        memory = minute(memory, 60 * minutes, *SPOT)
    assert [*memory.counts.values()] == [60] * 121
    assert {later - slot for slot, later in pairwise(memory.counts)} == {6}


@pytest.mark.parametrize(
    ("queue", "replaced_ago_s", "due"),
    [
        (untouched(300), None, SPOT[:1]),
        (None, None, SPOT[:1]),
        (untouched(300), 599, []),
        (untouched(300), 600, SPOT[:1]),
    ],
)
def test_without_a_living_peer_one_is_replaced_at_a_time_while_requests_flow(
    queue: QueueMemory | None, replaced_ago_s: float | None, due: list[str]
) -> None:
    before = () if replaced_ago_s is None else (at(-replaced_ago_s),)
    assert list(diagnosed(load(), none_reports(queue, replaced=before)).replace) == due


@pytest.mark.parametrize(("waiting", "in_flight"), [(0, 0), (0, 3), (7, 3), (7, 0)])
def test_instances_that_never_reported_serve_where_requests_are_taken(
    waiting: int, in_flight: int
) -> None:
    """One look at waiting requests proves nothing: workers that send no logs take them, too."""
    diagnosis = diagnosed(load(), none_reports(holding(waiting, in_flight)))
    assert (diagnosis.reasons, diagnosis.memory.unreported) == ({}, {})


def test_a_fleet_whose_requests_ended_does_not_replace_its_instances_all_night() -> None:
    memory, replacements = none_reports(None), 0
    for minute in range(12 * 60):
        diagnosis = diagnosed(load(seconds=60 * minute), memory)
        memory = replaced(diagnosis.memory, diagnosis.replace, at(60 * minute))
        replacements += len(diagnosis.replace)
    assert 0 < replacements < 10


# --- Workers on premises: they cannot be replaced, so they raise alarms ---


@pytest.mark.parametrize(
    ("declared", "own_s", "rings"), [(2, None, True), (0, -3600, True), (0, -9001, False)]
)
def test_requests_that_wait_ring_without_an_instance_where_own_workers_should_take_them(
    declared: int, own_s: float | None, rings: bool
) -> None:
    own = None if own_s is None else at(own_s)
    memory = HealthMemory(queue=untouched(300), flow=LogFlow(newest=at(-3600)), onprem_at=own)
    none = (group("spot", 0), group("on-demand", 0))
    found = diagnosed(load(), memory, groups=none, onprem_workers=declared)
    assert ("7 requests wait" in found.nobody_serves) is rings


@pytest.mark.parametrize(
    ("racks", "last", "declared", "finished", "silent"),
    [(2, 0, 2, 112, 0), (2, 0, 3, 112, 1), (2, 0, 3, 111, 0), (3, -300, 3, 180, 3)],
)
def test_workers_on_premises_only_raise_alarms(
    racks: int, last: float, declared: int, finished: int, silent: int
) -> None:
    """Eight workers have their share of requests when each might have had fourteen."""
    seen = load(*busy(*SPOT), *onprem(*[0.0] * racks, last=last))
    seen = replace(seen, finished=finished)
    missing = diagnosed(seen, onprem_workers=declared)
    assert (missing.onprem_silent, missing.reasons, missing.replace) == (silent, {}, ())


def test_a_slow_worker_on_premises_is_compared_with_its_like_and_observed_twice() -> None:
    memory, slow = OLD, {"rack-2": "serves 3.0 times slower than its peers"}
    fails = {"rack-2": "20 of 20 requests failed"}
    for seconds, mean_s, failed, well, reasons, due in (
        (0, 6.0, 0, 6, {}, ()),
        (60, 18.0, 0, 6, slow, ()),
        (120, 18.0, 0, 6, slow, ("rack-2",)),
        (180, 6.0, 20, 6, fails, ("rack-2",)),
        # Of eight, four fail; then five.
        (240, 6.0, 20, 2, fails, ("rack-2",)),
        (300, 6.0, 20, 1, {}, ()),
    ):
        cloud = [
            worker(i, failed=20 * (n >= well), mean_s=1.0, last=seconds)
            for n, i in enumerate(SPOT[:5])
        ]
        racks = [
            *onprem(6.0, 6.0, last=seconds),
            worker("", failed=failed, mean_s=mean_s, last=seconds, name="rack-2"),
        ]
        seen = load(*cloud, *racks, seconds=seconds)
        found = diagnosed(seen, memory)
        own = [one for one in found.suspects if one.on_premises]
        assert {one.instance_id: one.why for one in own} == reasons
        assert {one.kind for one in own} <= {Suspicion.FAILING if failed else Suspicion.SLOW}
        assert (found.onprem_due, found.onprem_suspect) == (due, len(due))
        assert well < 6 or (found.reasons, found.replace) == ({}, ())
        memory = found.memory
    assert memory.onprem_suspects == {}
