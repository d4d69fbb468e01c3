"""A scenario drawn by its seed."""

import random

from spotkeeper_lab.chaos.story.scenario import (
    FAULTS_S,
    LENGTHS_S,
    SPOT_MAX,
    TOGETHER,
    WARM_UP_S,
    Fault,
    Kind,
    Scenario,
    StartState,
)


def draw(seed: int) -> Scenario:
    """Draw a run."""
    rng = random.Random(f"chaos/{seed}")
    sized = rng.choice([True] * 5 + [False])
    queue_known = rng.choice([True, True, False])
    return Scenario(
        seed=seed,
        start=_start(rng, sized=sized),
        loads=_loads(rng) if sized else ((0.0, round(rng.uniform(0.5, 2.0), 1)),),
        faults=tuple(sorted(_faults(rng), key=lambda fault: fault.at_s)),
        objective=rng.choice([True, False]),
        queue_known=queue_known,
        spot_min=rng.choice([0, 1, 2]) if queue_known else rng.choice([1, 2]),
        group_maximum=SPOT_MAX + rng.choice([0, 0, 3]),
        onprem_workers=rng.choice([0, 0, 0, 2]),
        warm_pool=rng.choice([0, 0, 4]),
        early_replacement=rng.choice([True] * 4 + [False]),
        cold_start_s=rng.choice([60.0, 180.0, 240.0]),
        launch_hook_s=rng.choice([None, 300.0, 300.0]),
        hook_continues=rng.choice([True, True, False]),
        event_delay_s=rng.choice([2.0, 20.0, 90.0]),
        event_lost=rng.choice([0.0, 0.0, 0.3, 1.0]),
        event_twice=rng.choice([0.0, 0.3]),
        ghost_s=rng.choice([30.0, 90.0, 150.0]),
        sized=sized,
        suspend_after_s=rng.choice([None, 900.0]),
    )


def _start(rng: random.Random, *, sized: bool) -> StartState:
    """Where nobody sizes the spot group, it begins as its operator left it."""
    drawn = rng.choice([StartState.SERVING] * 3 + [StartState.EMPTY, StartState.ON_DEMAND])
    return drawn if sized else StartState.SERVING


def _loads(rng: random.Random) -> tuple[tuple[float, float], ...]:
    changes = [WARM_UP_S + rng.uniform(0.0, FAULTS_S) for _ in range(rng.choice([0, 1, 2]))]
    least, most = rng.choice([(0.5, 7.0), (0.5, 7.0), (0.02, 0.3)])
    return tuple((at_s, round(rng.uniform(least, most), 2)) for at_s in sorted([0.0, *changes]))


def _faults(rng: random.Random) -> list[Fault]:
    kinds = rng.choices(list(Kind), k=rng.randint(2, 6))
    found = [_fault(rng, kind, rng.uniform(0.0, FAULTS_S)) for kind in kinds]
    if rng.choice([True, False]):
        together_s = rng.uniform(0.0, FAULTS_S)
        pair = rng.choice(TOGETHER)
        found += [_fault(rng, kind, together_s + rng.uniform(0.0, 60.0)) for kind in pair]
    return found


def _fault(rng: random.Random, kind: Kind, after_s: float) -> Fault:
    at_s = round(WARM_UP_S + min(after_s, FAULTS_S), 1)
    length_s = round(max(60.0, min(rng.choice(LENGTHS_S), WARM_UP_S + FAULTS_S - at_s)), 1)
    return Fault(kind=kind, at_s=at_s, length_s=length_s, value=round(rng.random(), 3))
