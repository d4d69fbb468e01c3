"""`spotkeeper cost` against the demo's own accounting, looked at from outside.

Nothing here knows the ledger's code. AWS's prices are answered as AWS answers them; the demo adds
up instance seconds as its simulated cloud lived them.
"""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import timedelta
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient

from functions.check_availability.app import handler as check_availability
from functions.keep_ledger.app import handler as keep_ledger
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.domain.money.ledger import EndedBy
from spotkeeper_lab.cloud.values import Physics
from tests.builders import NOON, TABLE
from tests.contract.test_price_list import point, product
from tests.functions.conftest import Stage
from tests.operator.command import answered, deploy, intercept

type StageOf = Callable[..., Stage]
LIST_USD = 1.006
# From noon on, and from 14:00 on.
SPOT_USD = ((0.0, 0.31), (7200.0, 0.45))
# Four, for two and a half hours; then spot runs out and recovers, twice.
MARKET = ((0.0, 200), (9000.0, 1), (11_400.0, 200), (13_200.0, 3), (14_400.0, 200))
HOURS = 5


@pytest.fixture
def day(stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> tuple[Stage, list[float]]:
    """Some hours of a fleet that loses spot and stands in for it, and what each look booked."""
    stage = stage_of(("main",), spot=MARKET, physics=Physics(cold_start_s=120))
    deploy()

    def priced(_: BaseClient, operation: str, arguments: Any) -> Any:
        if operation == "GetProducts":
            return {"PriceList": [product(usd=str(LIST_USD))]}
        if operation == "DescribeSpotPriceHistory":
            until = arguments["EndTime"]
            points = [point(NOON + timedelta(seconds=at), str(usd)) for at, usd in SPOT_USD]
            return {"SpotPriceHistory": [p for p in points[::-1] if p["Timestamp"] <= until]}
        return None

    intercept(monkeypatch, priced)
    spent: list[float] = []
    with redirect_stdout(io.StringIO()):
        while stage.cloud.now_s < HOURS * 3600:
            stage.at(stage.cloud.now_s + 60)
            stage.call(check_availability)
            if stage.cloud.now_s % 300 == 0:
                spent.append(stage.call(keep_ledger)["main"])
    return stage, spent


def by_the_demo(stage: Stage) -> float:
    """USD by the demo's accounting: the seconds of each instance, at the prices of their time."""
    changes = [*(at for at, _ in SPOT_USD), HOURS * 3600.0]
    spans = [(at, until, usd) for (at, usd), until in zip(SPOT_USD, changes[1:], strict=True)]
    usd = 0.0
    for view in stage.cloud.history():
        end_s = view.ended_s if view.ended_s is not None else HOURS * 3600.0
        # EC2 user guide, "Billing for interrupted Spot Instances".
        if view.lost and view.ended_s is not None and end_s - view.launched_s < 3600:
            continue
        if view.purchase == "spot":
            usd += sum(
                max(0.0, min(end_s, until) - max(view.launched_s, at)) * price
                for at, until, price in spans
            )
        else:
            usd += (end_s - view.launched_s) * LIST_USD
    return usd / 3600


def test_the_cost_is_the_bill_within_one_per_cent(day: tuple[Stage, list[float]]) -> None:
    stage, spent = day
    bill = stage.cloud.bill()
    assert bill.losses > 3
    assert bill.on_demand_s > 3600
    found = json.loads(answered("cost", "--since", "6h", "--json"))
    assert found["paid"] == pytest.approx(by_the_demo(stage), rel=0.01)
    assert found["spot_h"] == pytest.approx(bill.spot_s / 3600, rel=0.01)
    assert found["on_demand_h"] == pytest.approx(bill.on_demand_s / 3600, rel=0.01)
    seconds = bill.spot_s + bill.on_demand_s
    assert found["same_on_demand"] == pytest.approx(seconds / 3600 * LIST_USD, rel=0.01)
    assert found["interruptions"] == bill.losses
    # The looks add up to the same, but for the first hour of what AWS took later: each look counts
    # it, and the end takes it back.
    usd = (bill.spot_s * SPOT_USD[1][1] + bill.on_demand_s * LIST_USD) / 3600
    assert found["paid"] * 0.95 <= sum(spent) <= usd
    items = LedgerTable(boto3.client("dynamodb"), TABLE).since("main", NOON)
    assert {item.ended_by for item in items if item.until} == {EndedBy.AWS, EndedBy.US}
    running = {item.instance_id for item in items if item.until is None}
    assert running == {i.instance_id for i in stage.cloud.instances()}
    for by, only in (("type", "g5.xlarge"), ("day", "2026-11-20")):
        told = json.loads(answered("cost", "--since", "6h", "--by", by, "--json"))
        paid = {row[by]: float(row["paid"]) for row in told["rows"]}
        assert paid[only] == sum(paid.values()) == pytest.approx(told["paid"], abs=0.01)
