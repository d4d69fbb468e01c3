"""How a promise about waiting becomes a size of the spot group; its laws: test_slo_sizing_laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health_memory import HealthMemory, Needed
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.history import (
    ArrivalLog,
    LoadSummary,
)
from spotkeeper.domain.load.load import Load, slot_of
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper.domain.sizing.size import ObjectiveInput, Sizing, size
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


def summary(erlangs: float, *, service_s: float = 2.0, wait_s: float = 0.0) -> LoadSummary:
    """Fifteen minutes of a steady load."""
    return LoadSummary(
        log=ArrivalLog(0, (max(1, round(10 * erlangs / service_s)),) * 90, (10 * erlangs,) * 90),
        service_mean_s=service_s,
        newest_start_age_s=2.0,
        newest_wait_s=wait_s,
    )


def logged(seconds: float = 0, *, onprem: int = 0, age_s: float = 0) -> Load:
    """The load at an instant, with `onprem` live on-premises workers."""
    newest = at(seconds - age_s)
    rack = tuple(worker(f"rack-{n}", last_finished=newest) for n in range(onprem))
    return Load(at=at(seconds), window_s=300, workers=rack, newest=newest)


def sized(
    seen: LoadSummary,
    desired: int = 4,
    *,
    of: Fleet | None = None,
    memory: HealthMemory = SETTLED,
    load: Load | None = None,
    serving: int | None = None,
    spares: int = 0,
) -> Sizing:
    """One sizing; the whole desired capacity serves, unless `serving` is given."""
    load = load or logged()
    outlook = ObjectiveInput(summary=seen, serving=desired if serving is None else serving)
    spot = group("spot", desired)
    return size(load, of or promised(), spot, spares, memory, load.at, outlook)


def test_the_fewest_workers_that_keep_the_promise_are_requested() -> None:
    sizing = sized(summary(7.0))
    assert (sizing.action, sizing.rule, sizing.missing) == (Action.RESIZE, "objective", 0)
    assert 8 <= sizing.workers == sizing.spot_desired <= 10
    assert len(sizing.memory.needed) == 1, "a need before that was less is forgotten"
    assert sizing.reason.startswith(
        f"load 7.0 erlangs needs {sizing.workers} workers: {sizing.workers} start 95% within 10 s "
    )
    assert "(Erlang C on the last 5 min, kept 15 min, and on bursts of a minute" in sizing.reason
    assert sizing.reason.endswith(f", 0 on premises: spot 4 -> {sizing.workers}")


def test_a_worker_that_serves_several_at_once_counts_as_many() -> None:
    need = sized(summary(70.0)).workers
    batching = replace(promised(per=2), slots=16)
    sizing = sized(summary(70.0), of=batching)
    assert (sizing.workers, sizing.spot_desired) == (-(-need // 16), -(-need // 32))
    assert sizing.reason.startswith(f"in slots, 16 a worker: load 70.0 erlangs needs {need} ")
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
    assert after(900, serving=24).memory.needed[0].workers == 24
    assert after(901, serving=24).memory.needed[0].workers < 24, "it is forgotten"


def test_a_bound_that_does_not_hold_the_need_says_by_how_much() -> None:
    sizing = sized(summary(7.0), of=promised(spot_max=5))
    assert (sizing.spot_desired, sizing.rule) == (5, "spot maximum")
    assert sizing.missing == sizing.workers - 5 > 0
    assert f"the bound of 5 is {sizing.missing} short" in sizing.reason


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
    ids=[
        "chance explains it",
        "fresh",
        "it does not",
        "unknown rate",
        "nobody serves",
        "some wait",
    ],
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


# Whole requests of two seconds in each ten.
erlangs = st.integers(3, 300).map(lambda requests: requests / 5)
waits = st.floats(0, 120)
desires = st.integers(0, 80)


@given(erlangs, waits, desires, st.integers(1, 4), st.integers(0, 10))
def test_booting_workers_are_not_requested_again(
    load: float, waited_s: float, desired: int, per: int, onprem: int
) -> None:
    seen, of = summary(load, wait_s=waited_s), promised(per=per)
    first = sized(seen, desired, of=of, load=logged(onprem=onprem))
    if first.rule == "growth per turn":
        return
    second = sized(
        seen,
        first.spot_desired,
        of=of,
        memory=first.memory,
        load=logged(60, onprem=onprem),
        serving=min(desired, first.spot_desired),
    )
    assert second.spot_desired <= max(first.spot_desired, desired)
