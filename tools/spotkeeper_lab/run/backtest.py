"""Runs policies over windows of markets, and shows the rows: a table, JSON and an HTML page."""

import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from multiprocessing import get_context

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from spotkeeper_charts import page
from spotkeeper_charts.page import (
    Block,
    Chart,
    Heading,
    Page,
    Point,
    Scatter,
    Series,
    Spans,
    Text,
    Timeline,
    changed,
    page_html,
    scatter,
)
from spotkeeper_lab.backtest.bounds import limit
from spotkeeper_lab.backtest.policies import POLICIES, Policy
from spotkeeper_lab.backtest.world import Counts, Grid, RunResult, Settings, World, sampled
from spotkeeper_lab.traces.market import Market, MarketError

type Progress = Callable[[int, int, str], None]
"""Called with windows done, windows in all and a label."""

SEED_STRIDE = 1_000_003
"""Keeps the seeds of windows apart from those of neighbouring worlds."""

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


COLUMNS = tuple(
    field.name
    for field in fields(Row)
    if field.name not in ("world", "hours", "settings", "sample")
)
"""What a row of the JSON file has beside its settings."""


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


CELLS = (
    "served",
    "cost",
    "saved",
    "x optimum",
    "x limit",
    "±",
    "worst window",
    "capacity",
    "launches",
    "lost",
)
"""What a row shows beside its policy; launches are on spot + on demand, in all windows."""
LEFT_OUT_OF_80_COLUMNS = ("saved", "lost")
"""What a narrow terminal has no room for; JSON and report have it."""


def json_text(rows: Sequence[Row]) -> str:
    """The rows as a JSON list, one object per market, world and policy."""
    return json.dumps([row.as_json() for row in rows], indent=2) + "\n"


def compared(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The rows that can be compared, with a heading: same market, same world, same windows."""
    for _, same in groupby(rows, key=lambda row: (row.market, row.world, row.hours)):
        group = list(same)
        yield heading(group[0]), group


def heading(row: Row) -> str:
    """The market, the windows and the world in a line."""
    world = row.world
    spanned = [f"spans {len(row.regions)} regions"] if row.regions[1:] else []
    parts = [
        row.market,
        *spanned,
        f"target {world.target}",
        f"{row.windows} x {row.hours:.4g} h",
        f"tick {world.tick_s:g} s",
        f"cold start {world.cold_start_s:g} s",
    ]
    if world.warm_start_s is not None and world.warm_pool:
        parts.append(f"warm start {world.warm_start_s:g} s for {world.warm_pool}")
    parts.append(f"notice {world.notice_s:g} s" if world.notice_s else "no notice")
    if world.notice_s and world.notice_lost:
        parts.append(f"{world.notice_lost:.0%} of notices lost")
    if world.turn_jitter_s:
        parts.append(f"turns up to {world.turn_jitter_s:g} s late")
    if world.event_delay_s:
        parts.append(f"events up to {world.event_delay_s:g} s late")
    if world.on_demand_failure:
        parts.append(f"{world.on_demand_failure:.0%} of on-demand launches refused")
    parts.append(
        "market's prices" if world.price_ratio is None else f"spot at {world.price_ratio:.4g}"
    )
    return ", ".join(parts)


def cost_of(rows: Sequence[Row], policy: str) -> float | None:
    """A policy's cost among comparable rows."""
    return next((row.cost for row in rows if row.policy == policy), None)


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    """A row's figures as text, in the order of CELLS."""
    return (
        f"{row.served_share:.2%}",
        f"{row.cost:.1%}",
        f"{1 - row.cost:.1%}",
        _times(row.cost, cost_of(rows, "optimum")),
        _times(row.cost, cost_of(rows, "limit")),
        f"{row.cost_sd:.1%}",
        f"{row.served_share_min:.2%}",
        f"{row.capacity_share:.3%}",
        f"{row.spot_launches} + {row.on_demand_launches}",
        str(row.losses),
    )


def _times(cost: float, beside: float | None) -> str:
    return f"{cost / beside:.2f}" if beside else ""


def tables(rows: Sequence[Row], *, wide: bool = True) -> Iterator[Table]:
    """One table for people per market and world; one that is not `wide` has at most 80 columns."""
    shown = [name for name in CELLS if wide or name not in LEFT_OUT_OF_80_COLUMNS]
    for title, group in compared(rows):
        table = Table(title=title, title_justify="left")
        if not wide:
            table.box, table.padding = SIMPLE, (0, 0)
        table.add_column("policy", no_wrap=True)
        for name in shown:
            table.add_column(name if wide else name.replace(" ", "\n"), justify="right")
        for row in group:
            style = "bold" if row.policy == "spotkeeper" else None
            found = zip(CELLS, cells(row, group), strict=True)
            table.add_row(row.policy, *(it for name, it in found if name in shown), style=style)
        yield table


def report_html(rows: Sequence[Row], command: str = "") -> str:
    sections = [block for title, group in compared(rows) for block in _section(title, group)]
    return page_html(
        Page(
            title="Backtest: what each policy serves, and what it costs",
            footer="Served: share of ticks, after the first cold start, with at least the target "
            "ready. Capacity: instance-time that served, of the target's. Cost: of the target all "
            "on demand; saved: the rest. Launches (spot + on demand) and losses: in all windows.",
            blocks=[*([Text("Made by", command)] if command else []), *sections],
        )
    )


def picture(rows: Sequence[Row]) -> Scatter:
    kinds = {"spotkeeper": "ours", "optimum": "optimum", "limit": "limit"}
    return scatter(
        [
            Point(
                name=row.policy,
                served=row.served_share,
                cost=row.cost,
                kind=kinds.get(row.policy, "peer"),  # type: ignore[arg-type]
            )
            for row in rows
        ]
    )


def _section(title: str, rows: Sequence[Row]) -> Iterator[Block]:
    market, _, world = title.partition(", ")
    yield Heading(market)
    yield Text(world)
    yield picture(rows)
    yield _table(rows)
    yield Heading("The most eventful window")
    yield timeline(rows)
    if settings := [row for row in rows if row.settings]:
        yield _settings(settings)


def _table(rows: Sequence[Row]) -> page.Table:
    made = [
        page.Row(
            cells=(row.policy, *cells(row, rows)),
            style="ours" if row.policy == "spotkeeper" else "",
        )
        for row in rows
    ]
    return page.Table(columns=("policy", *CELLS), numbers=CELLS, rows=made)


def _settings(rows: Sequence[Row]) -> page.Table:
    texts = (", ".join(f"{name} = {value}" for name, value in r.settings.items()) for r in rows)
    return page.Table(
        caption="Settings of the policies",
        folded=True,
        columns=("policy", "settings"),
        rows=[page.Row(cells=(r.policy, text)) for r, text in zip(rows, texts, strict=True)],
    )


def timeline(rows: Sequence[Row]) -> Timeline:
    """The sample window of comparable rows, below the market's own; one scale for all."""
    window, first = rows[0].sample
    return Timeline(
        length_s=window.end_s,
        one_scale=True,
        columns=True,
        intro="Every policy in the same hours, on one scale. Point at, or tap, a moment.",
        charts=[
            _market(window, rows[0].world, first),
            *(_chart(row.policy, row.sample[1], window.end_s) for row in rows),
        ],
    )


def _market(window: Market, world: World, run: RunResult) -> Chart:
    """The capacity of all pools, as far as it matters."""
    capacities, _ = sampled(window, world, np.arange(run.ready.size))
    t, capacity = _steps(np.minimum(capacities.sum(axis=0), 2 * run.target), window.end_s)
    return Chart(
        title="spot market",
        unit="capacity of all pools, up to twice the target",
        height=100,
        whole=True,
        series=[Series(label="capacity", colour="line", kind="area", t=t, values=capacity)],
    )


def _chart(name: str, run: RunResult, end_s: float) -> Chart:
    times = (np.arange(run.spot.size) * (end_s / run.spot.size)).tolist()
    held = list(zip(run.spot.tolist(), (run.spot + run.on_demand).tolist(), strict=True))
    kept = [n for n in range(len(held)) if n == 0 or held[n] != held[n - 1]]
    t = [times[n] for n in kept]
    spot, both = ([held[n][which] for n in kept] for which in (0, 1))
    return Chart(
        title=name,
        unit=f"{run.served_share:.2%} served, cost {run.cost:.1%}",
        height=100,
        whole=True,
        ours=name == "spotkeeper",
        series=[
            Series(label="spot held", colour="spot", kind="area", t=t, values=spot),
            Series(
                label="on demand held",
                colour="on-demand",
                kind="area",
                t=t,
                values=both,
                base=spot,
            ),
            Series(label="target", colour="target", t=[0.0], values=[run.target], width=1.2),
        ],
        spans=[
            Spans(label="too few serving", colour="loss", spans=list(_short(run, end_s)), foot=True)
        ],
    )


def _steps(counts: Counts | Grid, end_s: float) -> tuple[list[float], list[float]]:
    """A count per tick as a step function, only where it changes."""
    return changed((np.arange(counts.size) * (end_s / counts.size)).tolist(), counts.tolist())


def _short(run: RunResult, end_s: float) -> Iterator[tuple[float, float, str]]:
    """When fewer than the target served, after the first cold start."""
    flags = run.ready < run.target - 1e-6
    flags[: run.first] = False
    tick_s = end_s / flags.size
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]))).tolist()
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        fewest = int(run.ready[start:end].min())
        yield start * tick_s, end * tick_s, f"{fewest} of {run.target} serve"
