"""Try policies over windows of markets and sum up what each one served and cost."""

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context

import numpy as np

from spotkeeper_lab.backtest.accounting import RunResult
from spotkeeper_lab.backtest.bounds import limit
from spotkeeper_lab.backtest.policies import POLICIES, Policy
from spotkeeper_lab.backtest.world import Settings, World
from spotkeeper_lab.traces.market import Market, MarketError

type Progress = Callable[[int, int, str], None]
"""Called with windows done, windows in all and a label."""

SEED_STRIDE = 1_000_003
"""Keeps the seeds of windows apart from those of neighbouring worlds."""

COLUMNS = (
    "market",
    "regions",
    "policy",
    "windows",
    "served_share",
    "served_share_min",
    "capacity_share",
    "cost",
    "cost_sd",
    "spot_launches",
    "on_demand_launches",
    "losses",
)
"""What a row of the JSON file has beside its settings."""
# Fewer runs take less time than the start of processes.
FEW_RUNS = 4
# 400 days in steps of half a minute.
MOST_TICKS = 1_152_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One policy on one market in one world.

    Shares and costs are means over the windows, ``cost`` of all on demand; launches and losses are
    totals. ``sample`` is the most eventful window and what the policy did in it.
    """

    market: str
    regions: tuple[str, ...]
    policy: str
    windows: int
    served_share: float
    served_share_min: float
    capacity_share: float
    cost: float
    cost_sd: float
    spot_launches: int
    on_demand_launches: int
    losses: int
    world: World
    hours: float
    settings: Settings
    sample: tuple[Market, RunResult]

    def as_json(self) -> dict[str, object]:
        """The row as the JSON file has it; the settings include the world's."""
        row: dict[str, object] = {name: getattr(self, name) for name in COLUMNS}
        return row | {
            "settings": {**asdict(self.world), "window_hours": self.hours, **self.settings}
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """``count`` windows of ``hours`` at random offsets, or (count None) the whole market."""

    count: int | None = None
    hours: float = 24.0
    seed: int = 0

    def of(self, market: Market, tick_s: float) -> list[Market]:
        """The windows of a market, on whole ticks; raises MarketError where they do not fit."""
        if self.count is None:
            return [market]
        if self.count < 1:
            raise MarketError(f"{self.count} windows are none; ask for 1 or more")
        if not 0 < self.hours < math.inf:
            raise MarketError(f"a window of {self.hours:g} h has no length; ask for more than 0 h")
        length_s = self.hours * 3600.0
        market.window(0.0, length_s)
        latest = int((market.end_s - length_s) // tick_s)
        rng = random.Random(self.seed)
        starts = [rng.randint(0, latest) * tick_s for _ in range(self.count)]
        return [market.window(start_s, length_s) for start_s in starts]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestPlan:
    """Every policy on every market in every world, over the same windows of a market."""

    markets: Sequence[Market]
    worlds: Sequence[World]
    policies: Sequence[Policy]
    windows: Windows


@dataclass(frozen=True, slots=True)
class _Task:
    """One policy over the windows of one market in one world."""

    market: Market
    world: World
    policy: Policy
    windows: list[Market]
    sample: int


def run_backtest(
    plan: BacktestPlan, *, progress: Progress | None = None, workers: int = 1
) -> list[Row]:
    """Try a plan; one row per market, world and policy, in that order.

    With more than one worker, windows run in processes of their own. Raises MarketError where a
    window does not fit its market or ends with the first cold start.
    """
    tasks = [
        _Task(market, world, policy, windows, sample)
        for market in plan.markets
        for world in (asked.priced(market) for asked in plan.worlds)
        for windows in [long_enough(plan.windows.of(market, world.tick_s), world)]
        for sample in [most_eventful(windows, world)]
        for policy in plan.policies
    ]
    results = _results(tasks, workers)
    done, total = 0, sum(len(task.windows) for task in tasks)
    rows = []
    for task in tasks:
        found = []
        for _ in task.windows:
            found.append(next(results))
            done += 1
            if progress:
                progress(done, total, f"{task.market.name} {task.policy.name}")
        rows.append(_row(task, found))
    return rows


def _results(tasks: Sequence[_Task], workers: int) -> Iterator[RunResult]:
    runs = [
        (task.policy.name, task.policy.settings, window, _seeded(task.world, index))
        for task in tasks
        for index, window in enumerate(task.windows)
    ]
    if workers == 1 or len(runs) < FEW_RUNS:
        yield from (_run(*run) for run in runs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("forkserver")) as pool:
        for future in [pool.submit(_run, *run) for run in runs]:
            yield future.result()


def _run(policy: str, settings: Settings, window: Market, world: World) -> RunResult:
    """Try a policy by its name, since other processes import it."""
    return POLICIES[policy].run(window, world, settings)


def _seeded(world: World, window: int) -> World:
    """The world of one window: the same one for every policy, another for every window."""
    return replace(world, seed=world.seed * SEED_STRIDE + window)


def _row(task: _Task, results: Sequence[RunResult]) -> Row:
    served = [result.served_share for result in results]
    costs = [result.cost for result in results]
    return Row(
        market=task.market.name,
        regions=task.market.regions,
        policy=task.policy.name,
        windows=len(results),
        served_share=statistics.fmean(served),
        served_share_min=min(served),
        capacity_share=statistics.fmean(result.capacity_share for result in results),
        cost=statistics.fmean(costs),
        cost_sd=statistics.stdev(costs) if len(costs) > 1 else 0.0,
        spot_launches=sum(result.spot_launches for result in results),
        on_demand_launches=sum(result.on_demand_launches for result in results),
        losses=sum(result.losses for result in results),
        world=task.world,
        hours=task.windows[0].end_s / 3600.0,
        settings=task.policy.settings,
        sample=(task.windows[task.sample], results[task.sample]),
    )


def long_enough(windows: list[Market], world: World) -> list[Market]:
    """Refuse windows that end with the first cold start, or that take too long."""
    ticks = world.length(windows[0])
    if ticks > MOST_TICKS:
        raise MarketError(
            f"a window of {windows[0].end_s:g} s has {ticks:,} ticks of {world.tick_s:g} s, more "
            f"than {MOST_TICKS:,}; ask for a longer tick or shorter windows"
        )
    if world.length(windows[0]) <= world.ticks(world.cold_start_s):
        raise MarketError(
            f"a window of {windows[0].end_s:g} s ends before the first cold start of "
            f"{world.cold_start_s:g} s does; ask for longer windows"
        )
    return windows


def most_eventful(windows: Sequence[Market], world: World) -> int:
    """The window in which what spot can give of the target changes most often."""
    events = [np.count_nonzero(np.diff(limit(window, world).spot)) for window in windows]
    return int(np.argmax(events))
