"""One fleet in two or three regions through random bad days, by the deployed turns of each.

Generated markets, and partitions, regions lost, late reports, shares not written, a home that is
gone, two homes, an older release, clocks apart. Judged every minute: the covers that regions hold
are the need and at most what moves beside it, as many instances serve as are needed, and nothing
runs on demand for long while spot is free.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from multiprocessing.pool import Pool

from rich.console import Console

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.spread import EXPIRES, KEPT, STALE, Report, Share
from spotkeeper.ports import Unavailable
from spotkeeper_lab.backtest.regions import RegionReplay, played, replays_of
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.cloud.values import SPOT_DRY, Purchase
from spotkeeper_lab.fakes import FakeRegions, instant, seconds
from spotkeeper_lab.traces.market import Market, generate

REGIONS = ("us-west-2", "us-east-1", "eu-west-1")
HOURS, HOUR_S, MINUTE_S = 8.0, 3600.0, 60.0
# A fleet serves from the first on, then faults begin; the end of a run is calm.
STARTED_S, SETTLED_S, CALM_S = 600.0, 1800.0, 3600.0
APART_S, UNWRITTEN = 90.0, 0.5
# A lost region is covered once its report is stale and on-demand started; free spot is found.
COVERED_S, FOUND_S = STALE.seconds + 5 * MINUTE_S, 900.0


class Trouble(StrEnum):
    """What can happen to the regions of a fleet."""

    PARTITION = "a region reaches no other"
    LOST = "a region reaches no other, and has no instances"
    UNWRITTEN = "every other share is not written"
    LATE = "a region's reports are four minutes old"
    HOME_GONE = "the home has no turns"
    TWO_HOMES = "another home writes a share"
    OLDER = "a region reports as an older release, to which launching is serving"
    APART = "a region's clock is wrong"


APART = (Trouble.PARTITION, Trouble.LOST, Trouble.LATE)


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


@dataclass(slots=True)
class RegionResult:
    """What broke, with when."""

    scenario: RegionScenario
    broken: list[tuple[float, str]] = field(default_factory=list)


def draw(seed: int) -> RegionScenario:
    """Draw a scenario; the same seed draws the same."""
    rng = random.Random(f"regions/{seed}")
    regions = REGIONS[: rng.choice((2, 3))]
    latest_s = HOURS * HOUR_S - CALM_S
    events = []
    for trouble in rng.choices(list(Trouble), k=rng.randint(2, 5)):
        at_s = rng.uniform(SETTLED_S, latest_s - SETTLED_S)
        end_s = min(latest_s, at_s + rng.uniform(300.0, 7200.0))
        region = regions[0] if trouble is Trouble.HOME_GONE else rng.choice(regions[1:])
        events.append(Event(trouble, region, at_s, end_s, rng.uniform(-APART_S, APART_S)))
    return RegionScenario(seed, rng.choice((2, 3, 6)), regions, tuple(events))


class Troubled(FakeRegions):
    """A region's port in which the active events happen."""

    def __init__(self, port: FakeRegions, run: "RegionRun") -> None:
        super().__init__(port.here, port.tables, port.cut)
        self._run, self._reports = run, list[Report]()

    def write(self, fleet: Fleet, region: str, said: Share | Report, seen: int = 0) -> bool:
        """Write a share, unless it is not written now, or a report as the active events have it."""
        if isinstance(said, Report):
            said = self._reported(said)
        elif self._run.of(Trouble.UNWRITTEN) and self._run.chance.random() < UNWRITTEN:
            raise Unavailable(f"the table of {region} takes nothing")
        return super().write(fleet, region, said, seen)

    def _reported(self, report: Report) -> Report:
        if self._run.of(Trouble.OLDER, region=self.here):
            serving = report.serving + report.launching
            report = replace(report, release=0, serving=serving, launching=0)
        for event in self._run.of(Trouble.APART, region=self.here):
            report = replace(report, at=instant(seconds(report.at) + event.value))
        self._reports = [*self._reports[-5:], report]
        return self._reports[0] if self._run.of(Trouble.LATE, region=self.here) else report


class RegionRun:
    """One scenario as it is played."""

    def __init__(self, scenario: RegionScenario) -> None:
        self.scenario, self.at_s, self.short_s, self.dear_s = scenario, 0.0, 0.0, 0.0
        self.chance = random.Random(f"shares/{scenario.seed}")
        pools = [f"{region}{zone}/g5.xlarge" for region in scenario.regions for zone in "ab"]
        # Two pools of a region hold the need when both are calm: units move often.
        self.market: Market = generate(scenario.seed, pools, HOURS, level=scenario.need // 2)
        world = World(target=scenario.need, price_ratio=1 / 3, notice_s=120.0, seed=scenario.seed)
        self.replays: dict[str, RegionReplay] = replays_of(self.market, world, {})
        for one in self.replays.values():
            one.replay.ports = replace(one.replay.ports, regions=Troubled(one.port, self))
            self.tables, self.cut = one.port.tables, one.port.cut

    def of(self, *troubles: Trouble, region: str = "", after_s: float = 0.0) -> list[Event]:
        """The active events of some kinds, and those that ended this short a time ago."""
        return [
            event
            for event in self.scenario.events
            if event.trouble in troubles
            and region in ("", event.region)
            and event.at_s <= self.at_s < event.end_s + after_s
        ]

    def play(self) -> RegionResult:
        """Play it to its end."""
        result, minute_s = RegionResult(self.scenario), STARTED_S
        begin = list(self.scenario.events)
        home = self.replays[self.scenario.regions[0]]
        for at_s in played(self.replays, HOURS * HOUR_S):
            self.at_s = at_s
            self.cut.clear()
            self.cut.update(e.region for e in self.of(Trouble.PARTITION, Trouble.LOST))
            if self.of(Trouble.HOME_GONE) and home.health_s <= self.at_s:
                home.health_s += MINUTE_S
            for event in [e for e in begin if e.at_s <= self.at_s]:
                begin.remove(event)
                if event.trouble is Trouble.TWO_HOMES:
                    self._rival(event)
                if event.trouble is Trouble.LOST:
                    self._lose(event)
            while minute_s <= self.at_s:
                minute_s += MINUTE_S
                result.broken += ((self.at_s, how) for how in self._wrong())
        return result

    def _rival(self, event: Event) -> None:
        """Have another home write one share, and be silent from then on."""
        before = self.tables.get((event.region, "share"))
        if isinstance(before, Share):
            cover, term = max(1, before.cover), before.term + 50
            self.tables[event.region, "share"] = replace(
                before, term=term, cover=cover, ask=cover, written=instant(self.at_s), home="other"
            )

    def _lose(self, event: Event) -> None:
        """Take all that a region has, and refuse it more."""
        cloud = self.replays[event.region].replay.cloud
        for group in cloud.groups():
            cloud.fail_launches(group, event.at_s, event.end_s, SPOT_DRY)
        for view in cloud.instances():
            cloud.kill(view.instance_id)

    def _wrong(self) -> Iterator[str]:
        """What is not as promised now."""
        need, covers, moving = self.scenario.need, 0, 0
        unwritten = self.of(Trouble.UNWRITTEN, Trouble.HOME_GONE, after_s=2 * MINUTE_S)
        for region, one in self.replays.items():
            share = self.tables.get((region, "share"))
            if not isinstance(share, Share):
                continue
            held = share.in_force(one.replay.fleet.bounds.spot_min, instant(self.at_s))
            covers += held.cover
            # Where its home writes nothing, or another one does, a cover is held until it expires.
            apart = self.of(*APART, region=region, after_s=2 * MINUTE_S) or share.home == "other"
            moving += held.cover if apart or unwritten else 0
        rivals = self.of(Trouble.TWO_HOMES, after_s=(EXPIRES + 2 * KEPT).seconds)
        if not need <= covers <= need + moving and not (rivals and covers > need):
            yield f"covers {covers} of a need of {need}"
        views = [v for one in self.replays.values() for v in one.replay.cloud.instances()]
        serving = sum(view.in_service_s is not None for view in views)
        # What ended meanwhile still serves in a report that is late, and takes a cover over.
        late_s = 3 * MINUTE_S * bool(self.of(Trouble.LATE, after_s=600.0))
        self.short_s = (self.short_s + MINUTE_S) * (serving < need)
        # What is lost while its home is gone waits for either.
        covered = all(self.at_s - e.at_s >= COVERED_S for e in self.of(Trouble.LOST)) and not (
            self.of(Trouble.LOST, after_s=COVERED_S)
            and self.of(Trouble.HOME_GONE, after_s=COVERED_S)
        )
        if self.short_s > late_s and covered:
            yield f"{serving} of {need} serve"
        on_demand = any(view.purchase is Purchase.ON_DEMAND for view in views)
        held_in = Counter(view.pool for view in views if view.purchase is Purchase.SPOT)
        free = any(held_in[p] < self.market.capacity(p, self.at_s) for p in self.market.pools)
        # Without its home's turns a region adopts, and waits for logs, which are not there.
        adopted = self.of(Trouble.HOME_GONE, after_s=HOURS * HOUR_S)
        calm = not adopted and not self.of(*Trouble, after_s=FOUND_S)
        self.dear_s = (self.dear_s + MINUTE_S) * (on_demand and free and calm)
        if self.dear_s > FOUND_S:
            yield "spot is free, and on-demand runs"


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
    console.print(f"{len(results)} seeds of fleets in several regions: {len(broken)} broken")
    for result in broken:
        console.print("\n".join(story_of(result)), markup=False)
    return bool(broken)
