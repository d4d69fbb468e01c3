"""The replay's table, JSON and picture."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from spotkeeper_lab.replay.output import as_json, cheapest, choice_cells, choices_table, table
from spotkeeper_lab.replay.report import report_html
from spotkeeper_lab.replay.values import ReplaySettings, Run
from spotkeeper_lab.run.replay import iter_runs
from spotkeeper_lab.traces.requests import generate_requests

if TYPE_CHECKING:
    from spotkeeper_lab.traces.requests import RequestTrace

RULES = ("fixed-peak", "keda-queue", "spotkeeper")
KEYS = {
    "trace", "rule", "objective_met", "share_in_time", "wait_p50", "wait_p95", "wait_p99",
    "worker_hours", "scale_outs", "scale_ins", "lost", "requests", "at_most", "settings",
}  # fmt: skip


@pytest.fixture(scope="module")
def runs() -> list[tuple[RequestTrace, Run]]:
    traces = [generate_requests(seed, hours=1.0) for seed in (1, 2)]
    return list(iter_runs(traces, RULES, ReplaySettings()))


def test_json_has_every_key_and_no_endless_number(runs: list[tuple[RequestTrace, Run]]) -> None:
    rows = json.loads(as_json([run.row for _, run in runs]))
    assert [row["rule"] for row in rows] == list(RULES) * 2
    assert all(set(row) == KEYS for row in rows)
    assert rows[0]["settings"]["cold_start_s"] == 240.0


def test_an_endless_wait_is_null() -> None:
    nobody = ReplaySettings(max_workers=1, initial_workers=1, wait_s=0.0)
    busy = generate_requests(1, hours=0.5, mean_load=20.0)
    (_, run), *_ = iter_runs([busy], ["keda-queue"], nobody)
    assert run.row.objective_met is False
    assert "Infinity" not in as_json([run.row])


def test_the_table_fits_eighty_columns(runs: list[tuple[RequestTrace, Run]]) -> None:
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table("t", [run.row for _, run in runs[:3]]))
    text = capture.get()
    assert "spotkeeper" in text
    assert "…" not in text


def test_the_choice_over_time_is_a_table_of_the_last_rules_followed(
    runs: list[tuple[RequestTrace, Run]],
) -> None:
    run = runs[2][1]
    first, *later = choice_cells(run)
    assert first == ("day 1 00:01", "last 5 min, kept 15 min, and bursts", "", "")
    assert later, "after three quarters of an hour its own log says more"
    assert all(cells[2].endswith("%") and float(cells[3]) > 0 for cells in later)
    many = replace(run, choices=[*run.choices] * 20)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(choices_table(many))
    text = capture.get()
    assert "choices before are in the report" in text
    assert "…" not in text
    assert "rule followed" in report_html([runs[2]])


@pytest.mark.parametrize(("most", "told"), [(1_000, None), (2, "(--max-workers): fixed-peak")])
def test_a_rule_that_ran_into_the_bound_is_named(most: int, told: str | None) -> None:
    day = generate_requests(1, hours=0.5, mean_load=1.5)
    runs = list(iter_runs([day], ["fixed-peak"], ReplaySettings(max_workers=most)))
    caption = table("t", [run.row for _, run in runs]).caption
    assert runs[0][1].row.at_most is (told is not None)
    assert caption == (told and f"ran into the bound of {most} workers {told}")
    page = report_html(runs)
    assert f"<h2>{day.name}</h2>" in page
    assert ("Rules that ran into the bound" in page) is (told is not None)


def test_the_cheapest_keeps_the_promise(runs: list[tuple[RequestTrace, Run]]) -> None:
    rows = [run.row for _, run in runs[:3]]
    best = cheapest(rows)
    assert best is not None
    assert best.rule == "spotkeeper"
    assert cheapest([]) is None
