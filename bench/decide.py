"""Deciding: one availability turn of a fleet of 1,000 instances, without any call."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

from bench._figures import Figure, show
from spotkeeper.domain.availability.decide import apply, assess, plan
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Answer
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.domain.fleet import Fleet, Group, Instance, Observation, Phase
from spotkeeper.domain.settings.sizing import Bounds

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TURNS = 60
ROUNDS = 20
LIMIT_MS = 1.0
TEXT = "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity."


type Turn = tuple[Snapshot, AvailabilityMemory]


def fleet() -> Fleet:
    """A fleet with room for everything here."""
    return Fleet(
        name="big",
        spot_group="spot",
        on_demand_group="on-demand",
        bounds=Bounds(spot_min=0, spot_max=2000, on_demand_max=2000),
    )


def group(name: str, desired: int, serving: int, launching: int = 0) -> Group:
    """A group of so many instances over three zones and two types."""
    numbers = count(1)
    phases = [Phase.IN_SERVICE] * serving + [Phase.LAUNCHING] * launching
    return Group(
        name=name,
        desired=desired,
        minimum=0,
        maximum=2000,
        instances=tuple(
            Instance(
                instance_id=f"i-{name[0]}{number:016x}",
                pool=f"us-east-1{'abc'[number % 3]}/g5.{('', '2')[number % 2]}xlarge",
                phase=phase,
            )
            for number, phase in zip(numbers, phases, strict=False)
        ),
        suspended=frozenset({"AZRebalance"}),
    )


def whole() -> list[Turn]:
    """A fleet that lacks nothing."""
    return turns(lambda _: (group("spot", 1000, 1000), group("on-demand", 0, 0)))


def lasting_gap() -> list[Turn]:
    """A quarter of spot missing, filled, with failures every 15 s and 20 instances at risk."""
    failures = tuple(
        LaunchFailure(
            at=NOW - timedelta(seconds=15 * n), failure_class=FailureClass.CAPACITY, message=TEXT
        )
        for n in range(20)
    )
    short = group("spot", 1000, 750)
    warned = {i.instance_id: NOW for i in short.instances[:20]}
    return turns(lambda _: (short, group("on-demand", 250, 250)), failures, warned)


def coming_back() -> list[Turn]:
    """Spot fills up again ten instances a turn while on-demand is given back."""
    return turns(
        lambda n: (
            group("spot", 600, min(600, 400 + 10 * n), max(0, 200 - 10 * n)),
            group("on-demand", 400, 400),
        )
    )


def turns(
    at: Callable[[int], tuple[Group, Group]],
    failures: Sequence[LaunchFailure] = (),
    warned: dict[str, datetime] | None = None,
) -> list[Turn]:
    """An hour of turns, each with the memory that the one before left."""
    found: list[Turn] = []
    memory = AvailabilityMemory()
    for turn in range(TURNS):
        spot, on_demand = at(turn)
        seen = Observation(seen_at=NOW + timedelta(minutes=turn), spot=spot, on_demand=on_demand)
        snapshot = Snapshot(
            fleet=fleet(),
            seen=seen,
            spot_failures=tuple(failures),
            warned=warned or {},
            busy_shares={i.instance_id: 0.5 for i in on_demand.instances},
        )
        found.append((snapshot, memory))
        memory = decide(snapshot, memory)
    return found


def decide(snapshot: Snapshot, memory: AvailabilityMemory) -> AvailabilityMemory:
    """Decide one turn, of which AWS accepts all; answers the memory after it."""
    wanted = plan(assess(snapshot, memory))
    accepted = [Answer.DONE for _ in wanted.actions]
    return apply(wanted.memory, wanted.actions, accepted, snapshot.now)


def milliseconds(turns: Sequence[Turn]) -> float:
    """Processor time of one decision: the mean of an hour's turns, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for snapshot, memory in turns:
            decide(snapshot, memory)
        best = min(best, time.process_time() - began)
    return 1000 * best / len(turns)


def main() -> None:
    """Print the figures of three fleets."""
    cases = {
        "a whole fleet": whole(),
        "a lasting gap, 20 at risk": lasting_gap(),
        "spot comes back": coming_back(),
    }
    show(
        "Deciding for 1,000 instances",
        [
            Figure(name=name, value=milliseconds(situations), unit="ms", limit=LIMIT_MS)
            for name, situations in cases.items()
        ],
    )


if __name__ == "__main__":
    main()
