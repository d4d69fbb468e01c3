"""Markets that no rule was chosen on: three kinds, each with parameters drawn from its seed."""

import random
from collections.abc import Callable, Sequence

from spotkeeper_lab.traces.generate import generate
from spotkeeper_lab.traces.market import Market, market_of

HOURS = 240.0
END_S = HOURS * 3600.0

type Steps = list[tuple[float, int]]
"""From each time on, so much capacity."""


def made_markets(seeds: Sequence[int] = range(6)) -> list[Market]:
    """One market of each kind for each seed."""
    return [kind(seed) for kind in (in_spells, by_steps, on_and_off) for seed in seeds]


def in_spells(seed: int) -> Market:
    """Calm and spells, as recorded markets have them, with other zones and levels."""
    draw = random.Random(f"spells/{seed}")
    zones, level = draw.choice((1, 2, 3, 4, 5, 8)), draw.choice((2, 3, 5, 8, 12, 20))
    return generate(7_000 + seed, _pools(zones), HOURS, level)


def by_steps(seed: int) -> Market:
    """Capacity that walks up and down by one or a few, pauses, and now and then is gone."""
    draw = random.Random(f"walks/{seed}")
    zones, level = draw.choice((1, 2, 3, 6)), draw.choice((4, 8, 16, 24))
    every_s, jump = draw.choice((300, 900, 1800, 3600)), draw.choice((1, 1, 2, 4))
    crash, pause = draw.uniform(0.0, 0.05), draw.uniform(0.3, 0.9)

    def steps() -> Steps:
        mean, found, at_s, still = (
            level * draw.uniform(0.4, 1.2),
            list[tuple[float, int]](),
            0.0,
            False,
        )
        held = round(mean)
        while at_s < END_S:
            found.append((at_s, held))
            still = draw.random() < pause if draw.random() < 1 / 10 else still
            if not still:
                up = draw.random() < 1 / 2 + 0.3 * (mean - held) / level
                held += draw.randint(1, jump) * (1 if up else -1)
                held = 0 if draw.random() < crash else max(0, min(2 * level, held))
            at_s += max(30.0, float(round(draw.expovariate(1 / every_s))))
        return found

    return _market(f"walks-{seed}", zones, steps)


def on_and_off(seed: int) -> Market:
    """Zones that hold a few or none, for stretches that are short or long (Weibull)."""
    draw = random.Random(f"small/{seed}")
    zones, level = draw.choice((3, 4, 6, 9)), draw.choice((1, 2, 4, 16))
    shape, on_s = draw.uniform(0.4, 1.0), draw.choice((2, 6, 16)) * 3600.0
    share = draw.uniform(0.4, 0.95)

    def steps() -> Steps:
        mine = min(0.99, max(0.1, share + draw.uniform(-0.3, 0.3)))
        length_s = on_s * draw.uniform(0.5, 2.0)
        found, at_s, on = list[tuple[float, int]](), 0.0, draw.random() < mine
        while at_s < END_S:
            found.append((at_s, level if on else 0))
            scale_s = length_s if on else length_s * (1 - mine) / mine
            at_s += max(60.0, float(round(draw.weibullvariate(scale_s, shape))))
            on = not on
        return found

    return _market(f"small-{seed}", zones, steps)


def _market(name: str, zones: int, steps: Callable[[], Steps]) -> Market:
    return market_of(name, END_S, {pool: steps() for pool in _pools(zones)})


def _pools(zones: int) -> list[str]:
    return [f"zone-{zone}/g5.xlarge" for zone in range(zones)]
