"""Spot markets: how many instances each pool can hold over time; read, written and generated.

A file is CSV, plain or gzip: ``time_s,pool,capacity`` and, where prices are known, ``price`` (spot
over on-demand). From ``time_s`` on, ``pool`` can hold ``capacity`` spot instances. Every pool has
a row at the common start. The last row has only a time and ends the market. Times are seconds from
the start of the market; a file that starts later is moved to 0.

What is generated has the statistics that recorded markets share (SkyPilot's V100 traces of 2023,
SkyNomad's H100 traces of 2025): a zone is obtainable 17-91 % of the time but some zone 99 %; calm
lasts hours with a heavy tail; losses cluster in spells, most within three minutes of another; a
zone often empties in a second; zones are weakly correlated.
"""

import difflib
import gzip
import math
import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from spotkeeper_lab.files import name_of, named_apart, read_rows, write_whole


class MarketError(ValueError):
    """A question that a market cannot answer, such as a window longer than the trace."""


_REGION = re.compile(r"[a-z]{2,}(?:-[a-z]+)+-\d+|[a-z]+-[a-z]+\d+(?=-[a-z]$|$)")
"""AWS (``us-east-1``, also within ``us-west-2-lax-1a``) and Google Cloud (``us-central1``)."""


def region_of(pool: str) -> str:
    """The region of a pool ("zone/type"); the zone itself where its name holds no region."""
    zone = pool.partition("/")[0]
    match = _REGION.match(zone)
    return match[0] if match else zone


@dataclass(frozen=True, slots=True)
class Change:
    """From ``at_s`` on, ``pool`` can hold ``capacity`` instances."""

    at_s: float
    pool: str
    capacity: int


@dataclass(frozen=True, slots=True)
class Steps:
    """One pool's capacity over time; ``prices`` are spot over on-demand, or absent."""

    times: tuple[float, ...]
    capacities: tuple[int, ...]
    prices: tuple[float, ...] | None = None

    def index(self, at_s: float) -> int:
        """The step that holds at a time; times before the first step count as the first."""
        return max(bisect_right(self.times, at_s) - 1, 0)

    def window(self, start_s: float, end_s: float) -> "Steps":
        """The steps between two times, moved so that ``start_s`` is 0."""
        first, stop = self.index(start_s), max(bisect_left(self.times, end_s), 1)
        times = (0.0, *(time - start_s for time in self.times[first + 1 : stop]))
        prices = None if self.prices is None else self.prices[first:stop]
        return Steps(times, self.capacities[first:stop], prices)


@dataclass(frozen=True, slots=True)
class Market:
    """Spot capacity per pool ("zone/type") from 0 to ``end_s``.

    ``steps`` has one entry per pool, in the order of ``pools``, each starting at 0.
    """

    pools: tuple[str, ...]
    end_s: float
    name: str
    steps: tuple[Steps, ...]

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the pools; one Auto Scaling group can use the pools of one region."""
        return tuple(dict.fromkeys(self.regions_of_pools))

    @property
    def regions_of_pools(self) -> tuple[str, ...]:
        """The region of each pool, in their order."""
        return tuple(map(region_of, self.pools))

    @property
    def largest_region(self) -> str:
        """The region that held the most, by time and capacity."""

        def held(region: str) -> float:
            return sum(
                (end_s - at_s) * capacity
                for one in self.within(region).steps
                for at_s, end_s, capacity in zip(
                    one.times, (*one.times[1:], self.end_s), one.capacities, strict=True
                )
            )

        return max(self.regions, key=held)

    def within(self, region: str) -> "Market":
        """The pools of one region; raises MarketError, naming the regions, where it has none."""
        kept = [n for n, pool in enumerate(self.pools) if region_of(pool) == region]
        if not kept:
            raise MarketError(
                f"market {self.name} has no pool in {region!r}; "
                f"its regions are {', '.join(self.regions)}"
            )
        pools, steps = tuple(self.pools[n] for n in kept), tuple(self.steps[n] for n in kept)
        return Market(pools, self.end_s, f"{self.name} ({region})", steps)

    def of(self, pool: str) -> Steps:
        """One pool's steps."""
        return self.steps[self.pools.index(pool)]

    def capacity(self, pool: str, at_s: float) -> int:
        """How many instances a pool can hold at a time; the last step holds for ever."""
        steps = self.of(pool)
        return steps.capacities[steps.index(at_s)]

    @property
    def has_prices(self) -> bool:
        """Whether the market says what spot cost."""
        return all(steps.prices is not None for steps in self.steps)

    def changes(self) -> list[Change]:
        """Every step before the end, in time order, pools in their order."""
        changes = [
            Change(at_s, pool, capacity)
            for pool, steps in zip(self.pools, self.steps, strict=True)
            for at_s, capacity in zip(steps.times, steps.capacities, strict=True)
            if at_s < self.end_s
        ]
        return sorted(changes, key=lambda change: change.at_s)

    def window(self, start_s: float, length_s: float) -> "Market":
        """The part from ``start_s`` on, moved to 0; raises MarketError when it does not fit."""
        if start_s < 0 or length_s <= 0 or start_s + length_s > self.end_s:
            raise MarketError(
                f"market {self.name} lasts {self.end_s / 3600:g} h; {length_s / 3600:g} h "
                f"from {start_s / 3600:g} h on does not fit: ask for a shorter window"
            )
        steps = tuple(one.window(start_s, start_s + length_s) for one in self.steps)
        return Market(self.pools, length_s, self.name, steps)


def market_of(
    name: str, end_s: float, capacities: Mapping[str, Iterable[tuple[float, int]]]
) -> Market:
    """A market from (time, capacity) steps per pool; equal neighbours are merged."""
    steps = []
    for pairs in map(list, capacities.values()):
        if not pairs or pairs[0][0] != 0.0 or any(b[0] <= a[0] for a, b in pairwise(pairs)):
            raise MarketError("the steps of a pool start at 0 and go up in time")
        kept = [pairs[0], *(b for a, b in pairwise(pairs) if a[1] != b[1])]
        steps.append(Steps(tuple(time for time, _ in kept), tuple(held for _, held in kept)))
    return Market(tuple(capacities), end_s, name, tuple(steps))


COLUMNS = ("time_s", "pool", "capacity")
PRICE_COLUMN = "price"
UNNAMEABLE = ',"\r\n'
DAY_S = 86_400.0
# Beyond this a file does not have seconds.
LONGEST_S = 400 * DAY_S


class MarketFileError(MarketError):
    def __init__(self, path: Path | str, line: int | None, problem: str) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


def write_market(market: Market, path: Path) -> None:
    """Write a market file (gzip when it is called .gz); replaces the file at once or not at all."""
    text = market_text(market).encode()
    try:
        write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    except OSError as error:
        raise MarketFileError(path, None, f"cannot be written: {error.strerror}") from error


def market_text(market: Market) -> str:
    """The market as a file has it; raises MarketError for one that could not be read again."""
    for pool in market.pools:
        if not pool or pool != pool.strip() or set(pool) & set(UNNAMEABLE):
            raise MarketError(
                f"the pool {pool!r} cannot stand in a file; name it without comma, quote, line "
                "end, or space around it"
            )
    if market.end_s > LONGEST_S:
        raise MarketError(f"a market of {market.end_s / DAY_S:,.0f} days is too long; 400 are most")
    lines = [",".join((*COLUMNS, PRICE_COLUMN) if market.has_prices else COLUMNS)]
    for change in market.changes():
        steps = market.of(change.pool)
        price = f",{steps.prices[steps.index(change.at_s)]:g}" if steps.prices else ""
        lines.append(f"{_number(change.at_s)},{change.pool},{change.capacity}{price}")
    lines.append(f"{_number(market.end_s)},," + ("," if market.has_prices else ""))
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def read_markets(paths: Sequence[Path]) -> list[Market]:
    """Read several market files, each called otherwise; one that is named twice is one."""
    return [replace(read_market(path), name=name) for path, name in named_apart(paths).items()]


def read_market(path: Path | str) -> Market:
    """Read a market file (`-`: standard input); raises MarketFileError naming file and line."""
    path = Path(path)
    line: int | None = None
    columns: list[str] = []
    pools: dict[str, list[tuple[float, int, float]]] = {}
    start = last = 0.0
    ended = False
    try:
        for number, row in read_rows(path, MarketFileError):
            line = number
            if not columns:
                columns = _header(row)
                continue
            if ended:
                raise ValueError("a row follows the end row (the one with only a time); remove it")
            time = _number_of("time_s", row[0], "a number of seconds")
            start, last = (start, last) if pools else (time, time)
            if time < last:
                raise ValueError(f"time_s goes back from {last:g} to {time:g}; sort the rows")
            last = time
            if not any(row[1:]):
                if not pools or time <= start:
                    raise ValueError("the end row is not after the start; the market has no length")
                ended = True
                continue
            if len(row) != len(columns):
                raise ValueError(f"{len(row)} fields where the header has {len(columns)}")
            fields = dict(zip(columns, row, strict=True))
            if not (pool := fields["pool"]):
                raise ValueError("no pool in a row with a capacity")
            known = pools.setdefault(pool, [])
            if not known and time != start:
                raise ValueError(
                    f"pool {pool!r} starts at {time:g} s but the market at {start:g} s; "
                    "give every pool a row at the common start (capacity 0 where none is known)"
                )
            if known and known[-1][0] == time:
                raise ValueError(f"pool {pool!r} has two rows at {time:g} s; keep one")
            capacity = _number_of("capacity", fields["capacity"], "a whole number")
            if not capacity.is_integer():
                raise ValueError(f"capacity is {fields['capacity']!r}, not a whole number")
            price = _number_of(PRICE_COLUMN, fields.get(PRICE_COLUMN, "0"), "spot over on-demand")
            known.append((time, int(capacity), price))
        if not columns:
            raise ValueError("is empty; a market file has a header and rows")
        if not pools:
            raise ValueError("no rows after the header; a market has at least one pool")
        if not ended:
            raise ValueError("no end row; the last row must hold only the time the market ends")
        if last - start > LONGEST_S:
            days = f"{(last - start) / DAY_S:,.0f} days"
            raise ValueError(f"the market lasts {days}, more than 400; give times in seconds")
    except MarketFileError:
        raise
    except ValueError as error:
        raise MarketFileError(path, line, str(error)) from None
    steps = []
    for rows in pools.values():
        times, capacities, prices = zip(*rows, strict=True)
        priced = prices if PRICE_COLUMN in columns else None
        steps.append(Steps(tuple(time - start for time in times), capacities, priced))
    return Market(tuple(pools), last - start, name_of(path), tuple(steps))


def _header(row: list[str]) -> list[str]:
    known = (*COLUMNS, PRICE_COLUMN)
    for column in row:
        if column not in known:
            nearest = difflib.get_close_matches(column, known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            expected = f"{','.join(COLUMNS)}[,{PRICE_COLUMN}]"
            raise ValueError(
                f"unknown column {column[:40]!r} in the header{hint} (expected {expected})"
            )
    if missing := [column for column in COLUMNS if column not in row]:
        raise ValueError(f"the header lacks the column {missing[0]!r}")
    if len(set(row)) != len(row):
        raise ValueError("the header names a column twice")
    if row[0] != "time_s":
        raise ValueError("the first column must be 'time_s'")
    return row


def _number_of(name: str, text: str, kind: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:40]!r}, not {kind}") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {text[:40]!r}; it must be finite and not negative")
    return value


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

    The same arguments give the same market.
    """
    end_s = hours * 3600.0
    rng, shocks = random.Random(f"{seed}/shocks"), list[float]()
    at_s = rng.expovariate(1 / SHOCK_EVERY_S)
    while at_s < end_s:
        shocks.append(at_s)
        at_s += rng.expovariate(1 / SHOCK_EVERY_S)
    capacities = {}
    for rank, pool in enumerate(random.Random(f"{seed}/rank").sample(list(pools), len(pools))):
        # How much of the time the zone of this rank has capacity.
        step = rank / (len(pools) - 1) if len(pools) > 1 else 0.0
        share = BEST_SHARE + (WORST_SHARE - BEST_SHARE) * step
        capacities[pool] = _zone(random.Random(f"{seed}/{pool}"), share, shocks, end_s, level)
    return market_of(f"generated-{seed}", end_s, {pool: capacities[pool] for pool in pools})


def _zone(
    rng: random.Random, share: float, shocks: Sequence[float], end_s: float, level: int
) -> list[tuple[float, int]]:
    """One zone's steps: calm and spells in turn, starting somewhere in one of them."""
    steps: dict[float, int] = {}
    at_s, calm = 0.0, rng.random() < share
    dry = (1 - share) / (share - FALSE_DAWN_SHARE * share)
    while at_s < end_s:
        # The whole region is tight in the busy half of the day (above 1), and not in the other.
        tide = math.exp(DAILY_SWING * math.sin(2 * math.pi * at_s / DAY_S))
        if calm:
            # It ends by itself, or with a regional squeeze.
            steps[at_s] = level
            lasts_s = min(SHORTEST_CALM_S * rng.paretovariate(CALM_TAIL), LONGEST_CALM_S)
            own_s = at_s + lasts_s / tide
            hits = (hit for hit in shocks if at_s < hit < own_s and rng.random() < SHOCK_REACH)
            at_s = float(round(next(hits, own_s)))
        else:
            # As long as the share asks for: lognormal, at least ten minutes.
            length_s = MEAN_CALM_S * dry * rng.lognormvariate(-0.5, 1.0)
            until_s = at_s + round(max(600.0, length_s) * tide)
            steps |= _fall(rng, at_s, level) if at_s else {0.0: 0}
            steps |= _false_dawns(rng, at_s + 180.0, until_s, level)
            at_s = until_s
        calm = not calm
    return sorted((at, capacity) for at, capacity in steps.items() if at < end_s)


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
