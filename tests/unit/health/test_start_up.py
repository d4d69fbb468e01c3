"""How long launches took, and which instances have not reported since."""

from dataclasses import replace

from spotkeeper.domain.health.reports import LAUNCHES, watch_starts
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper.domain.sizing.size import objective_policy
from tests.builders import at, fleet, group, ids, instances
from tests.search_logs import worker

A, B, C = ids("a", 3)


def watched(
    memory: HealthMemory,
    seconds: float,
    *,
    launching: tuple[str, ...] = (),
    serving: tuple[str, ...] = (),
    reported: tuple[str, ...] = (),
) -> HealthMemory:
    """What is remembered after a look at the spot group and the logs."""
    workers = tuple(worker(i, i, last_finished=at(seconds)) for i in reported)
    spot = group("spot", 3, instances(serving, launching))
    load = Load(at=at(seconds), window_s=300, workers=workers)
    return watch_starts(memory, spot, group("on-demand", 0), load, at(seconds))


def start_up_s(memory: HealthMemory) -> float:
    """The start-up time that the sizing rule is given, 240 s by the document."""
    of = replace(fleet(), objective=Objective(wait_s=10, share=0.95, start_up_s=240))
    return objective_policy(of, 1, group("spot", 3), 0, memory).start_up_s


def test_a_launch_takes_from_first_seen_to_in_service() -> None:
    first = watched(HealthMemory(), 0, launching=(A, B))
    second = watched(first, 180, launching=(B,), serving=(A,))
    assert (second.start_ups, second.starting) == ((180,), {A: at(0), B: at(0)})
    known = HealthMemory(
        starting=second.starting, start_ups=(220,), in_service_since={A: at(180)}
    )  # fmt: skip
    third = watched(known, 300, serving=(A, B), reported=(A,))
    assert (third.start_ups, third.starting) == ((220, 300), {B: at(0)})
    assert start_up_s(third) == 260


def test_instances_that_served_before_the_first_turn_are_not_starting() -> None:
    known = HealthMemory(in_service_since={A: at(-9000)})
    assert watched(known, 0, serving=(A, C)).starting == {C: at(0)}


def test_only_the_last_launches_count_and_lost_instances_are_forgotten() -> None:
    memory = HealthMemory(start_ups=tuple(range(LAUNCHES)), starting={A: at(0), B: at(0)})
    after = watched(memory, 60, serving=(A,))
    assert after.start_ups == (*range(1, LAUNCHES), 60)
    assert after.starting.keys() == {A}
