"""What the request queue's length does to the size, with an objective and with a load rate."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.decision import Action
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health_memory import HealthMemory, Needed
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.settings.sizing import Bounds
from spotkeeper.domain.sizing.shadows import Choice
from spotkeeper.domain.sizing.size import ObjectiveInput, Sizing, size
from tests.builders import at, fleet, group, instances
from tests.unit.sizing.test_sizing_to_objective import logged, promised, summary

RULES = pytest.mark.parametrize("of", [promised(), fleet()], ids=["objective", "load rate"])
UNREAD = QueueMemory(trouble="Refused: denied", unread_since=at(0))


def holding(waiting: int, in_flight: int = 0) -> QueueMemory:
    """A queue that held this many messages at the last look."""
    return QueueMemory(length=QueueLength(waiting=waiting, in_flight=in_flight), read_at=at(0))


def quiet(seconds: float) -> QueueMemory:
    """A queue that nine looks found empty, for this many seconds."""
    return replace(holding(0), empty_since=at(-seconds), empty_looks=9)


def silent(*, onprem: int = 0) -> Load:
    """Search logs of which the newest is ten minutes old."""
    return logged(onprem=onprem, age_s=600)


def sized(
    of: Fleet,
    queue: QueueMemory | None,
    desired: int = 4,
    *,
    load: Load | None = None,
    seen: ObjectiveInput | None = None,
    service_mean_s: float = 2.0,
    overspent: bool = False,
) -> Sizing:
    """One sizing at noon."""
    memory = HealthMemory(
        needed=(Needed(at=at(-800), workers=1),), queue=queue, service_mean_s=service_mean_s
    )
    spot = group("spot", desired, instances(serving=[f"i-{n:08x}" for n in range(desired)]))
    outlook = replace(
        seen or summary(1.0),
        queued=queue.length.waiting if queue and queue.length else None,
        serving=desired,
        choice=Choice(overspent=overspent),
    )
    return size(load or silent(), of, spot, memory, at(0), outlook)


@RULES
def test_a_quiet_fleet_shrinks_to_zero_in_the_cloud(of: Fleet) -> None:
    early = sized(of, quiet(599))
    assert (early.action, early.rule, early.stale) == (Action.HOLD, "quiet", False)
    sizing = sized(of, quiet(600))
    assert (sizing.action, sizing.rule, sizing.spot_desired) == (Action.RESIZE, "quiet", 0)
    assert sizing.reason == "Spot 4 -> 0. No request for 600 s, nothing waits or is in flight."
    assert sized(of, quiet(600), 0).rule == "at target"
    held = sized(replace(of, onprem_workers=3), quiet(600), load=silent(onprem=3))
    assert held.reason.endswith(" On premises: 3.")


@pytest.mark.parametrize(
    ("load", "desired", "kept"), [(3.0, 9, 4), (3.0, 2, 2), (0.0, 9, 1), (3.0, 0, 1)]
)
def test_a_quiet_fleet_that_overspent_its_promise_keeps_what_its_rule_needs(
    load: float, desired: int, kept: int
) -> None:
    """It does not grow, and a fleet that may have no worker sleeps."""
    asleep = sized(promised(), quiet(600), desired, seen=summary(load), overspent=True)
    assert asleep.spot_desired == 0
    awake = replace(promised(), bounds=Bounds(spot_min=1, spot_max=9, on_demand_max=9))
    sizing = sized(awake, quiet(600), desired, seen=summary(load), overspent=True)
    assert sizing.spot_desired == kept
    assert "lately too many waited for long" in sizing.reason


@RULES
@pytest.mark.parametrize(
    ("waiting", "service_s", "workers"), [(1, 2.0, 1), (1, 0.0, 1), (800, 0.0, 1), (800, 2.0, 6)]
)
def test_waiting_requests_wake_a_fleet_at_zero(
    of: Fleet, waiting: int, service_s: float, workers: int
) -> None:
    sizing = sized(of, holding(waiting), 0, service_mean_s=service_s)
    assert (sizing.action, sizing.rule, sizing.spot_desired) == (Action.RESIZE, "wake", workers)
    assert not sizing.stale
    assert f"{waiting} requests wait, 0 are in flight." in sizing.reason
    pairs = replace(of, workers_per_instance=2)
    assert sized(pairs, holding(waiting), 0, service_mean_s=service_s).spot_desired == -(
        -workers // 2
    )


@RULES
def test_a_wake_within_the_bound(of: Fleet) -> None:
    of = replace(of, bounds=Bounds(spot_min=0, spot_max=3, on_demand_max=9))
    sizing = sized(of, holding(800), 0)
    assert (sizing.spot_desired, sizing.missing) == (3, 3 if of.objective else 0)


@RULES
def test_an_unknown_queue_holds_the_size_and_is_named(of: Fleet) -> None:
    sizing = sized(of, UNREAD)
    assert (sizing.action, sizing.rule, sizing.stale) == (Action.HOLD, "stale search logs", True)
    assert "the request queue is not known (Refused: denied)." in sizing.reason
    assert sized(of, UNREAD, 0).spot_desired == 0
    blind = replace(UNREAD, unread_since=at(-300))
    assert sized(of, blind).spot_desired == 4
    assert (sized(of, blind, 0).spot_desired, sized(of, blind, 0).rule) == (1, "wake")


def test_a_load_rate_clears_what_waits() -> None:
    load = replace(logged(), offered=2.1, arrival_rate=1.0)
    few, many = (sized(fleet(), holding(n), load=load) for n in (10, 900))
    assert (few.workers, many.workers) == (3, 9)


lengths = st.integers(0, 2_000)
desires = st.integers(0, 80)
lists = st.sampled_from([promised(), fleet(), promised(per=3)])


@given(lists, lengths, lengths, desires, st.booleans(), st.floats(0, 30))
def test_more_waiting_requests_never_mean_fewer_workers(
    of: Fleet, one: int, other: int, desired: int, logs: bool, service_s: float
) -> None:
    load = replace(logged(), offered=3.0, arrival_rate=1.0) if logs else silent()
    less, more = (
        sized(of, holding(n), desired, load=load, seen=summary(3.0), service_mean_s=service_s)
        for n in sorted((one, other))
    )
    assert less.spot_desired <= more.spot_desired
    assert less.workers <= more.workers
    quietest = sized(of, quiet(900), desired, load=load, seen=summary(3.0))
    assert quietest.spot_desired <= less.spot_desired


@given(lists, desires, st.none() | st.just(UNREAD) | st.builds(holding, lengths, lengths))
def test_silence_never_scales_in_unless_the_queue_was_quiet(
    of: Fleet, desired: int, queue: QueueMemory | None
) -> None:
    assert sized(of, queue, desired).spot_desired >= desired
    assert sized(of, quiet(599), desired).spot_desired >= desired


@given(lists, desires, st.integers(0, 40), st.integers(0, 40), st.builds(holding, lengths))
def test_a_wake_never_leaves_the_bounds(
    of: Fleet, desired: int, least: int, more: int, queue: QueueMemory
) -> None:
    of = replace(of, bounds=Bounds(spot_min=least, spot_max=least + more, on_demand_max=9))
    for seen in (queue, quiet(900)):
        sizing = sized(of, seen, desired)
        assert sizing.spot_desired <= max(least + more, desired)
    assert sized(of, quiet(900), desired).spot_desired == least
