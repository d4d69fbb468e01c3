"""What it costs to keep on-demand until spot was heard of: days with that rule and without it.

An instance that came into service and of which no log came yet may serve or not: nothing is
launched in its stead, and nothing is given back for it. Each day is a generated spot market, its
requests the demo's or rare ones, through the deployed functions. Takes some minutes.
"""

import io
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from bench._figures import narrow_table
from spotkeeper_cli.output import counted, screen
from spotkeeper_lab.end_to_end.day import running
from spotkeeper_lab.end_to_end.results import results
from spotkeeper_lab.end_to_end.scene import DemoSettings, scene
from spotkeeper_lab.traces.generate import generate
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests

RULE = "spotkeeper.domain.health.diagnosis.unheard"
DAY_S = 86_400.0
SERVICE_S = 20.0
KINDS: Mapping[str, tuple[float | None, range]] = {
    "one a second": (None, range(1)),
    "one a minute": (60.0, range(4)),
    "one in five minutes": (300.0, range(4)),
}
"""Seconds between requests, None for those of the demo; and the seeds of the days."""


@dataclass(frozen=True, slots=True)
class Case:
    """A day of a kind, with the rule or without."""

    kind: str
    seed: int
    with_rule: bool


def rare(seed: int, gap_s: float) -> RequestTrace:
    """A day of requests at random instants, `gap_s` apart in the mean."""
    chance = np.random.default_rng(seed)
    count = chance.poisson(DAY_S / gap_s)
    return RequestTrace(
        name=f"rare-{seed}",
        arrival_s=np.sort(chance.uniform(0.0, DAY_S, count)),
        service_s=chance.lognormal(np.log(SERVICE_S) - 1 / 8, 1 / 2, count),
        end_s=DAY_S,
    )


def day(case: Case) -> Mapping[str, Any]:
    """The figures of a day."""
    gap_s, _ = KINDS[case.kind]
    requests = generate_requests(case.seed) if gap_s is None else rare(case.seed, gap_s)
    settings = DemoSettings(
        market=generate(case.seed, hours=24), requests=requests, seed=case.seed, incidents=False
    )
    with running(scene(settings), io.StringIO()) as stage:
        if case.with_rule:
            stage.run(lambda _: None)
        else:
            with patch(RULE, lambda _memory, _now: ()):
                stage.run(lambda _: None)
        return results(stage).values


def main() -> None:
    """Run every day and print what each kind comes to, with the rule and without it."""
    cases = [
        Case(kind, seed, with_rule)
        for kind, (_, seeds) in KINDS.items()
        for seed, with_rule in product(seeds, (True, False))
    ]
    found: dict[Case, Mapping[str, Any]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool, counted("days") as show:
        for case, values in zip(cases, pool.map(day, cases), strict=True):
            found[case] = values
            show(len(found), len(cases), case.kind)
    table = narrow_table("requests", "rule", "losses", "on-demand h", "cost", "late")
    for kind, with_rule in product(KINDS, (True, False)):
        table.add_row(kind, "with" if with_rule else "without", *_cells(kind, with_rule, found))
    screen().print(table)


def _cells(kind: str, with_rule: bool, found: Mapping[Case, Mapping[str, Any]]) -> Iterator[str]:
    days = [it for case, it in found.items() if (case.kind, case.with_rule) == (kind, with_rule)]
    owed = sum(it["target_hours"] for it in days)
    paid = sum(it["cost_vs_on_demand"] * it["target_hours"] for it in days)
    yield f"{sum(it['losses'] for it in days)}"
    yield f"{sum(it['on_demand_hours'] for it in days):.2f}"
    yield f"{paid / owed:.2%}"
    yield f"{sum(it['late_requests'] for it in days):,} of {sum(it['requests'] for it in days):,}"


if __name__ == "__main__":
    main()
