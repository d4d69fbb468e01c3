"""Choosing policies and settings, cutting windows, summing up rows."""

from dataclasses import asdict

import pytest

from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper_lab.backtest.policies import (
    POLICIES,
    SettingError,
    UnknownNameError,
    choose,
    configure,
)
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.run.backtest import COLUMNS, BacktestPlan, Windows, run_backtest
from spotkeeper_lab.traces.market import MarketError, generate

MARKET = generate(0, hours=12)
WORLD = World(target=3)


def plan(*names: str, count: int | None = 3, hours: float = 2.0) -> BacktestPlan:
    windows = Windows(count=count, hours=hours)
    return BacktestPlan(markets=[MARKET], worlds=[WORLD], policies=choose(names), windows=windows)


def test_no_name_is_every_policy_and_a_name_twice_is_one() -> None:
    assert [policy.name for policy in choose([])] == list(POLICIES)
    assert [policy.name for policy in choose(["limit", "spot", "limit"])] == ["limit", "spot"]


def test_the_nearest_names_of_an_unknown_policy_are_offered() -> None:
    with pytest.raises(UnknownNameError, match="'spothegde'; did you mean spothedge"):
        choose(["spothegde"])
    with pytest.raises(UnknownNameError, match="known: even-spread"):
        choose(["zzz"])


def test_a_setting_reaches_every_policy_that_has_it_or_the_one_named() -> None:
    policies = choose(["spothedge", "round-robin", "two-group-loop"])
    everywhere = configure(policies, ["extra=2", "every_s=2m"])
    assert [dict(policy.settings) for policy in everywhere] == [
        {"extra": 2},
        {"extra": 2},
        {"every_s": 120.0},
    ]
    one = configure(policies, ["spothedge.extra=0"])
    assert [dict(policy.settings) for policy in one][:2] == [{"extra": 0}, {"extra": 1}]


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
        ("spare_share=2", "spare_share is 2.0; Input should be less than or equal to 1"),
        ("elevated_risk_s=0.5", "elevated_risk_s is 0.5; Input should be a valid integer"),
    ],
)
def test_a_setting_that_does_not_exist_or_read_is_refused(text: str, problem: str) -> None:
    with pytest.raises((UnknownNameError, SettingError), match=problem):
        configure(choose(["spothedge", "two-group-loop", "spotkeeper"]), [text])


def test_a_row_has_what_the_json_needs() -> None:
    seen: list[tuple[int, int, str]] = []
    rows = run_backtest(plan("spothedge", "limit"), progress=lambda *at: seen.append(at))
    assert [row.policy for row in rows] == ["spothedge", "limit"]
    row = rows[0].as_json()
    assert set(row) == {*COLUMNS, "settings"}
    assert row["windows"] == 3
    settings = row["settings"]
    assert isinstance(settings, dict)
    assert (settings["target"], settings["extra"], settings["window_hours"]) == (3, 1, 2.0)
    assert seen[-1] == (6, 6, f"{MARKET.name} limit")
    assert 0 <= rows[0].served_share_min <= rows[0].served_share <= 1


def test_the_same_plan_gives_the_same_rows_also_in_processes() -> None:
    here = [row.as_json() for row in run_backtest(plan("spothedge", "optimum"))]
    assert here == [row.as_json() for row in run_backtest(plan("spothedge", "optimum"), workers=2)]


@pytest.mark.parametrize(
    ("count", "hours", "problem"),
    [
        (0, 2.0, "0 windows are none"),
        (3, float("nan"), "a window of nan h has no length"),
        (3, 0.0, "a window of 0 h has no length"),
        (3, 0.03, "a window of 108 s ends before the first cold start of 120 s does"),
        (3, 13.0, "13 h from 0 h on does not fit"),
    ],
)
def test_windows_that_measure_nothing_are_refused(count: int, hours: float, problem: str) -> None:
    with pytest.raises(MarketError, match=problem):
        run_backtest(plan("spot", count=count, hours=hours))


def test_the_deployed_policy_runs_with_the_deployed_defaults() -> None:
    policy = configure(choose(["spotkeeper"]), ["elevated_risk_s=2h"])[0]
    defaults = asdict(AvailabilityPolicy(elevated_risk_s=7200))
    worlds = ("on_demand_warm", "notice_s")
    assert policy.settings == {k: v for k, v in defaults.items() if k not in worlds}
    (row,) = run_backtest(plan("spotkeeper"))
    assert row.policy == "spotkeeper"
    assert 0 < row.served_share <= 1
