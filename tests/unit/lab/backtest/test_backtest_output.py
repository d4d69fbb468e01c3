"""What a backtest says: JSON, tables, the picture's geometry and the page."""

import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from spotkeeper_lab.backtest.policies import choose
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.run.backtest import (
    BacktestPlan,
    Row,
    Windows,
    compared,
    json_text,
    report_html,
    run_backtest,
    tables,
)
from spotkeeper_lab.traces.market import generate

WORLDS = (
    World(target=3),
    World(
        target=4,
        warm_start_s=60.0,
        warm_pool=4,
        notice_s=120.0,
        notice_lost=0.1,
        event_delay_s=30.0,
        on_demand_failure=0.05,
        price_ratio=1 / 3,
    ),
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    plan = BacktestPlan(
        markets=[generate(0, hours=12)],
        worlds=WORLDS,
        policies=choose([]),
        windows=Windows(count=3, hours=4.0),
    )
    return run_backtest(plan)


def test_json_is_a_list_with_a_row_per_policy_and_world(rows: list[Row]) -> None:
    found = json.loads(json_text(rows))
    assert len(found) == 2 * len(choose([]))
    assert {row["settings"]["warm_pool"] for row in found} == {0, 4}


def test_rows_are_compared_within_their_world(rows: list[Row]) -> None:
    headings = [title for title, group in compared(rows) if len(group) == len(choose([]))]
    assert headings[0] == (
        "generated-0, target 3, 3 x 4 h, tick 30 s, cold start 120 s, no notice, spot at 0.3"
    )
    assert headings[1].endswith(
        "warm start 60 s for 4, notice 120 s, 10% of notices lost, events up to 30 s late, "
        "5% of on-demand launches refused, spot at 0.3333"
    )


def test_the_tables_name_every_policy_and_put_costs_beside_optimum_and_limit(
    rows: list[Row],
) -> None:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(*tables(rows[: len(choose([]))]))
    text = captured.get()
    for policy in choose([]):
        assert policy.name in text
    optimum = next(line for line in text.splitlines() if "optimum " in line and "│" in line)
    assert "1.00" in optimum


def test_on_80_columns_no_figure_is_cut(rows: list[Row]) -> None:
    same = rows[: len(choose([]))]
    many = [replace(row, spot_launches=9_999, on_demand_launches=999) for row in same]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(*tables(many, wide=False))
    text = captured.get()
    assert "…" not in text
    for row in same:
        line = next(line for line in text.splitlines() if line.lstrip().startswith(row.policy))
        assert {f"{row.cost:.1%}", f"{row.served_share_min:.2%}", "999"} <= set(line.split())


def test_the_page_needs_nothing_else(rows: list[Row]) -> None:
    page = report_html(rows, command="spotkeeper backtest <x>")
    outside = r"""(src|href)=(?!"data:)|@import|url\((?!#)|https?://(?!www.w3.org)"""
    assert not re.search(outside, page)
    assert 'name="viewport"' in page
    assert "spotkeeper backtest &lt;x&gt;" in page
    assert page.count('class="timeline"') == page.count('class="scatter"') == len(WORLDS)
