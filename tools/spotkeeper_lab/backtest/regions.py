"""One fleet in several regions: the deployed turns of every region together, and simpler ways.

Each region has a cloud of its own, with its pools of the market, and turns at seconds of its own.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper.turns.check_health import check_health
from spotkeeper_lab.backtest.deployed import TURN_EVERY_S, Replay, done, fleet_of, lives, replay_of
from spotkeeper_lab.backtest.world import PaidLife, RunResult, Settings, World, account
from spotkeeper_lab.fakes import NONCE, FakeRegions, FakeStates, instant, seconds
from spotkeeper_lab.traces.market import Market

# Each stack's turns start at a second of its own, and one controller's soon after the other's.
STACK_S, CONTROLLER_S = 55.0, 4.0


@dataclass(slots=True, kw_only=True)
class MarketPrices:
    """The price port over a market: the lowest price of its pools."""

    window: Market
    world: World

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        prices = [self.world.prices(one)[one.index(seconds(now))] for one in self.window.steps]
        return PriceBook(spot={"any": PriceSeries(at=(now,), usd=(min(prices),))})


@dataclass(slots=True, kw_only=True)
class RegionReplay:
    """A region's replay, and its health turns, once a minute at a second of its own."""

    replay: Replay
    health_s: float
    port: FakeRegions

    def next_s(self) -> float:
        return min(self.health_s, self.replay.next_s())

    def step(self, at_s: float) -> None:
        self.replay.step(at_s)
        if at_s >= self.health_s:
            self.health_s += TURN_EVERY_S
            done(check_health([self.replay.fleet], self.replay.ports, instant(at_s)))


def fleets_of(
    world: World, settings: Settings, regions: Sequence[str], home: str
) -> dict[str, Fleet]:
    """The fleet of each region; the home's needs the target, by its bounds."""
    fleet, others = fleet_of(world, settings), [r for r in regions if r != home]
    at_home = replace(
        fleet,
        regions=",".join(f"arn:aws:dynamodb:{r}:123456789012:table/spotkeeper" for r in others),
        bounds=replace(fleet.bounds, spot_min=world.target),
    )
    return {home: at_home} | {r: replace(fleet, home=home) for r in others}


def replays_of(
    window: Market, world: World, settings: Settings, home: str = ""
) -> dict[str, RegionReplay]:
    """The replay of every region over a window; `home` is by default the first region."""
    home, tables, cut = home or window.regions[0], dict[tuple[str, str], object](), set[str]()
    chance, replays = random.Random(f"regions/{world.seed}"), dict[str, RegionReplay]()
    for region, fleet in fleets_of(world, settings, window.regions, home).items():
        own = window.within(region)
        wanted, states = world.target if region == home else 0, FakeStates(remember=0)
        # What is wanted is no growth: a gap at the start is none that may still fill.
        states.begin(fleet.name, AvailabilityMemory(need=wanted, seen_at=instant(0)))
        replay = replay_of(own, world, settings, states=states, desired=wanted)
        stack_s = chance.uniform(0.0, STACK_S)
        second, health = (stack_s + chance.uniform(0.0, CONTROLLER_S) for _ in range(2))
        replay.fleet, replay.jitter = fleet, partial(float, second)
        port = FakeRegions(region, tables, cut)
        replay.ports = replace(
            replay.ports,
            regions=port,
            prices=MarketPrices(window=own, world=world),
            owner=NONCE,
        )
        health_s = health if region != home else 0.0
        replays[region] = RegionReplay(replay=replay, health_s=health_s, port=port)
    return replays


def played(replays: Mapping[str, RegionReplay], end_s: float) -> Iterator[float]:
    """Let all regions run up to an instant; yields each step's instant before it happens."""
    while (at_s := min(one.next_s() for one in replays.values())) < end_s:
        yield at_s
        for one in replays.values():
            if one.next_s() <= at_s:
                one.step(at_s)


def run(window: Market, world: World, settings: Settings) -> RunResult:
    """Try the deployed turns of every region; the home has by default the most spot at first."""
    own = {name: value for name, value in settings.items() if name != "home"}
    most = max(window.regions, key=lambda r: sum(s.capacities[0] for s in window.within(r).steps))
    replays = replays_of(window, world, own, str(settings.get("home", "")) or most)
    for _ in played(replays, window.end_s):
        pass
    return account(ends(replays, window), window, world)


def ends(replays: Mapping[str, RegionReplay], window: Market) -> list[PaidLife]:
    """What each region's cloud launched until the window ended."""
    found = list[PaidLife]()
    for one in replays.values():
        one.replay.run(window.end_s)
        found += lives(one.replay.cloud, window.end_s)
    return found


def even_split(window: Market, world: World, settings: Settings) -> RunResult:
    """The deployed policy in each region alone, with an equal part of the target."""
    found, regions = list[PaidLife](), window.regions
    for number, region in enumerate(regions):
        part = world.target // len(regions) + (number < world.target % len(regions))
        if part:
            replay = replay_of(window.within(region), replace(world, target=part), settings)
            replay.run(window.end_s)
            found += lives(replay.cloud, window.end_s)
    return account(found, window, world)
