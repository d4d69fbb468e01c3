"""A backtest: policies and settings by name, windows, and its rows as JSON, tables and a page."""

import json
import re
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper_lab.backtest.policies import (
    POLICIES,
    SettingError,
    UnknownNameError,
    choose,
    configure,
)
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.run.backtest import (
    Row,
    Windows,
    compared,
    report_html,
    run_backtest,
    tables,
)
from spotkeeper_lab.traces.market import MarketError, generate
from spotkeeper_operator.text import as_json

MARKET = generate(0, hours=12)
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
KEYS = {
    "market", "regions", "policy", "windows", "served_share", "served_share_min", "capacity_share",
    "cost", "cost_sd", "spot_launches", "on_demand_launches", "losses", "settings",
}  # fmt: skip


def test_no_name_is_every_policy_and_a_name_twice_is_one() -> None:
    assert [policy.name for policy in choose([])] == list(POLICIES)
    assert [policy.name for policy in choose(["limit", "spot", "limit"])] == ["limit", "spot"]


def test_a_setting_reaches_every_policy_that_has_it_or_the_one_named() -> None:
    policies = choose(["spothedge", "round-robin", "two-group-loop"])
    everywhere = configure(policies, ["extra=2", "every_s=2m"])
    assert [one.settings for one in everywhere] == [{"extra": 2}, {"extra": 2}, {"every_s": 120.0}]
    one, other, _ = configure(policies, ["spothedge.extra=0"])
    assert (one.settings, other.settings) == ({"extra": 0}, {"extra": 1})


def test_the_deployed_policy_has_the_deployed_defaults() -> None:
    (policy,) = configure(choose(["spotkeeper"]), ["busy_patience_s=2h"])
    defaults = asdict(AvailabilityPolicy(busy_patience_s=7200))
    worlds = ("on_demand_warm", "notice_s")
    assert policy.settings == {k: v for k, v in defaults.items() if k not in worlds}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("extr=1", "no setting is called 'extr'; did you mean extra"),
        ("spothegde.extra=1", "did you mean spothedge.extra"),
        ("extra", "write name=value"),
        ("extra=one", "extra is 'one'; it must be a whole number"),
        ("extra=-1", "extra is -1; it must be 0 or more"),
        ("every_s=soon", "'soon' is no duration"),
        ("notice_s=0", "notice_s is the world's, not a policy's: --notice"),
        ("spotkeeper.on_demand_warm=true", "on_demand_warm is .*: --warm-start and --warm-pool"),
        # The deployed policy takes what a fleet document takes.
        ("rebalance=panic", "rebalance is 'panic'; Input should be 'ignore' or 'at_risk'"),
        (
            "lost_notice_share=2",
            "lost_notice_share is 2.0; Input should be less than or equal to 1",
        ),
        ("busy_patience_s=0.5", "busy_patience_s is 0.5; Input should be a valid integer"),
    ],
)
def test_a_setting_that_does_not_exist_or_read_is_refused(text: str, problem: str) -> None:
    with pytest.raises((UnknownNameError, SettingError), match=problem):
        configure(choose(["spothedge", "two-group-loop", "spotkeeper"]), [text])


@pytest.mark.parametrize(
    ("count", "hours", "problem"),
    [
        (3, 0.03, "a window of 108 s ends before the first cold start of 120 s does"),
        (3, 13.0, "13 h from 0 h on does not fit"),
    ],
)
def test_windows_that_measure_nothing_are_refused(count: int, hours: float, problem: str) -> None:
    with pytest.raises(MarketError, match=problem):
        run_backtest([MARKET], WORLDS, choose(["spot"]), Windows(count=count, hours=hours))


def test_the_same_windows_give_the_same_rows_also_in_processes() -> None:
    policies, windows = choose(["spothedge", "optimum"]), Windows(count=3, hours=2.0)
    seen: list[tuple[int, int, str]] = []
    rows = run_backtest(
        [MARKET], WORLDS[:1], policies, windows, progress=lambda *at: seen.append(at)
    )
    assert seen[-1] == (6, 6, f"{MARKET.name} optimum")
    assert 0 <= rows[0].served_share_min <= rows[0].served_share <= 1
    again = run_backtest([MARKET], WORLDS[:1], policies, windows, workers=2)
    assert [row.as_json() for row in rows] == [row.as_json() for row in again]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return run_backtest([MARKET], WORLDS, choose([]), Windows(count=3, hours=4.0))


def test_json_has_a_row_per_policy_and_world(rows: list[Row]) -> None:
    found = json.loads(as_json(rows=[row.as_json() for row in rows]))["rows"]
    assert [row["policy"] for row in found] == [*POLICIES] * 2
    assert all(set(row) == KEYS for row in found)
    assert {row["settings"]["warm_pool"] for row in found} == {0, 4}
    hedge = next(row for row in found if row["policy"] == "spothedge")
    settings = hedge["settings"]
    assert (hedge["windows"], settings["target"], settings["extra"]) == (3, 3, 1)
    assert settings["window_hours"] == 4.0


# What each policy serves in both worlds, its cost, and how many instances it lost.
GOLDEN = {
    "on-demand": ("100.00%, 100.0%, 0", "100.00%, 100.0%, 0"),
    "spot": ("81.23%, 25.1%, 20", "81.23%, 28.2%, 26"),
    "static-split": ("80.67%, 50.0%, 14", "80.67%, 64.0%, 14"),
    "even-spread": ("4.90%, 11.7%, 19", "4.90%, 16.9%, 23"),
    "round-robin": ("80.88%, 33.2%, 26", "80.39%, 35.0%, 32"),
    "two-group-loop": ("95.94%, 41.6%, 20", "96.22%, 44.7%, 26"),
    "spothedge": ("98.04%, 52.7%, 26", "98.81%, 54.4%, 32"),
    "spotkeeper": ("98.04%, 43.2%, 20", "100.00%, 47.3%, 24"),
    "optimum": ("100.00%, 43.8%, 0", "100.00%, 46.3%, 0"),
    "limit": ("100.00%, 41.0%, 0", "100.00%, 43.9%, 0"),
}


def test_rows_are_compared_within_their_world(rows: list[Row]) -> None:
    (first, _, figures), (second, _, others) = compared(rows)
    assert first == (
        "generated-0, target 3, 3 x 4 h, tick 30 s, cold start 120 s, no notice, spot at 0.3"
    )
    assert second.endswith(
        "warm start 60 s for 4, notice 120 s, 10% of notices lost, events up to 30 s late, "
        "5% of on-demand launches refused, spot at 0.3333"
    )
    found = [
        [f"{it['served']}, {it['cost']}, {it['lost']}" for it in of] for of in (figures, others)
    ]
    assert dict(zip(POLICIES, zip(*found, strict=True), strict=True)) == GOLDEN
    assert figures[list(POLICIES).index("optimum")]["x optimum"] == "1.00"


def test_on_80_columns_no_figure_is_cut(rows: list[Row]) -> None:
    same = rows[: len(POLICIES)]
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
