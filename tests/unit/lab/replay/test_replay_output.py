"""The replay's tables, JSON and page, and both checkers on a market."""

import json
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from spotkeeper_lab.replay.report import (
    cheapest,
    choice_cells,
    choices_table,
    report_html,
    table,
)
from spotkeeper_lab.replay.rules import FixedPeak
from spotkeeper_lab.replay.values import ReplayError, ReplaySettings, Run
from spotkeeper_lab.run.on_market import market_table, on_market
from spotkeeper_lab.run.replay import iter_runs
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.traces.requests import RequestTrace, generate_requests
from spotkeeper_operator.text import as_json

RULES = ("fixed-peak", "keda-queue", "spotkeeper")
KEYS = {
    "trace", "rule", "objective_met", "share_in_time", "wait_p50", "wait_p95", "wait_p99",
    "worker_hours", "scale_outs", "scale_ins", "lost", "requests", "at_most", "settings",
}  # fmt: skip
SETTINGS = ReplaySettings()


@pytest.fixture(scope="module")
def runs() -> list[tuple[RequestTrace, Run]]:
    return list(iter_runs([generate_requests(1, hours=1.0)], RULES, SETTINGS))


def printed(shown: RenderableType) -> str:
    """What 80 columns show, in which no figure is cut."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(shown)
    assert "…" not in capture.get()
    return capture.get()


def test_rows_are_json_and_a_table(runs: list[tuple[RequestTrace, Run]]) -> None:
    rows = [run.row for _, run in runs]
    found = json.loads(as_json(rows=rows))["rows"]
    assert [row["rule"] for row in found] == list(RULES)
    assert all(set(row) == KEYS for row in found)
    assert found[0]["settings"]["cold_start_s"] == 240.0
    assert "spotkeeper" in printed(table("t", rows))
    best = cheapest(rows)
    assert best is not None
    assert best.rule == "spotkeeper"


def test_an_endless_wait_is_null() -> None:
    nobody = ReplaySettings(max_workers=1, initial_workers=1, wait_s=0.0)
    busy = generate_requests(1, hours=0.5, mean_load=20.0)
    (_, run), *_ = iter_runs([busy], ["keda-queue"], nobody)
    assert cheapest([run.row]) is None
    assert "Infinity" not in as_json(rows=[run.row])


def test_the_choice_over_time_is_a_table_of_the_last_rules_followed(
    runs: list[tuple[RequestTrace, Run]],
) -> None:
    trace, run = runs[2]
    first, *later = choice_cells(run)
    assert first == ("day 1 00:01", "last 5 min, kept 15 min, and bursts", "", "")
    assert later, "after three quarters of an hour its own log says more"
    assert all(cells[2].endswith("%") and float(cells[3]) > 0 for cells in later)
    run = replace(run, choices=[*run.choices] * 20)
    assert "choices before are in the report" in printed(choices_table(run))
    assert "rule followed" in report_html([(trace, run)])


@pytest.mark.parametrize(("most", "told"), [(1_000, None), (2, "(--max-workers): fixed-peak")])
def test_a_rule_that_ran_into_the_bound_is_named(most: int, told: str | None) -> None:
    day = generate_requests(1, hours=0.5, mean_load=1.5)
    found = list(iter_runs([day], ["fixed-peak"], ReplaySettings(max_workers=most)))
    caption = table("t", [run.row for _, run in found]).caption
    assert caption == (told and f"ran into the bound of {most} workers {told}")
    page = report_html(found)
    assert f"<h2>{day.name}</h2>" in page
    assert ("Rules that ran into the bound" in page) is (told is not None)


@pytest.mark.parametrize("capacity", [8, 2])
def test_on_a_market_the_cost_is_sizing_times_spot_against_the_fixed_peak(capacity: int) -> None:
    """One zone loses half of its capacity for some minutes; a small one gets larger instances."""
    steps = [(0.0, capacity), (200.0, capacity // 2), (400.0, capacity)]
    market, minutes = market_of("m", 600.0, {"a/x": steps}), list[tuple[int, int]]()
    requests = generate_requests(1, hours=1 / 6, mean_load=3.0)
    row = on_market(requests, market, SETTINGS, lambda at, of, _: minutes.append((at, of)))
    assert minutes == sorted(minutes)
    assert (minutes[0][0], minutes[-1][1]) == (0, 25)
    size = row.workers_per_instance
    assert (size > 1) is (capacity == 2)
    assert row.worker_hours == pytest.approx(
        (row.spot_hours + row.on_demand_hours) * size, abs=0.01 * size
    )
    bought = 0.30 * row.spot_hours + row.on_demand_hours
    fixed = FixedPeak(SETTINGS, requests).count
    assert row.cost >= bought / (fixed * row.hours) - 0.01
    assert row.cost == pytest.approx(row.sizing_factor * row.spot_factor, abs=1e-4)
    shown = printed(market_table([row]))
    assert all(f"{value:.1%}" in shown for value in (row.cost, row.sizing_factor, row.spot_factor))


def test_a_trace_without_requests_is_refused() -> None:
    nothing = generate_requests(1, hours=1 / 6).window(0.0, 1e-9)
    with pytest.raises(ReplayError, match="no request"):
        on_market(nothing, market_of("m", 600.0, {"a/x": [(0.0, 8)]}), SETTINGS)
