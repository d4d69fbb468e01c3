"""The peers against the figures of ../shared/benchmarks.md, with the published settings."""

from pathlib import Path
from statistics import fmean, stdev

import pytest

from spotkeeper_lab.backtest.policies import choose, configure
from spotkeeper_lab.backtest.world import RunResult, World
from spotkeeper_lab.run.backtest import Windows, run_backtest
from spotkeeper_lab.traces.market import read_market

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "market"
AWS1 = TRACES / "aws-p3.2xlarge-4-2023-08.csv.gz"
H100 = TRACES / "gcp-h100-16-2025-10-six-zones.csv.gz"
# They need traces that are no part of the repository, and take a minute.
pytestmark = pytest.mark.make_e2e
PUBLISHED = World(target=3, tick_s=30.0, cold_start_s=120.0, price_ratio=1 / 3)


def tried(trace: Path, policy: str, count: int, *settings: str) -> list[RunResult]:
    """One policy in windows of a day, with the published settings."""
    if not trace.exists():
        pytest.skip("../shared/traces/market is not here")
    chosen = configure(choose([policy]), settings)[0]
    windows = Windows(count=count, hours=24.0, seed=0).of(read_market(trace), PUBLISHED)
    return [chosen.run(window, PUBLISHED, chosen.settings) for window in windows]


def assert_within_one_deviation(results: list[RunResult], cost: float, served: float) -> None:
    costs = [100 * result.cost for result in results]
    shares = [100 * result.served_share for result in results]
    assert abs(fmean(costs) - cost) <= stdev(costs)
    assert abs(fmean(shares) - served) <= stdev(shares)


@pytest.mark.parametrize(
    ("trace", "extra", "cost", "served"),
    [
        (AWS1, 1, 50.8, 99.41),
        (AWS1, 0, 39.4, 98.84),
        (H100, 1, 44.7, 99.98),
        (H100, 0, 33.6, 99.49),
    ],
    ids=["aws1", "aws1 without extra", "h100", "h100 without extra"],
)
def test_spothedge_is_where_it_was_measured(
    trace: Path, extra: int, cost: float, served: float
) -> None:
    results = tried(trace, "spothedge", 40, f"extra={extra}")
    assert_within_one_deviation(results, cost, served)


@pytest.mark.parametrize(("trace", "cost"), [(AWS1, 42.5), (H100, 33.3)], ids=["aws1", "h100"])
def test_the_optimum_is_where_it_was_measured(trace: Path, cost: float) -> None:
    assert_within_one_deviation(tried(trace, "optimum", 40), cost, 100.0)


@pytest.mark.parametrize(
    ("policy", "cost", "served"), [("even-spread", 29, 52), ("round-robin", 39, 93)]
)
def test_the_spot_only_peers_are_where_they_were_published(
    policy: str, cost: float, served: float
) -> None:
    assert_within_one_deviation(tried(AWS1, policy, 40), cost, served)


def test_the_order_of_the_policies_is_the_published_one() -> None:
    if not AWS1.exists():
        pytest.skip("../shared/traces/market is not here")
    names = ["even-spread", "round-robin", "two-group-loop", "spothedge", "on-demand"]
    policies, windows = choose([*names, "optimum", "limit"]), Windows(count=24)
    rows = {
        row.policy: row for row in run_backtest([read_market(AWS1)], [PUBLISHED], policies, windows)
    }
    served = [rows[name].served_share for name in names]
    assert served == sorted(served)
    assert rows["limit"].cost < rows["optimum"].cost < rows["spothedge"].cost < 1
    assert rows["optimum"].served_share_min == 1


@pytest.mark.parametrize("trace", sorted(TRACES.glob("*.csv.gz")), ids=lambda path: path.stem)
def test_every_trace_reads(trace: Path) -> None:
    market = read_market(trace)
    assert market.end_s > 0
    assert list(market.changes())
