"""How a promise about waiting becomes workers, and a size of the spot group.

The laws are in test_slo_sizing_laws.
"""

import itertools
from dataclasses import replace

import pytest

from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health_memory import HealthMemory, Needed
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.history import ArrivalLog
from spotkeeper.domain.load.load import Load, slot_of
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper.domain.sizing.shadows import Choice, Member, ObjectivePolicy, erlang_workers
from spotkeeper.domain.sizing.size import (
    Estimate,
    ObjectiveInput,
    Sizing,
    size,
    size_to_objective,
)
from tests.builders import at, fleet, group
from tests.search_logs import worker

FRESH = HealthMemory()
SETTLED = HealthMemory(needed=(Needed(at=at(-800), workers=1),))


def promised(
    wait_s: float = 10, share: float = 0.95, *, spot_max: int = 100, per: int = 1
) -> Fleet:
    """A fleet with an objective."""
    objective = Objective(wait_s=wait_s, share=share)
    return replace(fleet(spot_max=spot_max, workers_per_instance=per), objective=objective)


def summary(
    erlangs: float, *, service_s: float = 2.0, wait_s: float = 0.0, slots: int = 90
) -> ObjectiveInput:
    """Fifteen minutes of a steady load, the newest seconds still running."""
    times_s = [min(10 * slot, 10 * slots - 1.5 * service_s - 2) for slot in range(slots + 1)]
    edges = [round(erlangs * time_s / service_s) for time_s in times_s]
    arrivals = [after - before for before, after in itertools.pairwise(edges)]
    return ObjectiveInput(
        log=ArrivalLog(0, arrivals, [count * service_s for count in arrivals]),
        service_mean_s=service_s,
        newest_start_age_s=4.0,
        newest_wait_s=wait_s,
    )


def logged(seconds: float = 0, *, onprem: int = 0, age_s: float = 0) -> Load:
    """The load at an instant, with `onprem` live on-premises workers."""
    newest = at(seconds - age_s)
    rack = tuple(worker(f"rack-{n}", last_finished=newest) for n in range(onprem))
    return Load(at=at(seconds), window_s=300, workers=rack, newest=newest)


def sized(
    seen: ObjectiveInput,
    desired: int = 4,
    *,
    of: Fleet | None = None,
    memory: HealthMemory = SETTLED,
    load: Load | None = None,
    serving: int | None = None,
) -> Sizing:
    """One sizing; the whole desired capacity serves, unless `serving` is given."""
    load = load or logged()
    outlook = replace(seen, serving=desired if serving is None else serving)
    spot = group("spot", desired)
    return size(load, of or promised(), spot, memory, load.at, outlook)


def test_the_fewest_workers_that_keep_the_promise_are_requested() -> None:
    sizing = sized(summary(7.0))
    assert (sizing.action, sizing.rule, sizing.missing) == (Action.RESIZE, "objective", 0)
    assert 8 <= sizing.workers == sizing.spot_desired <= 10
    assert len(sizing.memory.needed) == 1, "a need before that was less is forgotten"
    assert sizing.reason.startswith(
        f"Spot 4 -> {sizing.workers}. The load needs {sizing.workers} workers now. "
        f"With {sizing.workers}, 95% start within 10 s. "
    )
    assert (
        "The fleet follows Erlang C on the last 5 min, kept 15 min, and on bursts of a minute"
        in sizing.reason
    )


def test_the_size_is_kept_for_a_quarter_of_an_hour_after_the_first_choice() -> None:
    for first, workers in ((True, 40), (False, sized(summary(7.0)).workers)):
        seen = replace(summary(7.0), serving=40, choice=Choice(first=first))
        sizing = size(logged(), promised(), group("spot", 40), SETTLED, at(0), seen)
        assert sizing.spot_desired == workers


def test_a_worker_that_serves_several_at_once_counts_as_many() -> None:
    need = sized(summary(70.0)).workers
    batching = replace(promised(per=2), slots=16)
    sizing = sized(summary(70.0), of=batching)
    assert (sizing.workers, sizing.spot_desired) == (-(-need // 16), -(-need // 32))
    assert f"In slots, 16 per worker: the load needs {need} " in sizing.reason
    assert sized(summary(70.0), of=batching, load=logged(onprem=4)).spot_desired == 1
    narrow = replace(batching, bounds=replace(batching.bounds, spot_max=1))
    assert sized(summary(70.0), of=narrow).missing == -(-need // 16) - 2


def test_what_was_launched_serves_before_anything_is_given_back() -> None:
    five = ArrivalLog(0, [25] * 400, [50.0] * 400)
    memory = replace(FRESH, needed=(Needed(at=at(0), workers=24),))

    def after(seconds: int, serving: int, desired: int = 24) -> Sizing:
        seen, load = replace(summary(5.0), log=five), logged(seconds)
        return sized(seen, desired, memory=memory, load=load, serving=serving)

    assert after(200, serving=15).spot_desired == 24
    assert after(200, serving=24).spot_desired < 24
    assert after(300, serving=15).spot_desired < 24, "what never serves is given up"
    assert after(200, serving=5, desired=12).spot_desired == 12, "it is not launched again"
    assert after(899, serving=24).memory.needed[0].workers == 24
    assert after(900, serving=24).memory.needed[0].workers < 24, "it is forgotten"


def test_a_bound_below_the_need_is_reported_with_the_difference() -> None:
    sizing = sized(summary(7.0), of=promised(spot_max=5))
    assert (sizing.spot_desired, sizing.rule) == (5, "spot maximum")
    assert sizing.missing == sizing.workers - 5 > 0
    assert f"The maximum of 5 is {sizing.missing} too few" in sizing.reason


def test_silence_holds_and_is_remembered() -> None:
    high = sized(summary(20.0), 30)
    silent = sized(summary(20.0), 30, memory=high.memory, load=logged(240, age_s=240))
    assert (silent.stale, silent.action, silent.spot_desired) == (True, Action.HOLD, 30)
    assert silent.memory.needed[-1] == Needed(at=at(240), workers=high.workers, held=True)
    again = sized(summary(20.0), 30, memory=silent.memory, load=logged(300, age_s=300))
    assert len(again.memory.needed) == len(silent.memory.needed)
    back = sized(summary(2.0), 30, memory=again.memory, load=logged(900))
    assert back.spot_desired == high.workers
    whole = sized(summary(2.0), 30, memory=back.memory, load=logged(1201))
    assert whole.spot_desired < high.workers


RARE = LogFlow(
    newest=at(0), rate=0.002, lately=0.002, counted=slot_of(at(0)), watched_since=at(-9_000)
)
IDLE = replace(summary(1.0), log=ArrivalLog(0, [5] * 60 + [0] * 240, [10.0] * 60 + [0.0] * 240))


@pytest.mark.parametrize(
    ("flow", "serving", "queue", "age_s", "expected"),
    [
        (RARE, 4, None, 1_900, 1),
        (RARE, 4, None, 60, 1),
        (replace(RARE, rate=1.0, lately=1.0), 4, None, 1_900, 4),
        (LogFlow(), 4, None, 1_900, 4),
        (RARE, 0, None, 1_900, 4),
        (RARE, 4, QueueMemory(length=QueueLength(waiting=3, in_flight=0)), 1_900, 4),
    ],
    ids=["chance explains it", "fresh", "it does not", "unknown rate", "none serves", "some wait"],
)
def test_only_a_silence_that_chance_does_not_explain_holds(
    flow: LogFlow, serving: int, queue: QueueMemory | None, age_s: int, expected: int
) -> None:
    memory = replace(SETTLED, flow=flow, queue=queue, service_mean_s=2.0)
    load = replace(logged(age_s, age_s=age_s), newest=at(0) if age_s < 1_000 else None)
    sizing = sized(IDLE, 4, memory=memory, load=load, serving=serving)
    assert sizing.spot_desired == expected


def test_a_silence_never_adds() -> None:
    load = replace(logged(300), newest=at(0))
    sizing = sized(summary(20.0), 4, memory=replace(SETTLED, flow=RARE), load=load)
    assert sizing.spot_desired == 4


# --- The rule of one member, in workers ---


POLICY = ObjectivePolicy(wait_s=10.0, share=0.95, min_workers=1, max_workers=1_000, start_up_s=240)
LONG_AGO, FIVE_MINUTES = Needed(at=at(-600), workers=1), Member(300, 0.0, 300)


def needed(
    load: ObjectiveInput,
    live: int = 1,
    booting: int = 0,
    *,
    policy: ObjectivePolicy = POLICY,
    past: tuple[Needed, ...] = (LONG_AGO,),
    member: Member = FIVE_MINUTES,
) -> Estimate:
    return size_to_objective(load, live, booting, past, at(0), policy, member)


def test_long_requests_are_measured_in_windows_as_long_as_one() -> None:
    seen = summary(10.0, service_s=600.0, slots=400)
    need = needed(seen, live=10)
    assert "windows are at least as long as a request, 10 min" in need.reason
    assert "as long as a request" not in needed(summary(10.0), live=10).reason
    waiting = replace(seen, queued=8, newest_wait_s=30.0)
    assert 18 <= needed(waiting, live=10).steady <= 20, "a request takes one worker"
    few = replace(summary(30.0, service_s=600.0, slots=160), queued=0)
    assert needed(few, live=10).steady == 10, "the first that end measure chance"


def test_after_a_silence_a_fleet_does_not_shrink_below_the_need_that_was_held() -> None:
    before = (Needed(at=at(-60), workers=9), Needed(at=at(-600), workers=30))
    assert needed(summary(2.0), live=9, past=before).steady == 3
    held = Needed(at=at(-600), workers=9, held=True)
    need = needed(summary(2.0), live=9, past=(*before, held))
    assert (need.steady, need.needed[-1].workers) == (9, 3)
    assert "the fleet keeps 9 as before" in need.reason
    assert needed(summary(2.0), live=9, past=(replace(held, at=at(-960)),)).steady == 3


def test_a_young_fleet_and_one_without_a_known_request_hold() -> None:
    assert needed(summary(2.0, slots=12), live=7).steady == 7
    assert needed(summary(2.0), live=7, past=()).steady == 7
    nothing = replace(summary(2.0), log=ArrivalLog(0, [0] * 90, [0.0] * 90), service_mean_s=0.0)
    assert needed(nothing, live=6, booting=2).steady == 8


@pytest.mark.parametrize(
    ("calm", "high", "begins", "ends", "fewest", "most"),
    [
        pytest.param(3.0, 3.0, 54, 66, 3, 5, id="no spike"),
        pytest.param(3.0, 12.0, 54, 66, 12, 14, id="a spike of two minutes, 20 minutes ago"),
        pytest.param(20.0, 24.0, 63, 69, 20, 22, id="a minute that chance explains"),
        pytest.param(20.0, 36.0, 63, 69, 36, 50, id="a minute that it does not explain"),
    ],
)
def test_a_young_fleet_keeps_what_a_spike_needed_for_the_next_one(
    calm: float, high: float, begins: int, ends: int, fewest: int, most: int
) -> None:
    load = summary(calm, slots=186)
    requests, _ = load.log.slots()
    requests[begins:ends] = [round(high / calm * n) for n in requests[begins:ends]]
    log = ArrivalLog(0, requests, [2.0 * n for n in requests])
    need = size_to_objective(replace(load, log=log), round(calm) + 2, 0, [LONG_AGO], at(0), POLICY)
    assert fewest <= need.steady <= most


def test_a_backlog_is_drained_and_nothing_is_given_back_while_it_lasts() -> None:
    waiting = summary(10.0, wait_s=60.0)
    need = needed(waiting, live=10)
    assert need.steady > needed(summary(10.0), live=10).steady
    assert "clear the waiting requests" in need.reason
    assert needed(waiting, live=50).steady == 50
    assert needed(replace(summary(2.0), queued=3_000), live=3).steady > 20


def test_a_step_is_seen_in_the_seconds_of_it_that_were_served() -> None:
    """One erlang, then forty: two minutes later two workers have served ten seconds of that."""
    requests = [5] * 77 + [200] + [0] * 12
    log = ArrivalLog(0, requests, [2.0 * n for n in requests])
    load = replace(summary(1.0, wait_s=110.0), log=log, newest_start_age_s=10.0)
    assert 40 <= needed(load, live=2).steady <= 80
    assert needed(replace(load, newest_wait_s=30.0, newest_start_age_s=90.0), live=2).steady < 20


@pytest.mark.parametrize(
    ("load", "wait_s", "share", "workers"),
    [(0.0, 10, 0.95, 1), (0.5, 10, 0.95, 1), (1.9, 4, 0.95, 3), (25, 0, 0.7501, 30)],
)
def test_workers_are_erlangs(load: float, wait_s: float, share: float, workers: int) -> None:
    assert erlang_workers(load, 2.0, wait_s, share) == workers


def test_a_need_is_kept_as_long_as_the_member_keeps_it() -> None:
    busy, calm = summary(9.0, slots=30).log, summary(2.0, slots=48).log
    log = ArrivalLog(0, *calm.slots(), busy, 30)
    load = replace(summary(2.0), log=log)
    short, long = (needed(load, member=Member(120, 0.0, keep_s)) for keep_s in (180, 1_800))
    assert short.steady == 3
    assert long.steady >= 10
    assert f"needs 3 workers now; {long.steady} was the peak of the last 30 minutes" in long.reason
