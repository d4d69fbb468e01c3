"""`spotkeeper cost` against the demo's own bill, and what it tells beside the ledger.

Nothing of the bill knows the ledger's code. AWS's prices are answered as AWS answers them; the demo
adds up instance seconds as its simulated cloud lived them.
"""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from botocore.client import BaseClient
from botocore.stub import Stubber
from moto import mock_aws

from functions.check_availability.app import handler as check_availability
from functions.keep_ledger.app import handler as keep_ledger
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.domain.decision import HealthFigures
from spotkeeper.domain.money.ledger import EndedBy, LedgerItem
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper_lab.cloud.values import Physics, Purchase
from spotkeeper_operator import aws
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.cost import GROUP_TAG, noticed, read_use, spans_of
from tests.builders import NOON, held
from tests.contract.test_price_list import point, product
from tests.functions.conftest import PATH, TABLE, Stage, StageOf, billed
from tests.operator.command import answered, deploy, intercept, run

LIST_USD = 1.006
# From noon on, and from 14:00 on.
SPOT_USD = {0.0: 0.31, 7200.0: 0.45}
# Four, for two and a half hours; then spot runs out and recovers, twice.
MARKET = ((0.0, 200), (9000.0, 1), (11_400.0, 200), (13_200.0, 3), (14_400.0, 200))
END_S = 5 * 3600.0


def test_the_cost_is_the_bill_within_one_per_cent(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some hours of a fleet that loses spot and stands in for it."""
    stage = stage_of(("main",), spot=MARKET, physics=Physics(cold_start_s=120))
    deploy()

    def priced(_: BaseClient, operation: str, arguments: Any) -> Any:
        if operation == "GetProducts":
            return {"PriceList": [product(usd=str(LIST_USD))]}
        if operation == "DescribeSpotPriceHistory":
            until = arguments["EndTime"]
            points = [point(NOON + timedelta(seconds=at), str(usd)) for at, usd in SPOT_USD.items()]
            return {"SpotPriceHistory": [p for p in points[::-1] if p["Timestamp"] <= until]}
        return None

    intercept(monkeypatch, priced)
    booked: list[float] = []
    with redirect_stdout(io.StringIO()):
        while stage.cloud.now_s < END_S:
            stage.at(stage.cloud.now_s + 60)
            stage.call(check_availability)
            if stage.cloud.now_s % 300 == 0:
                booked.append(stage.call(keep_ledger)["main"])
    spot_h, on_demand_h = stage.hours[Purchase.SPOT], stage.hours[Purchase.ON_DEMAND]
    assert stage.losses > 3
    assert on_demand_h > 1
    found = json.loads(answered("cost", "--since", "6h", "--json"))
    expected = {
        "paid_usd": billed(stage.cloud.history(), END_S, SPOT_USD, LIST_USD),
        "spot_h": spot_h,
        "on_demand_h": on_demand_h,
        "same_on_demand_usd": (spot_h + on_demand_h) * LIST_USD,
        "interruptions": stage.losses,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=0.01)
    own = json.loads(answered("cost", "--since", "6h", "--price", "g5.xlarge=0.503", "--json"))
    assert own["same_on_demand_usd"] == pytest.approx(found["same_on_demand_usd"] / 2)
    assert found["paid_usd"] - own["paid_usd"] == pytest.approx(on_demand_h * 0.503, rel=0.01)
    # The looks add up to the same, but for the first hour of what AWS took later: each look counts
    # it, and the end takes it back.
    usd = spot_h * SPOT_USD[7200.0] + on_demand_h * LIST_USD
    assert found["paid_usd"] * 0.95 <= sum(booked) <= usd
    items = LedgerTable(boto3.client("dynamodb"), TABLE).since("main", NOON)
    assert {item.ended_by for item in items if item.until} == {EndedBy.AWS, EndedBy.US}
    running = {item.instance_id for item in items if item.until is None}
    assert running == {i.instance_id for i in stage.cloud.instances()}
    for by, only in (("type", "g5.xlarge"), ("day", "2026-11-20")):
        told = json.loads(answered("cost", "--since", "6h", "--by", by, "--json"))
        paid = {row["name"]: row["paid_usd"] for row in told["rows"]}
        assert paid[only] == sum(paid.values()) == pytest.approx(told["paid_usd"])


def test_a_missing_price_is_named(kept: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {})
    out = answered("cost", "--since", "2h")
    assert "have no price and are not included: on-demand g5.xlarge" in " ".join(out.split())
    found = json.loads(answered("cost", "--since", "2h", "--json"))
    assert found["missing_prices"] == ["on-demand g5.xlarge"]


def test_a_fleet_costs_from_the_first_look_on(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adopted instance ran for weeks beside others, of which nothing is known."""
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {"g5.xlarge": 1.0})
    table, hour = LedgerTable(boto3.client("dynamodb"), TABLE), timedelta(hours=1)
    adopted = replace(ITEM, option=PurchaseOption.ON_DEMAND, since=NOON - 400 * hour, until=None)
    table.put([adopted])
    table.looked("main", deployed.now, deployed.now - 2 * hour)
    found = json.loads(answered("cost", "--by", "day", "--json"))
    assert found["since"] == (deployed.now - 2 * hour).isoformat()
    assert (found["paid_usd"], [row["name"] for row in found["rows"]]) == (2.0, ["2026-11-20"])
    # Another one was removed an hour ago, and an instance of it was never seen to end.
    table.put([replace(adopted, fleet="asr")])
    table.looked("asr", deployed.now - hour, deployed.now - 4 * hour)
    assert json.loads(answered("cost", "--json"))["paid_usd"] == 5.0
    assert json.loads(answered("cost", "--fleet", "asr", "--json"))["paid_usd"] == 3.0
    assert json.loads(answered("cost", "--fleet", "main", "--json"))["paid_usd"] == 2.0
    assert "fleet asr: last read at" in answered("cost")


def test_unread_figures_are_unknown(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never read, a document that is broken, a ledger that is not kept any more: exit code 1."""
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {})
    code, out, _ = run("cost")
    assert (code, "0.00" in out) == (1, False)
    assert "fleet main: cost not known, its instances were never read" in " ".join(out.split())
    assert "paid not known" in " ".join(out.split())
    page = tmp_path / "cost.html"
    assert run("cost", "--report", str(page))[0] == 1
    assert "0.00" not in page.read_text(encoding="utf-8")
    LedgerTable(boto3.client("dynamodb"), TABLE).looked("main", deployed.now)
    assert run("cost")[0] == 0
    deployed.put("night", "{")
    code, out, _ = run("cost")
    assert (code, "its cost is not included" in " ".join(out.split())) == (1, True)
    boto3.client("ssm").delete_parameter(Name=f"{PATH}/night")
    deployed.put("main.overrides", "{")
    assert run("cost")[0] == 0, "the earlier document is in force, and its fleet's cost is known"
    deployed.put("main.overrides", "{}")
    deployed.at(deployed.cloud.now_s + 3600)
    found = json.loads(run("cost", "--json")[1])
    assert "later costs are not known" in found["unknown"][0]


def a_day(estimated: bool = False, **usd: float) -> dict[str, Any]:
    names = {"spot": "Spot Instances", "on_demand": "On Demand Instances", "others": "Others"}
    groups = [
        {"Keys": [names[kind]], "Metrics": {"UnblendedCost": {"Amount": str(v), "Unit": "USD"}}}
        for kind, v in usd.items()
    ]
    return {"Estimated": estimated, "Groups": groups}


ITEM = LedgerItem(
    fleet="main",
    instance_id="i-1",
    pool="us-east-1a/g5.xlarge",
    option=PurchaseOption.SPOT,
    since=NOON,
    until=NOON + timedelta(hours=1),
    ended_by=EndedBy.AWS,
)


@pytest.mark.parametrize(
    ("since", "pages", "expected"),
    [
        ("2h", [[]], f"nothing is billed under the tag {GROUP_TAG}"),
        (
            "2d",
            [[a_day(spot=1.5, on_demand=2.0)], [a_day(estimated=True, spot=0.5, others=0.25)]],
            "4.00 billed for instances from 2026-11-18 to 2026-11-20 (spot 2.00, on demand 2.00), "
            "0.25 for other items with the tag, not final yet; by the ledger 0.00",
        ),
        # Two hours are requested, but the bill is by day and includes what ran in the morning.
        (
            "2h",
            [[a_day(on_demand=3.0)]],
            "3.00 billed for instances from 2026-11-20 to 2026-11-21 (spot 0.00, on demand 3.00), "
            "0.00 for other items with the tag; by the ledger 3.00",
        ),
    ],
)
def test_whole_billed_days_are_compared_with_their_ledger(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch, since: str, pages: Any, expected: str
) -> None:
    """Cost Explorer answers page by page."""
    night = NOON.replace(hour=1)
    morning = replace(
        ITEM, option=PurchaseOption.ON_DEMAND, since=night, until=night + timedelta(hours=3)
    )
    LedgerTable(boto3.client("dynamodb"), TABLE).put([morning])
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {"g5.xlarge": 1.0})
    explorer = Stubber(boto3.client("ce", "us-east-1"))
    make: Any = Aws.client

    def client(aws: Aws, service: str, *more: Any) -> Any:
        return explorer.client if service == "ce" else make(aws, service, *more)

    monkeypatch.setattr(Aws, "client", client)
    first, last = ("2026-11-18", "2026-11-20") if since == "2d" else ("2026-11-20", "2026-11-21")
    asked = {
        "TimePeriod": {"Start": first, "End": last},
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Tags": {"Key": GROUP_TAG, "Values": ["main-on-demand", "main-spot"]}},
        "GroupBy": [{"Type": "DIMENSION", "Key": "PURCHASE_TYPE"}],
    }
    for number, days in enumerate(pages, 1):
        following = {"NextPageToken": f"{number}"} if pages[number:] else {}
        answer: Any = {"ResultsByTime": days, **following}
        explorer.add_response("get_cost_and_usage", answer, dict(asked))
        asked |= following
    with explorer:
        told = " ".join(answered("cost", "--since", since, "--actual").split())
    assert f"actual {expected}" in told
    assert f"paid {'0.00' if since == '2h' else '3.00'}" in told


def test_losses_together_make_one_look() -> None:
    ends = [ITEM, replace(ITEM, instance_id="i-2", until=NOON + timedelta(minutes=70))]
    others = [
        replace(ITEM, until=NOON + timedelta(hours=3)),
        replace(ITEM, until=None),
        replace(ITEM, ended_by=EndedBy.US),
    ]
    assert spans_of([*ends, *others], NOON, NOON + timedelta(hours=4)) == [
        (NOON + timedelta(minutes=177), NOON + timedelta(minutes=195)),
        (NOON + timedelta(minutes=57), NOON + timedelta(minutes=85)),
    ]


def test_requests_a_minute_are_requests_over_the_minutes_between_turns() -> None:
    """A gap counts for two minutes at most, and an older release has no figures of requests."""
    turns = [
        held(
            at=NOON + timedelta(seconds=s),
            health=HealthFigures(requests_late=2.0, requests_failed=0.5),
        )
        for s in (0, 60, 150, 1000)
    ]
    found = noticed([turns], unread=2)
    assert found.late == pytest.approx(2.0 * (1 + 1.5 + 2))
    assert found.failed == pytest.approx(0.5 * 4.5)
    assert found.unread == 2
    old = noticed([[replace(turn, health=HealthFigures()) for turn in turns]], unread=0)
    assert (old.late, old.failed) == (None, None)


def test_idle_is_what_the_load_leaves_of_the_live_and_the_peak_is_what_was_wanted() -> None:
    """Of two fleets, one with slots: sums by the hour. What ran is no measure of the peak."""
    wanted = (("OfferedLoad", 1.5), ("WorkersLive", 2.0), ("SpotDesired", 3.0))
    results = [
        {"Id": f"q{number}", "Timestamps": [NOON], "Values": [value]}
        for number, (_, value) in enumerate(2 * wanted)
    ]
    with mock_aws(), Stubber(boto3.client("cloudwatch", "us-east-1")) as watch:
        watch.add_response("get_metric_data", {"MetricDataResults": results})
        watch.add_response("get_metric_data", {"MetricDataResults": []})
        client = cast("Any", watch.client)
        span = (NOON, NOON + timedelta(hours=1))
        idle, peak = read_use(client, "test", {"main": 1, "night": 3}, *span)
        assert (idle, peak) == (0.5, 6)
        assert read_use(client, "test", {"main": 1}, *span) == (None, None)


def test_the_metrics_of_many_fleets_take_several_calls() -> None:
    """Three metrics of each fleet, and at most 500 in a call."""
    asked: list[int] = []

    def answer(params: dict[str, Any], **_: Any) -> None:
        asked.append(len(params["MetricDataQueries"]))

    with mock_aws():
        client = boto3.client("cloudwatch", "us-east-1")
        client.meta.events.register("provide-client-params.cloudwatch.GetMetricData", answer)
        fleets = {f"fleet-{number}": 1 for number in range(400)}
        read_use(client, "test", fleets, NOON, NOON + timedelta(hours=1))
    assert asked == [500, 500, 200]
