"""Short days through the deployed functions, from the traces to the page."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spotkeeper_lab.run.demo import DemoSettings, run_demo
from spotkeeper_lab.traces.market import generate, read_market
from spotkeeper_lab.traces.requests import generate_requests, read_requests

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def demo(settings: DemoSettings, out: Path) -> dict[str, Any]:
    return run_demo(settings, out, Console(file=io.StringIO(), width=160))


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour of a generated day, with all that goes wrong in one."""
    out = tmp_path_factory.mktemp("hour")
    settings = DemoSettings(market=generate(0), requests=generate_requests(0), hours=1.0)
    demo(settings, out)
    return out


@pytest.fixture(scope="module")
def summary(hour: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((hour / "summary.json").read_text())
    return values


def test_an_hour_leaves_its_figures(hour: Path, summary: dict[str, Any]) -> None:
    files = ["decisions.jsonl", "report.html", "summary.json"]
    assert sorted(path.name for path in hour.iterdir()) == files
    assert summary["failed_invocations"] == 0, summary["errors"]
    assert summary["dead_letters"] == 0
    assert summary["lost_requests"] == 0
    assert 0.25 < summary["cost_vs_on_demand"] < 0.8


def test_every_fault_of_the_demo_ends_as_it_should(summary: dict[str, Any]) -> None:
    outcomes = {story["name"]: story for story in summary["incidents"]}
    assert set(outcomes) == {"hung worker", "configuration failures", "search logs stop"}
    assert all(story["ended_well"] for story in outcomes.values()), outcomes
    assert summary["workers_replaced"] == 1


def test_a_notice_is_answered_within_its_minute(summary: dict[str, Any]) -> None:
    assert summary["interruptions"] >= 1
    assert summary["replacement_asked_s"]["max"] < 60.0
    assert summary["replacement_asked_s"]["never"] == 0
    assert summary["whole_again_s"]["max"] < 120.0
    assert summary["backfills"] >= 1


def test_every_turn_left_its_decision(hour: Path, summary: dict[str, Any]) -> None:
    records = [json.loads(line) for line in (hour / "decisions.jsonl").read_text().splitlines()]
    assert len(records) == summary["turns"] >= 120
    assert all(record["reason"] and record["rule"] for record in records)


def test_the_same_seed_gives_the_same_day_whose_faults_outlast_it(tmp_path: Path) -> None:
    settings = DemoSettings(market=generate(0), requests=generate_requests(0), hours=0.1)
    one, other = tmp_path / "one", tmp_path / "other"
    hung, _, silent = demo(settings, one)["incidents"]
    assert (hung["ended_well"], hung["outcome"]) == (False, "still there at the end")
    assert (silent["ended_well"], silent["outcome"]) == (False, "no alarm was raised, no scale-in")
    demo(settings, other)
    for name in ("summary.json", "decisions.jsonl"):
        assert (one / name).read_text() == (other / name).read_text()


@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not beside the checkout")
def test_recorded_losses_are_filled_at_once_and_return_to_spot(tmp_path: Path) -> None:
    settings = DemoSettings(
        market=read_market(TRACES / "market" / "aws-p3.2xlarge-4-2023-08.csv.gz"),
        requests=read_requests(TRACES / "requests" / "servegen-mm-image-tenth.csv.gz"),
        hours=1.0,
        start_h=15.0,
        incidents=False,
    )
    values = demo(settings, tmp_path)
    assert values["losses"] >= 1
    assert values["replacement_asked_s"]["max"] < 60.0
    assert values["replacement_asked_s"]["never"] == 0
    assert values["back_on_spot_s"]["never"] == 0
    assert values["releases"] >= 1
    assert values["served_share"] > 0.95
    assert values["cost_vs_on_demand"] < 0.5
