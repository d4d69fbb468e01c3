"""One fleet in two or three regions through random bad days, by the deployed turns of each.

Generated markets, and partitions, late reports, a home that is gone, two homes, an older release,
clocks apart. Two promises are judged every minute: the covers that regions hold are at most the
need and what moves, and as many instances serve as are needed, but where reports are late.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from multiprocessing.pool import Pool

from rich.console import Console

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.spread import EXPIRES, KEPT, Report, Share
from spotkeeper_lab.backtest.regions import RegionReplay, played, replays_of
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.fakes import FakeRegions, instant, seconds
from spotkeeper_lab.traces.market import Market, generate

REGIONS = ("us-west-2", "us-east-1", "eu-west-1")
HOURS, HOUR_S, MINUTE_S = 8.0, 3600.0, 60.0
# Faults begin after the fleet has settled, and the end of a run is calm.
SETTLED_S, CALM_S = 1800.0, 3600.0
APART_S = 90.0


class Trouble(StrEnum):
    """What can happen to the regions of a fleet."""

    PARTITION = "a region reaches no other"
    LATE = "a region's reports are four minutes old"
    HOME_GONE = "the home has no turns"
    TWO_HOMES = "another home writes a share"
    OLDER = "a region reports as an older release"
    APART = "a region's clock is wrong"


@dataclass(frozen=True, slots=True)
class Event:
    """A trouble of a region, from one instant to another."""

    trouble: Trouble
    region: str
    at_s: float
    end_s: float
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class RegionScenario:
    """A run: markets and faults by its seed."""

    seed: int
    need: int
    regions: tuple[str, ...]
    events: tuple[Event, ...]

    @property
    def end_s(self) -> float:
        return HOURS * HOUR_S


@dataclass(slots=True)
class RegionResult:
    """What broke, with when; `short_s` is for how long too few served, broken or excused."""

    scenario: RegionScenario
    broken: list[tuple[float, str]] = field(default_factory=list)
    short_s: float = 0.0


def draw(seed: int) -> RegionScenario:
    """Draw a scenario; the same seed draws the same."""
    rng = random.Random(f"regions/{seed}")
    regions = REGIONS[: rng.choice((2, 3))]
    latest_s = HOURS * HOUR_S - CALM_S
    events = []
    for trouble in rng.choices(list(Trouble), k=rng.randint(1, 4)):
        at_s = rng.uniform(SETTLED_S, latest_s - SETTLED_S)
        end_s = min(latest_s, at_s + rng.uniform(300.0, 5400.0))
        region = regions[0] if trouble is Trouble.HOME_GONE else rng.choice(regions[1:])
        events.append(Event(trouble, region, at_s, end_s, rng.uniform(-APART_S, APART_S)))
    return RegionScenario(seed, rng.choice((2, 3, 6)), regions, tuple(events))


class Troubled(FakeRegions):
    """A region's port in which the active events happen."""

    def __init__(self, port: FakeRegions, run: "RegionRun") -> None:
        super().__init__(port.here, port.tables, port.cut)
        self._run, self._reports = run, list[Report]()

    def report(self, fleet: Fleet, report: Report) -> None:
        """Write a report, as the active events have it."""
        if self._run.of(Trouble.OLDER, self.here):
            report = replace(report, release=0)
        for event in self._run.of(Trouble.APART, self.here):
            report = replace(report, at=instant(seconds(report.at) + event.value))
        self._reports = [*self._reports[-5:], report]
        if self._run.of(Trouble.LATE, self.here):
            report = self._reports[0]
        super().report(fleet, report)


class RegionRun:
    """One scenario as it is played."""

    def __init__(self, scenario: RegionScenario) -> None:
        self.scenario, self.at_s = scenario, 0.0
        pools = [f"{region}{zone}/g5.xlarge" for region in scenario.regions for zone in "ab"]
        # Two pools of a region hold the need when both are calm: units move often.
        self.market: Market = generate(scenario.seed, pools, HOURS, level=scenario.need // 2)
        world = World(target=scenario.need, price_ratio=1 / 3, notice_s=120.0, seed=scenario.seed)
        self.replays: dict[str, RegionReplay] = replays_of(self.market, world, {})
        for one in self.replays.values():
            one.replay.ports = replace(one.replay.ports, regions=Troubled(one.port, self))
            self.tables, self.cut = one.port.tables, one.port.cut

    def of(self, trouble: Trouble, region: str = "", after_s: float = 0.0) -> list[Event]:
        """The active events of a kind, and those that ended this short a time ago."""
        return [
            event
            for event in self.scenario.events
            if event.trouble is trouble
            and region in ("", event.region)
            and event.at_s <= self.at_s < event.end_s + after_s
        ]

    def play(self) -> RegionResult:
        """Play it to its end."""
        result, minute_s = RegionResult(self.scenario), SETTLED_S
        rivals = {e for e in self.scenario.events if e.trouble is Trouble.TWO_HOMES}
        home = self.replays[self.scenario.regions[0]]
        for at_s in played(self.replays, self.scenario.end_s):
            self.at_s = at_s
            self.cut.clear()
            self.cut.update(event.region for event in self.of(Trouble.PARTITION))
            if self.of(Trouble.HOME_GONE) and home.health_s <= self.at_s:
                home.health_s += MINUTE_S
            for event in [e for e in rivals if e.at_s <= self.at_s]:
                rivals.discard(event)
                self._rival(event)
            while minute_s <= self.at_s:
                minute_s += MINUTE_S
                self._judge(result)
        return result

    def _rival(self, event: Event) -> None:
        """Have another home write one share, and be silent from then on."""
        before = self.tables.get((event.region, "share"))
        if isinstance(before, Share):
            cover, term = max(1, before.cover), before.term + 50
            self.tables[event.region, "share"] = replace(
                before, term=term, cover=cover, ask=cover, written=instant(self.at_s), home="other"
            )

    def _judge(self, result: RegionResult) -> None:
        need, covers, moving = self.scenario.need, 0, 0
        for region, one in self.replays.items():
            share = self.tables.get((region, "share"))
            if not isinstance(share, Share):
                continue
            held = share.in_force(one.replay.fleet.bounds.spot_min, instant(self.at_s))
            covers += held.cover
            # One that its home cannot reach, or another home's, is covered twice until it expires.
            apart = self.of(Trouble.PARTITION, region, 2 * MINUTE_S) or share.home == "other"
            moving += held.cover if apart else 0
        rivals = self.of(Trouble.TWO_HOMES, after_s=(EXPIRES + 2 * KEPT).seconds)
        if covers > need + moving and not rivals:
            result.broken.append((self.at_s, f"covers {covers} of a need of {need}"))
        serving = sum(
            view.in_service_s is not None and view.ended_s is None
            for one in self.replays.values()
            for view in one.replay.cloud.instances()
        )
        if serving >= need:
            return
        result.short_s += MINUTE_S
        # What ended meanwhile still serves in a report that is late, and takes a cover over.
        if not self.of(Trouble.LATE, after_s=600.0):
            result.broken.append((self.at_s, f"{serving} of {need} serve"))


def run(seed: int) -> RegionResult:
    """Play the scenario of a seed."""
    return RegionRun(draw(seed)).play()


def story_of(result: RegionResult) -> Iterator[str]:
    """The faults of a run, and what broke first."""
    scenario = result.scenario
    yield f"seed {scenario.seed}: need {scenario.need} in {', '.join(scenario.regions)}"
    for event in scenario.events:
        span = f"{event.at_s / 60:.0f} to {event.end_s / 60:.0f} min"
        yield f"  {span}: {event.region}: {event.trouble} ({event.value:.0f})"
    for at_s, how in result.broken[:3]:
        yield f"  BROKEN at {at_s / 60:.1f} min: {how}"


def print_all(seeds: Iterable[int], pool: Pool, console: Console) -> bool:
    """Play seeds, and print which promises were broken; return whether any was."""
    results = list(pool.imap(run, seeds))
    broken = [result for result in results if result.broken]
    minutes, short = len(results) * HOURS * 60, sum(result.short_s for result in results) / 60
    console.print(
        f"{len(results)} seeds of fleets in several regions: {len(broken)} broken; too few served "
        f"in {short:.0f} of {minutes:.0f} minutes"
    )
    for result in broken:
        console.print("\n".join(story_of(result)), markup=False)
    return bool(broken)
