"""Faults planted in the product, one after another: which of them do the chaos runs notice?

`python -m bench oracle` runs up to 20 seeds for each until a promise is broken. `--only=TEXT`
plants the faults with this text in their names, `--first=SEED` begins with another seed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from importlib import import_module
from math import ceil
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest.mock import patch

from rich.table import Table

from spotkeeper.domain.decision import RequestKind
from spotkeeper.domain.interruption import InterruptionAction
from spotkeeper.turns.turn import TurnReport
from spotkeeper_cli.options import counted, screen
from spotkeeper_lab.promises import Promise
from spotkeeper_lab.run.chaos import run
from spotkeeper_lab.scenario import draw

SEEDS, NOTICED = 20, 44
DOMAIN, TURNS, ADAPTERS = "spotkeeper.domain", "spotkeeper.turns", "spotkeeper.adapters"
BACKFILL, DECIDE = f"{DOMAIN}.availability.backfill", f"{DOMAIN}.availability.decide"
READING, HEALTH = f"{TURNS}.reading", f"{DOMAIN}.health"
COUNT, STATE = f"{DOMAIN}.availability.count", f"{ADAPTERS}.dynamodb.fleet_state"
SIZE, DIAGNOSIS = f"{DOMAIN}.sizing.size", f"{DOMAIN}.health.diagnosis"

type Function = Callable[..., Any]


class Planted(NamedTuple):
    """A fault: where it is, and what it makes of the function there."""

    name: str
    module: str
    attribute: str
    fault: Callable[[Function], Function]


def answers(value: Any) -> Callable[[Function], Function]:
    """Answer always the same."""
    return lambda _: lambda *_, **__: value


def result(change: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Change the result."""
    return lambda original: lambda *args, **more: change(original(*args, **more))


def wanted(change: Callable[[int], int]) -> Callable[[Function], Function]:
    """Change the backfill that a turn wants."""
    return result(lambda found: (change(found[0]), found[1]))


def late(original: Function) -> Function:
    """Want backfill only for a gap that is ten minutes old."""

    def fault(seen: Any) -> Any:
        since, (want, rule) = seen.memory.gap_since, original(seen)
        young = since is None or seen.now - since < timedelta(minutes=10)
        return (min(want, seen.on_demand.target) if young else want), rule

    return fault


def stale(original: Function) -> Function:
    """Allow no on-demand while the newest search log is older than three minutes."""

    def fault(this: Any, read: Any) -> Any:
        snapshot, newest = original(this, read), this.lease.health.flow.newest
        if newest is not None and this.now - newest < timedelta(minutes=3):
            return snapshot
        most = snapshot.groups.on_demand.desired
        bounds = replace(snapshot.fleet.bounds, on_demand_max=most)
        return replace(snapshot, fleet=replace(snapshot.fleet, bounds=bounds))

    return fault


def undated(original: Function) -> Function:
    """Count what launches as launching, however long ago it began."""
    never = datetime.min.replace(tzinfo=UTC)
    return lambda *args: original(*args[:5], never, *args[6:])


def suspecting(original: Function) -> Function:
    """Suspect the instance that has been in service for longest."""

    def fault(memory: Any, *more: Any) -> Any:
        oldest = min(memory.in_service_since, default=None)
        return original(memory, *more) | ({oldest: "planted"} if oldest else {})

    return fault


def draining(original: Function) -> Function:
    """Mark every instance when one is warned."""

    def fault(seen: Any) -> Any:
        marked: list[Any] = original(seen)
        groups = seen.snapshot.groups
        every = [i.instance_id for g in (groups.spot, groups.on_demand) for i in g.instances]
        return [replace(one, instances=tuple(every)) if is_mark(one) else one for one in marked]

    return fault


def is_mark(request: Any) -> bool:
    """Say whether a request marks instances."""
    return request.kind is RequestKind.DRAIN


def past(original: Function) -> Function:
    """Mark with an instant of ten minutes before."""
    return lambda this, ids, gone_at, group: original(
        this, ids, gone_at - timedelta(minutes=10), group
    )


def slowly(_: Function) -> Function:
    """Grow by one instance at most."""
    return lambda turn, estimate: resized(estimate, lambda n, t: min(n, t.spot.desired + 1), turn)


def serving(original: Function) -> Function:
    """Count what logs no requests as serving."""
    return lambda seen, *more: original(replace(seen, silent=frozenset()), *more)


def twice(original: Function) -> Function:
    """Add up each digest two times."""
    return lambda digests: 2 * original(digests)


def later(at: Any) -> Any:
    """Return an instant of ten minutes later."""
    return at + timedelta(minutes=10)


def instances(change: Callable[[int, Any], int]) -> Callable[[Function], Function]:
    """Change the instances that a sizing requests."""

    def plant(original: Function) -> Function:
        return lambda turn, estimate: original(turn, resized(estimate, change, turn))

    return plant


def resized(estimate: Any, change: Callable[[int, Any], int], turn: Any = None) -> Any:
    """Return an estimate of another number of instances."""
    return replace(estimate, instances=change(estimate.instances, turn))


def every(times: int, instead: Any) -> Callable[[Function], Function]:
    """Do it once, and the next times not."""

    def plant(original: Function) -> Function:
        calls = iter(range(10**9))
        return lambda *args, **more: (
            original(*args, **more) if next(calls) % times == 0 else instead
        )

    return plant


FAULTS = (
    # Those that passed before. Where a milder fault is noticed, its worse form is not planted.
    Planted("twice the backfill", BACKFILL, "_wanted", wanted(lambda n: 2 * n)),
    Planted("spot three times too large", SIZE, "_sizing_of", instances(lambda n, _: 3 * n)),
    Planted(
        "a fleet that never shrinks",
        SIZE,
        "_sizing_of",
        instances(lambda n, t: max(n, t.spot.desired)),
    ),
    Planted("warned workers never drained", DECIDE, "marks", answers([])),
    Planted("backfill ten minutes late", BACKFILL, "_wanted", late),
    Planted("half of the shortfall", BACKFILL, "_wanted", wanted(lambda n: n // 2)),
    Planted(
        "no backfill while logs are stale", f"{TURNS}.check_availability", "snapshot_of", stale
    ),
    # Backfill and release.
    Planted("one too many", BACKFILL, "_wanted", wanted(lambda n: n + bool(n))),
    Planted("on-demand is released at once", BACKFILL, "_still_needed", answers(0)),
    Planted("no cap on a broken configuration", BACKFILL, "_cap", answers(10**6)),
    Planted("missing capacity is capped", BACKFILL, "_cap", answers(1)),
    Planted("launching counts for ever", COUNT, "count", undated),
    Planted("at risk counts as serving", DECIDE, "at_risk", answers({})),
    Planted("nothing is replaced early", DECIDE, "early_replacements", answers([])),
    Planted("a warning drains every instance", DECIDE, "marks", draining),
    Planted("a mark stays", DECIDE, "marks", result(lambda found: [*filter(is_mark, found)])),
    Planted("a mark of the past", f"{ADAPTERS}.ec2.group_writer", "AutoScalingWriter.drain", past),
    Planted("what AWS left running stays", DECIDE, "left_running", answers([])),
    Planted(
        "most events do nothing",
        f"{TURNS}.check_availability",
        "action_for",
        every(5, InterruptionAction.IGNORE),
    ),
    Planted("a met fleet is not adopted", DECIDE, "adopt", answers(None)),
    Planted("one on-demand instance is kept", BACKFILL, "_still_needed", result(lambda n: n + 1)),
    # Sizing.
    Planted("two thirds of the size", SIZE, "_sizing_of", instances(lambda n, _: ceil(n * 2 / 3))),
    Planted("one instance less", SIZE, "_sizing_of", instances(lambda n, _: max(1, n - 1))),
    Planted(
        "a partly known load is believed",
        f"{HEALTH}.decide",
        "partly_known",
        lambda _: lambda load, memory, *_: ("", memory.flow),
    ),
    Planted(
        "a silence is no load", SIZE, "_in_silence", result(lambda e: resized(e, lambda *_: 1))
    ),
    Planted(
        "growth without a limit",
        SIZE,
        "_limited",
        lambda _: lambda _turn, estimate: resized(estimate, lambda n, _: 3 * n),
    ),
    Planted(
        "the fleet does not grow",
        SIZE,
        "_sizing_of",
        instances(lambda n, t: min(n, t.spot.desired)),
    ),
    Planted("growth by one a turn", SIZE, "_limited", slowly),
    Planted("own machines are not counted", SIZE, "recent_onprem", answers((0, ()))),
    Planted("a fleet never wakes", SIZE, "_waking", answers(0)),
    Planted("two more than the load needs", SIZE, "_sizing_of", instances(lambda n, _: n + 4)),
    # The health of workers.
    Planted("what hangs counts as serving", DECIDE, "count_groups", serving),
    Planted("hung workers stay", DIAGNOSIS, "silent", answers({})),
    Planted("a working instance is suspected", DIAGNOSIS, "silent", suspecting),
    Planted("nobody serves, and no alarm", DIAGNOSIS, "nobody_serves", answers("")),
    Planted("slow workers stay", DIAGNOSIS, "_slow", answers({})),
    Planted("missing logs are deaths", DIAGNOSIS, "logs_rather_missing", answers(False)),
    Planted("what never worked stays", DIAGNOSIS, "late", answers(())),
    Planted(
        "no budget of replacements",
        f"{HEALTH}.decide",
        "replaced",
        lambda _: lambda memory, *_: memory,
    ),
    Planted("a tenth of the evidence", f"{HEALTH}.reports", "_enough", result(lambda n: n / 10)),
    Planted("ten times the evidence", f"{HEALTH}.reports", "_enough", result(lambda n: 10 * n)),
    # Turns, state, reading.
    Planted("every fifth turn", f"{TURNS}.turn", "FleetTurns.run", every(5, TurnReport())),
    Planted("warned is at risk ten minutes later", READING, "at_risk_since", result(later)),
    Planted("failures are never read", READING, "_failures", answers(())),
    Planted("nothing is remembered", STATE, "memory_in_todays_words", answers({})),
    Planted("logs are counted twice", f"{DOMAIN}.load.summarise", "unique", twice),
)


@contextmanager
def planted(one: Planted) -> Iterator[None]:
    """Plant a fault in the product for a while."""
    *parts, name = one.attribute.split(".")
    holder = reduce(getattr, parts, import_module(one.module))
    with patch.object(holder, name, one.fault(getattr(holder, name))):
        yield


def red(seed: int) -> bool:
    """Say whether a seed breaks a promise with no fault planted."""
    return bool(run(draw(seed)).violations)


def noticed(seeds: Sequence[int], number: int) -> tuple[int, int | None, str]:
    """Run seeds with one fault; return its number, how many runs it took, and what noticed it."""
    with planted(FAULTS[number]):
        for runs, seed in enumerate(seeds, 1):
            if violations := run(draw(seed)).violations:
                if bugs := [one.how for one in violations if one.promise is Promise.NO_BUG]:
                    raise TypeError(f"{FAULTS[number].name} does not fit the product: {bugs[0]}")
                return number, runs, f"{violations[0].promise}: {violations[0].how}"
    return number, None, ""


def main() -> None:
    """Plant every fault and print which were noticed, by which promise."""
    options = dict(one.removeprefix("--").split("=", 1) for one in sys.argv[2:] if "=" in one)
    first, only = int(options.get("first", "1")), options.get("only", "")
    chosen = [n for n, one in enumerate(FAULTS) if only in one.name.replace(" ", "-")]
    found = dict[int, tuple[int | None, str]]()
    with get_context("forkserver").Pool() as pool, counted("faults") as show:
        # A seed that is red by itself notices nothing.
        tried = range(first, first + SEEDS)
        seeds = [n for n, bad in zip(tried, pool.map(red, tried), strict=True) if not bad]
        results = pool.imap_unordered(partial(noticed, seeds), chosen)
        for done, (number, runs, how) in enumerate(results, 1):
            found[number] = runs, how
            show(done, len(chosen), FAULTS[number].name)
    count = sum(runs is not None for runs, _ in found.values())
    table = Table("planted in the product", "seeds", "noticed by", title_justify="left")
    for number, (runs, how) in sorted(found.items()):
        table.add_row(FAULTS[number].name, f"{runs or '-'}", how or "[red]nobody[/]")
    goal = f"{count} of {len(found)} faults noticed (goal {NOTICED} of {len(FAULTS)})"
    screen().print(table, f"{goal}; {SEEDS - len(seeds)} seeds are red by themselves, unused")
    sys.exit(only == "" and count < NOTICED)


if __name__ == "__main__":
    main()
