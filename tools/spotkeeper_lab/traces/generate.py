"""A spot market from a seed, with the statistics of recorded GPU markets.

What recorded markets share (SkyPilot's V100 traces of 2023, SkyNomad's H100 traces of 2025):
a zone is obtainable 17-91 % of the time but some zone 99 %; calm lasts hours with a heavy tail;
losses cluster in spells, most within three minutes of another; a zone often empties in a second;
zones are weakly correlated.
"""

import math
import random
from collections.abc import Iterator, Sequence

from spotkeeper_lab.traces.market import Market, MarketError, market_of

ZONES = ("us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge", "us-east-1c/g5.xlarge")

BEST_SHARE, WORST_SHARE = 0.95, 0.60
"""Share of time with capacity, from the best zone to the worst; three such zones leave 1 % dry."""
SHORTEST_CALM_S = 2 * 3600.0
"""Calm is Pareto from here on: with the tail below, 4.8 h on average and sometimes days."""
CALM_TAIL = 1.6
LONGEST_CALM_S = 48 * 3600.0
MEAN_CALM_S = (
    SHORTEST_CALM_S
    * (CALM_TAIL - (SHORTEST_CALM_S / LONGEST_CALM_S) ** (CALM_TAIL - 1))
    / (CALM_TAIL - 1)
)
FALSE_DAWN_SHARE = 0.15
"""Share of a spell in which a little capacity returns and goes again."""
SHOCK_EVERY_S = 12 * 3600.0
SHOCK_REACH = 0.6
"""A regional squeeze ends a zone's calm with this probability; it correlates zones a little."""
DAILY_SWING = 0.6
"""Log amplitude of the daily cycle of spells, the same for all zones."""
SUDDEN_SHARE = 0.6
"""Share of calms that end in one second; the others empty over three minutes."""


def generate(
    seed: int, pools: Sequence[str] = ZONES, hours: float = 24.0, level: int = 8
) -> Market:
    """A market of ``hours`` whose pools hold ``level`` instances each when calm.

    The same arguments give the same market. Raises MarketError for a market without extent.
    """
    if not pools or hours <= 0 or level < 1:
        raise MarketError(
            "a market needs a pool, a length of more than 0 h and a level of 1 or more"
        )
    end_s = hours * 3600.0
    shocks = list(_shocks(random.Random(f"{seed}/shocks"), end_s))
    capacities = {
        pool: _zone(random.Random(f"{seed}/{pool}"), _share(rank, len(pools)), shocks, end_s, level)
        for rank, pool in enumerate(_shuffled(seed, pools))
    }
    return market_of(f"generated-{seed}", end_s, {pool: capacities[pool] for pool in pools})


def _shuffled(seed: int, pools: Sequence[str]) -> list[str]:
    return random.Random(f"{seed}/rank").sample(list(pools), len(pools))


def _share(rank: int, count: int) -> float:
    """How much of the time the zone of a rank has capacity."""
    step = rank / (count - 1) if count > 1 else 0.0
    return BEST_SHARE + (WORST_SHARE - BEST_SHARE) * step


def _shocks(rng: random.Random, end_s: float) -> Iterator[float]:
    at_s = rng.expovariate(1 / SHOCK_EVERY_S)
    while at_s < end_s:
        yield at_s
        at_s += rng.expovariate(1 / SHOCK_EVERY_S)


def _zone(
    rng: random.Random, share: float, shocks: Sequence[float], end_s: float, level: int
) -> list[tuple[float, int]]:
    """One zone's steps: calm and spells in turn, starting somewhere in one of them."""
    steps: dict[float, int] = {}
    at_s, calm = 0.0, rng.random() < share
    while at_s < end_s:
        if calm:
            steps[at_s] = level
            at_s = _calm_end(rng, at_s, shocks)
        else:
            until_s = at_s + round(_spell_s(rng, share) * _tide(at_s))
            steps |= _fall(rng, at_s, level) if at_s else {0.0: 0}
            steps |= _false_dawns(rng, at_s + 180.0, until_s, level)
            at_s = until_s
        calm = not calm
    return sorted((at, capacity) for at, capacity in steps.items() if at < end_s)


def _tide(at_s: float) -> float:
    """How tight the whole region is: above 1 in the busy half of the day, below 1 in the other."""
    return math.exp(DAILY_SWING * math.sin(2 * math.pi * at_s / 86400.0))


def _calm_end(rng: random.Random, at_s: float, shocks: Sequence[float]) -> float:
    """When the calm that begins now ends: by itself, or with a regional squeeze."""
    own_s = at_s + min(SHORTEST_CALM_S * rng.paretovariate(CALM_TAIL), LONGEST_CALM_S) / _tide(at_s)
    hits = (shock for shock in shocks if at_s < shock < own_s and rng.random() < SHOCK_REACH)
    return float(round(next(hits, own_s)))


def _spell_s(rng: random.Random, share: float) -> float:
    """A spell as long as the zone's share asks for: lognormal, at least ten minutes."""
    dry = (1 - share) / (share - FALSE_DAWN_SHARE * share)
    spread = 1.0
    length_s: float = MEAN_CALM_S * dry * rng.lognormvariate(-(spread**2) / 2, spread)
    return max(600.0, length_s)


def _fall(rng: random.Random, at_s: float, level: int) -> dict[float, int]:
    """From full to nothing: at once, or in a few losses within three minutes."""
    if rng.random() < SUDDEN_SHARE or level == 1:
        return {at_s: 0}
    losses = sorted(rng.sample(range(1, 180), min(level, 4) - 1))
    parts = [level * (len(losses) - index) // (len(losses) + 1) for index in range(len(losses))]
    first = level * len(losses) // (len(losses) + 1)
    later = {at_s + after: part for after, part in zip(losses[:-1], parts[1:], strict=False)}
    return {at_s: first} | later | {at_s + losses[-1]: 0}


def _false_dawns(rng: random.Random, start_s: float, end_s: float, level: int) -> dict[float, int]:
    """Some capacity for some minutes, then none for longer, until the spell ends."""
    steps: dict[float, int] = {}
    at_s = start_s
    while True:
        dry_s, wet_s = rng.expovariate(1 / 5100.0), max(60.0, rng.expovariate(1 / 900.0))
        at_s = float(math.ceil(at_s + dry_s))
        if at_s + wet_s >= end_s:
            return steps
        steps[at_s] = rng.randint(1, max(1, level // 2))
        at_s = float(math.ceil(at_s + wet_s))
        steps[at_s] = 0
