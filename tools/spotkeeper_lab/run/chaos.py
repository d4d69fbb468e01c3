"""`python -m spotkeeper_lab.run.chaos`: random faults on many seeds, with a table of violations."""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from spotkeeper_lab.promises import Promise, Result, Violation, Watch
from spotkeeper_lab.rings import Rings, of_template
from spotkeeper_lab.run import region_chaos
from spotkeeper_lab.scenario import Scenario, draw, draw_wide, write

if TYPE_CHECKING:
    from spotkeeper_lab.faults import Kind

STORY_LINES = 60
FOLDED_WITHIN = 8
# One seed in ten is that of a fleet in several regions, too.
OF_REGIONS = 10


def run(scenario: Scenario) -> Result:
    """Play a scenario, and judge its promises and its alarms."""
    watch = Watch(scenario)
    rings = Rings(watch)
    watch.world.observers.append(rings)
    return replace(watch.run(), rung=rings.rung)


def minimise(scenario: Scenario, promise: Promise) -> Scenario:
    """The same run with as few and as short faults as still break the promise."""
    for smaller in _smaller(scenario):
        if promise in {violation.promise for violation in run(smaller).violations}:
            return minimise(smaller, promise)
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are simpler by one step, the simplest first."""
    faults = scenario.faults
    for index in range(len(faults)):
        yield replace(scenario, faults=faults[:index] + faults[index + 1 :])
    if len(scenario.loads) > 1:
        yield replace(scenario, loads=scenario.loads[:1])
    plain: dict[str, Any] = {"event_lost": 0.0, "event_twice": 0.0, "onprem_workers": 0,
                             "warm_pool": 0, "event_delay_s": 2.0,
                             "launch_first": False}  # fmt: skip
    for name, value in plain.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})


def main(arguments: Sequence[str]) -> int:
    """Run the seeds of the arguments; return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many runs")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--keep", type=Path, help="a folder for the smallest failing scenarios")
    parser.add_argument("--wide", action="store_true", help="slow APIs, quiet nights, many fleets")
    asked, console = parser.parse_args(arguments), Console()
    began = time.monotonic()
    drawn = map(draw_wide if asked.wide else draw, range(asked.first, asked.first + asked.seeds))
    with Pool() as pool:
        results = _run_all(list(drawn), pool, console)
        broken: dict[Promise, list[tuple[Result, Violation]]] = defaultdict(list)
        for result in results:
            for violation in result.violations:
                broken[violation.promise].append((result, violation))
        _print_tables(results, broken, console)
        console.print(f"{len(results)} seeds in {time.monotonic() - began:.0f} s")
        # Several regions take ten times as long.
        last = asked.first + -(-asked.seeds // OF_REGIONS)
        apart = region_chaos.print_all(range(asked.first, last), pool, console)
        failing = [(found[0][0].scenario, promise) for promise, found in broken.items()]
        smallest = pool.starmap(minimise, failing)
    for scenario, (_, promise) in zip(smallest, failing, strict=True):
        console.rule(f"{promise}, seed {scenario.seed}")
        console.print("\n".join(story_of(run(scenario), promise)), markup=False)
        if asked.keep:
            name = promise.name.lower().replace("_", "-")
            write(scenario, asked.keep / f"{name}-{scenario.seed}.json")
    return 1 if broken or apart else 0


def _run_all(scenarios: Sequence[Scenario], pool: Pool, console: Console) -> list[Result]:
    results: list[Result] = []
    with Progress(console=console) as progress:
        task = progress.add_task("seeds", total=len(scenarios))
        for result in pool.imap_unordered(run, scenarios):
            results.append(result)
            failing = sum(bool(one.violations) for one in results)
            progress.update(task, advance=1, description=f"seeds, {failing} failing")
            for one in result.violations:
                console.print(f"seed {result.scenario.seed}: {one.promise}: {one.how}")
            if not console.is_terminal and len(results) % 50 == 0:
                console.print(f"{len(results)} of {len(scenarios)} seeds, {failing} failing")
    return sorted(results, key=lambda result: result.scenario.seed)


def _print_tables(
    results: Sequence[Result],
    broken: Mapping[Promise, list[tuple[Result, Violation]]],
    console: Console,
) -> None:
    """Print the violations, and how often each excuse held."""
    hours = sum(result.scenario.end_s for result in results) / 3600.0
    losses = sum(result.losses for result in results)
    invocations = sum(result.invocations for result in results)
    title = f"{hours:.0f} virtual hours, {invocations} invocations, {losses} losses"
    table = Table("promise", "broken in", "seeds", "for example", title=title)
    for promise in Promise:
        found = broken.get(promise, [])
        seeds = ", ".join(str(result.scenario.seed) for result, _ in found[:8])
        table.add_row(promise, str(len(found)), seeds, found[0][1].how if found else "")
    console.print(table)
    minutes = sum(result.minutes for result in results)
    total = sum(result.excused_minutes for result in results)
    title = f"Excused: {total} of {minutes} minutes ({total / minutes:.2%})"
    excuses = Table("promise", "fault", "minutes", "share", "in seeds", title=title)
    counts: Counter[tuple[Promise, Kind]] = Counter()
    for result in results:
        counts += result.excused
    for (promise, kind), count in counts.most_common():
        among = sum((promise, kind) in result.excused for result in results)
        excuses.add_row(promise, kind, str(count), f"{count / minutes:.2%}", str(among))
    console.print(excuses)
    alarms = Table("alarm", "began to ring", "in seeds")
    for name in [alarm.name.partition("-")[2] for alarm in of_template()]:
        times = [result.rung[name] for result in results]
        alarms.add_row(name, str(sum(times)), str(sum(map(bool, times))))
    console.print(alarms)


def story_of(result: Result, promise: Promise | None = None) -> list[str]:
    """A run line by line up to the break of a promise; the last lines of it."""
    scenario = result.scenario
    plain = Scenario(seed=scenario.seed)
    names = [name for name in Scenario.__slots__ if name not in ("faults", "loads", "start")]
    differs = [n for n in names if getattr(scenario, n) != getattr(plain, n)]
    lines = [
        f"starts with: {scenario.start}; loads {scenario.loads}",
        ", ".join(f"{name} {getattr(scenario, name)}" for name in differs),
    ]
    ends = [v for v in result.violations if promise in (None, v.promise)]
    stop_s = min((v.at_s for v in ends), default=scenario.end_s)
    told = _folded([line for line in result.story if _second(line) <= stop_s])
    lines += [line for line in told if "!" in line[:14]] if len(told) > STORY_LINES else []
    lines += told[-STORY_LINES:]
    return lines + [f"BROKEN at {v.at_s / 60:.1f} min: {v.promise}: {v.how}" for v in ends]


def _folded(lines: Sequence[str]) -> list[str]:
    """Return the lines; those that repeat soon after are only counted."""
    kept: list[list[Any]] = []
    for line in lines:
        said = line.partition("  ")[2]
        same = [one for one in kept[-FOLDED_WITHIN:] if one[0].partition("  ")[2] == said]
        if same:
            same[-1][1] += 1
        else:
            kept.append([line, 1])
    return [f"{line} (x{count})" if count > 1 else line for line, count in kept]


def _second(line: str) -> float:
    minutes, _, rest = line.partition(":")
    return 60.0 * float(minutes) + float(rest.split()[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
