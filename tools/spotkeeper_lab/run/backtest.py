"""Runs policies over windows of markets, and shows the rows: a table, JSON and an HTML page."""

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import groupby, starmap
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
    Series,
    Spans,
    Text,
    Timeline,
    changed,
    page_html,
    scatter,
)
from spotkeeper_lab.backtest.bounds import limit
from spotkeeper_lab.backtest.policies import POLICIES, REGIONAL, Policy
from spotkeeper_lab.backtest.world import RunResult, Settings, World, sampled
from spotkeeper_lab.traces.market import Market, MarketError

type Progress = Callable[[int, int, str], None]
"""Called with windows done, windows in all and a label."""

SEED_STRIDE = 1_000_003
"""Keeps the seeds of windows apart from those of neighbouring worlds."""

OURS = ("spotkeeper", "spotkeeper-regions")

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
        apart = ("world", "hours", "settings", "sample")
        names = [field.name for field in fields(self) if field.name not in apart]
        settings = {**asdict(self.world), "window_hours": self.hours, **self.settings}
        return {**{name: getattr(self, name) for name in names}, "settings": settings}


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """``count`` windows of ``hours`` at random offsets, or (count None) the whole market."""

    count: int | None = None
    hours: float = 24.0
    seed: int = 0

    def of(self, market: Market, world: World) -> list[Market]:
        """The windows of a market, on whole ticks; raises MarketError where they do not fit.

        Refuses windows that end with the first cold start, or that take too long.
        """
        windows, tick_s = [market], world.tick_s
        if self.count is not None:
            length_s = self.hours * 3600.0
            market.window(0.0, length_s)
            latest, rng = int((market.end_s - length_s) // tick_s), random.Random(self.seed)
            starts = [rng.randint(0, latest) * tick_s for _ in range(self.count)]
            windows = [market.window(start_s, length_s) for start_s in starts]
        end_s, ticks = windows[0].end_s, world.length(windows[0])
        if ticks > MOST_TICKS:
            raise MarketError(
                f"a window of {end_s:g} s has {ticks:,} ticks of {tick_s:g} s, more "
                f"than {MOST_TICKS:,}; ask for a longer tick or shorter windows"
            )
        if ticks <= world.ticks(world.cold_start_s):
            raise MarketError(
                f"a window of {end_s:g} s ends before the first cold start of "
                f"{world.cold_start_s:g} s does; ask for longer windows"
            )
        return windows


def run_backtest(
    markets: Sequence[Market],
    worlds: Sequence[World],
    policies: Sequence[Policy],
    cut: Windows,
    *,
    progress: Progress = lambda done, of, at_work: None,
    workers: int = 1,
) -> list[Row]:
    """Try every policy on every market in every world; one row each, in that order.

    With more than one worker, windows run in processes of their own. Raises MarketError where a
    window does not fit its market or ends with the first cold start.
    """
    tasks = [
        (market, world, cut.of(market, world))
        for market in markets
        for world in (option.priced(market) for option in worlds)
    ]
    runs = [
        # A window's world is the same one for every policy, and another for every window.
        (policy.name, policy.settings, window, replace(world, seed=world.seed * SEED_STRIDE + n))
        for _, world, windows in tasks
        for policy in policies
        for n, window in enumerate(windows)
    ]
    rows: list[Row] = []
    with ExitStack() as stack:
        results: Iterator[RunResult] = starmap(_run, runs)
        if workers > 1 and len(runs) >= FEW_RUNS:
            context = get_context("forkserver")
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context))
            results = pool.map(_run, *zip(*runs, strict=True))
        numbered = enumerate(results, start=1)
        for market, world, windows in tasks:
            # The window in which what spot can give of the target changes most often.
            events = [np.count_nonzero(np.diff(limit(each, world).spot)) for each in windows]
            sample = int(np.argmax(events))
            for policy in policies:
                rows_run: list[RunResult] = []
                for _ in windows:
                    done, result = next(numbered)
                    rows_run.append(result)
                    progress(done, len(runs), f"{market.name} {policy.name}")
                served = [result.served_share for result in rows_run]
                costs = [result.cost for result in rows_run]
                row = Row(
                    market=market.name,
                    regions=market.regions,
                    policy=policy.name,
                    windows=len(rows_run),
                    served_share=statistics.fmean(served),
                    served_share_min=min(served),
                    capacity_share=statistics.fmean(result.capacity_share for result in rows_run),
                    cost=statistics.fmean(costs),
                    cost_sd=statistics.stdev(costs) if len(costs) > 1 else 0.0,
                    spot_launches=sum(result.spot_launches for result in rows_run),
                    on_demand_launches=sum(result.on_demand_launches for result in rows_run),
                    losses=sum(result.losses for result in rows_run),
                    world=world,
                    hours=windows[0].end_s / 3600.0,
                    settings=policy.settings,
                    sample=(windows[sample], rows_run[sample]),
                )
                rows.append(row)
    return rows


def run_regions(
    market: Market,
    world: World,
    cut: Windows,
    settings: Settings | None = None,
    *,
    progress: Progress = lambda done, of, at_work: None,
    workers: int = 1,
    beside: bool = True,
) -> list[Row]:
    """Try ways to use all regions of a market, and its best and its median region alone.

    Those two are chosen by what they cost in all windows, afterwards. Without `beside`, only the
    deployed way and the limit are tried. `settings` change the deployed policy; the home is by
    default the region with the most capacity.
    """
    run = partial(run_backtest, progress=progress, workers=workers)
    own = {"home": market.largest_region, **(settings or {})}
    ways = [
        replace(
            each, settings={**each.settings, **own} if "home" in each.settings else each.settings
        )
        for each in (POLICIES["spothedge"], *REGIONAL.values(), POLICIES["limit"])
        if beside or each.name in ("spotkeeper-regions", "limit")
    ]
    together = run([market], [world], ways, cut)
    if not beside:
        return together
    alone = run(
        [market.within(region) for region in market.regions], [world], [POLICIES["spotkeeper"]], cut
    )
    by_cost = sorted(alone, key=lambda row: row.cost)
    chosen = {"best region": by_cost[0], "median region": by_cost[len(by_cost) // 2]}
    named = [
        replace(
            row,
            policy=name,
            market=market.name,
            regions=market.regions,
            settings={"region": row.regions[0]},
        )
        for name, row in chosen.items()
    ]
    return [*named, *together]


def _run(policy: str, settings: Settings, window: Market, world: World) -> RunResult:
    """Try a policy by its name, since other processes import it."""
    return (POLICIES | REGIONAL)[policy].run(window, world, settings)


def _beside(policy: str) -> Callable[[Row, Mapping[str, float]], str]:
    """The cost over that of another policy, where that was tried, too."""
    return lambda row, costs: f"{row.cost / costs[policy]:.2f}" if costs.get(policy) else ""


FIGURES: Mapping[str, Callable[[Row, Mapping[str, float]], str]] = {
    "served": lambda row, _: f"{row.served_share:.2%}",
    "cost": lambda row, _: f"{row.cost:.1%}",
    "saved": lambda row, _: f"{1 - row.cost:.1%}",
    "x optimum": _beside("optimum"),
    "x limit": _beside("limit"),
    "±": lambda row, _: f"{row.cost_sd:.1%}",
    "worst window": lambda row, _: f"{row.served_share_min:.2%}",
    "capacity": lambda row, _: f"{row.capacity_share:.3%}",
    "launches": lambda row, _: f"{row.spot_launches} + {row.on_demand_launches}",
    "lost": lambda row, _: str(row.losses),
}
"""What a row shows beside its policy, of the row and the costs of those that it is compared with.

Launches are on spot + on demand, in all windows."""
LEFT_OUT_OF_80_COLUMNS = ("saved", "lost")
"""What a narrow terminal has no room for; JSON and report have it."""


def compared(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row], list[dict[str, str]]]]:
    """The rows that can be compared (same market, world, windows), a heading, and their figures."""
    for _, same in groupby(rows, key=lambda row: (row.market, row.world, row.hours)):
        group = list(same)
        costs = {row.policy: row.cost for row in group}
        figures = [{name: text(row, costs) for name, text in FIGURES.items()} for row in group]
        yield heading(group[0]), group, figures


def heading(row: Row) -> str:
    """The market, the windows and the world in a line."""
    world, price = row.world, row.world.price_ratio
    parts = [
        row.market,
        f"spans {len(row.regions)} regions" if row.regions[1:] else "",
        f"target {world.target}",
        f"{row.windows} x {row.hours:.4g} h",
        f"tick {world.tick_s:g} s",
        f"cold start {world.cold_start_s:g} s",
        f"warm start {world.warm_start_s:g} s for {world.warm_pool}" if world.warm_pool else "",
        f"notice {world.notice_s:g} s" if world.notice_s else "no notice",
        f"{world.notice_lost:.0%} of notices lost" if world.notice_s and world.notice_lost else "",
        f"turns up to {world.turn_jitter_s:g} s late" if world.turn_jitter_s else "",
        f"events up to {world.event_delay_s:g} s late" if world.event_delay_s else "",
        f"{world.on_demand_failure:.0%} of on-demand launches refused"
        if world.on_demand_failure
        else "",
        "market's prices" if price is None else f"spot at {price:.4g}",
    ]
    return ", ".join(filter(None, parts))


def tables(rows: Sequence[Row], *, wide: bool = True) -> Iterator[Table]:
    """One table for people per market and world; one that is not `wide` has at most 80 columns."""
    shown = [name for name in FIGURES if wide or name not in LEFT_OUT_OF_80_COLUMNS]
    for title, group, figures in compared(rows):
        table = Table(title=title, title_justify="left")
        if not wide:
            table.box, table.padding = SIMPLE, (0, 0)
        table.add_column("policy", no_wrap=True)
        for name in shown:
            table.add_column(name if wide else name.replace(" ", "\n"), justify="right")
        for row, cells in zip(group, figures, strict=True):
            style = "bold" if row.policy in OURS else None
            table.add_row(row.policy, *(cells[name] for name in shown), style=style)
        yield table


def report_html(rows: Sequence[Row], command: str = "") -> str:
    sections = [block for same in compared(rows) for block in _section(*same)]
    return page_html(
        Page(
            title="Backtest: what each policy serves, and what it costs",
            footer="Served: share of ticks, after the first cold start, with at least the target "
            "ready. Capacity: instance-time that served, of the target's. Cost: of the target all "
            "on demand; saved: the rest. Launches (spot + on demand) and losses: in all windows.",
            blocks=[*([Text("Made by", command)] if command else []), *sections],
        )
    )


def _section(
    title: str, rows: Sequence[Row], figures: Sequence[Mapping[str, str]]
) -> Iterator[Block]:
    market, _, world = title.partition(", ")
    yield Heading(market)
    yield Text(world)
    kinds = {**dict.fromkeys(OURS, "ours"), "optimum": "optimum", "limit": "limit"}
    yield scatter(
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
    yield page.Table(
        columns=("policy", *FIGURES),
        numbers=tuple(FIGURES),
        rows=[
            page.Row(
                cells=(row.policy, *cells.values()), style="ours" if row.policy in OURS else ""
            )
            for row, cells in zip(rows, figures, strict=True)
        ],
    )
    yield Heading("The most eventful window")
    window, first = rows[0].sample
    # The capacity of all pools, as far as it matters.
    capacities, _ = sampled(window, rows[0].world, np.arange(first.ready.size))
    t, capacity = changed(
        (np.arange(first.ready.size) * (window.end_s / first.ready.size)).tolist(),
        np.minimum(capacities.sum(axis=0), 2 * first.target).tolist(),
    )
    market_chart = Chart(
        title="spot market",
        unit="capacity of all pools, up to twice the target",
        height=100,
        whole=True,
        series=[Series(label="capacity", colour="line", kind="area", t=t, values=capacity)],
    )
    yield Timeline(
        length_s=window.end_s,
        one_scale=True,
        columns=True,
        intro="Every policy in the same hours, on one scale. Point at, or tap, a moment.",
        charts=[market_chart, *(_chart(row.policy, row.sample[1], window.end_s) for row in rows)],
    )
    texts = {
        row.policy: ", ".join(f"{name} = {value}" for name, value in row.settings.items())
        for row in rows
        if row.settings
    }
    if texts:
        yield page.Table(
            caption="Settings of the policies",
            folded=True,
            columns=("policy", "settings"),
            rows=[page.Row(cells=each) for each in texts.items()],
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
        ours=name in OURS,
        series=[
            Series(label="spot held", colour="spot", kind="area", t=t, values=spot),
            Series(
                label="on demand held", colour="on-demand", kind="area", t=t, values=both, base=spot
            ),
            Series(label="target", colour="target", t=[0.0], values=[run.target], width=1.2),
        ],
        spans=[
            Spans(label="too few serving", colour="loss", spans=list(_short(run, end_s)), foot=True)
        ],
    )


def _short(run: RunResult, end_s: float) -> Iterator[tuple[float, float, str]]:
    """When fewer than the target served, after the first cold start."""
    flags = run.ready < run.target - 1e-6
    flags[: run.first] = False
    tick_s = end_s / flags.size
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]))).tolist()
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        fewest = int(run.ready[start:end].min())
        yield start * tick_s, end * tick_s, f"{fewest} of {run.target} serve"
