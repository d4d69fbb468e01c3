"""The ledger against the simulated cloud's own bill, which knows nothing of it."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from unittest.mock import Mock

import boto3
import pytest

from functions.check_availability.app import handler as check_availability
from functions.keep_ledger.app import handler as keep_ledger
from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.domain.money.prices import priced
from spotkeeper.domain.money.savings import Savings, savings
from spotkeeper.observability import TurnFailed
from spotkeeper.ports import Refused
from spotkeeper_lab.cloud.values import Physics, Purchase
from spotkeeper_operator.cost import unread
from tests.builders import NOON, TABLE
from tests.functions.conftest import A, FixedPrices, Stage, StageOf, billed, slow_down

SPOT_USD, ON_DEMAND_USD = 0.3, 1.0
PRICES = FixedPrices(ratio=SPOT_USD / ON_DEMAND_USD, since=NOON)
REAL_PRICES = wiring._prices


@pytest.fixture(autouse=True)
def fixed_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "_prices", lambda config: PRICES)


@pytest.fixture
def restless(stage_of: StageOf, request: pytest.FixtureRequest) -> Stage:
    """A fleet of four on a spot market that runs out and recovers. A parameter sets the physics."""
    market = ((0.0, 200), (2400.0, 1), (4800.0, 200), (6600.0, 3), (7800.0, 200))
    physics: Physics = getattr(request, "param", Physics(cold_start_s=120))
    return stage_of(("ocr",), spot=market, physics=physics)


def book() -> LedgerTable:
    return LedgerTable(boto3.client("dynamodb"), TABLE)


def kept(stage: Stage) -> Savings:
    """What the ledger says of all the time."""
    items = book().since("ocr", NOON - timedelta(days=1))
    return savings(priced(items, PRICES.now([A], NOON), NOON, stage.now), NOON, stage.now)


def test_a_ledger_is_known_from_an_hour_before_its_first_look_on(restless: Stage) -> None:
    restless.at(7200.0)
    restless.call(keep_ledger)
    restless.at(9000.0)
    restless.call(keep_ledger)
    assert book().complete_since("ocr") == NOON + timedelta(hours=1)


def test_an_instance_that_lived_between_two_looks_is_booked(restless: Stage) -> None:
    """Looks once in an hour: the activities tell what ran meanwhile, EC2 its times."""
    while restless.cloud.now_s < 10_800.0:
        restless.at(restless.cloud.now_s + 60)
        restless.call(check_availability)
        if restless.cloud.now_s % 3000 == 0 or restless.cloud.now_s == 10_800.0:
            restless.call(keep_ledger)
    cloud = restless.cloud
    found, hours = kept(restless), restless.hours
    usd = billed(cloud.history(), cloud.now_s, {0.0: SPOT_USD}, ON_DEMAND_USD)
    assert found.on_demand_h == pytest.approx(hours[Purchase.ON_DEMAND], rel=0.01)
    assert found.spot_h == pytest.approx(hours[Purchase.SPOT], rel=0.01)
    assert found.paid == pytest.approx(usd, rel=0.01)


def test_instances_of_hours_without_a_ledger_are_booked_or_named(restless: Stage) -> None:
    """EC2 knows a terminated instance for an hour; the group's activities name it for weeks."""
    restless.call(keep_ledger)
    began = restless.now
    while restless.cloud.now_s < 12_600.0:
        restless.at(restless.cloud.now_s + 60)
        restless.call(check_availability)
    table = book()
    restless.call(keep_ledger)
    booked = {item.instance_id for item in table.since("ocr", NOON - timedelta(days=1))}
    lost = {view.instance_id for view in restless.cloud.history()} - booked
    assert lost
    (gap,) = table.gaps("ocr", NOON)
    assert (gap.since, gap.until, set(gap.instances)) == (began, restless.now, lost)
    (told,) = unread(table, ["ocr"], (), NOON, restless.now)
    assert f"not included of that time ({len(lost)}): {min(lost)}" in told
    restless.at(restless.cloud.now_s + 300)
    restless.call(keep_ledger)
    assert len(table.gaps("ocr", NOON)) == 1
    assert table.gaps("ocr", restless.now) == ()
    # Of the four at the first look, AWS took three more than an hour ago.
    assert len(gap.ended) == 3
    assert f"it is not known when or why these ended: {gap.ended[0]}" in told


def test_an_end_is_not_guessed_while_the_activities_cannot_be_read(restless: Stage) -> None:
    """AWS takes three of four instances at 40 minutes; EC2 forgets them within the next hour."""
    restless.call(keep_ledger)
    table = book()
    restless.at(7500.0)
    restless.during["DescribeScalingActivities"] = slow_down
    with pytest.raises(TurnFailed):
        restless.call(keep_ledger)
    assert table.ended("ocr", NOON) == ()
    restless.at(7800.0)
    restless.call(keep_ledger)
    (gap,) = table.gaps("ocr", NOON)
    assert {item.instance_id for item in table.ended("ocr", NOON)} > {*gap.ended}
    assert len(gap.ended) == 3


# The group goes on listing who is dead, as it does where its health checks are suspended.
GHOSTS = Physics(cold_start_s=120, notice_lost=1.0, ghost_s=1e6, ends_untold=True)


@pytest.mark.parametrize("restless", [GHOSTS], indirect=True)
def test_instances_without_a_known_end_are_booked_once(restless: Stage) -> None:
    """No turn takes them out of their group: the fleet is paused."""
    spent = [restless.call(keep_ledger)["ocr"]]
    while restless.cloud.now_s < 5400.0:
        restless.at(restless.cloud.now_s + 300)
        spent.append(restless.call(keep_ledger)["ocr"])
    found, spot_h = kept(restless), restless.hours[Purchase.SPOT]
    assert found.interruptions == restless.losses == 3
    # The end is that of the look that saw it, at most five minutes late.
    late_h = restless.losses * 300 / 3600
    assert spot_h <= found.spot_h <= spot_h + late_h
    # Their first hour, which a look counts and the end takes back, is free.
    assert sum(spent) <= (found.spot_h + late_h) * SPOT_USD
    stored = boto3.client("dynamodb").scan(TableName=TABLE)["Items"]
    assert sum(item["sk"]["S"].startswith("closed#") for item in stored) == restless.losses


def test_spending_is_counted(restless: Stage, metrics: Callable[[str], dict[str, float]]) -> None:
    restless.call(keep_ledger)
    values = metrics("ocr")
    assert values["SpentSpot"] == pytest.approx(4 * 300 / 3600 * SPOT_USD, rel=0.01)
    assert "SpentOnDemand" not in values
    assert values["Saved"] == pytest.approx(4 * 300 / 3600 * (ON_DEMAND_USD - SPOT_USD), rel=0.01)


def test_a_price_that_is_refused_rings_and_the_ledger_is_kept(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Refused("pricing:GetProducts: AccessDenied: no")
    monkeypatch.setattr(wiring, "_prices", lambda config: Mock(now=Mock(side_effect=refused)))
    with pytest.raises(TurnFailed) as caught:
        stage_of(("ocr",)).call(keep_ledger)
    assert "pricing:GetProducts: AccessDenied: no" in str(caught.value.exceptions[0])
    assert len(book().opened("ocr")[0]) == 4


def test_where_aws_has_no_price_list_the_ledger_is_kept(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "_prices", REAL_PRICES)
    monkeypatch.setattr(wiring, "price_list_region", lambda region: None)
    stage_of(("ocr",)).call(keep_ledger)
    assert len(book().opened("ocr")[0]) == 4


@pytest.mark.parametrize("item", [{"S": "{}"}, {"S": "\x00"}, {"N": "1"}])
def test_an_item_that_cannot_be_read_stops_no_other_ledger(
    stage_of: StageOf, item: dict[str, str]
) -> None:
    stage = stage_of(("ocr", "search"))
    stage.keep({"pk": {"S": "ledger#ocr"}, "sk": {"S": "open#i-1"}, "item": item})
    with pytest.raises(TurnFailed) as caught:
        stage.call(keep_ledger)
    (error,) = caught.value.exceptions
    assert "fleet ocr: the item ledger#ocr, open#i-1 cannot be read" in str(error)
    assert book().opened("search")[0]


def test_groups_and_instances_of_all_fleets_are_read_together(stage_of: StageOf) -> None:
    stage = stage_of(("ocr", "search", "images"))
    assert stage.call(keep_ledger).keys() == {"ocr", "search", "images"}
    calls = stage.counted("autoscaling", "ec2")
    assert (calls["DescribeAutoScalingGroups"], calls["DescribeInstances"]) == (1, 1)


def test_a_hundred_fleets_are_looked_at_in_time_and_in_turn(stage_of: StageOf) -> None:
    names = tuple(f"fleet-{n:03}" for n in range(100))
    stage = stage_of(names, desired=1)
    # Its first look writes an item for each instance, and is over in the next.
    with suppress(TurnFailed):
        stage.call(keep_ledger)
    stage.at(stage.cloud.now_s + 300)
    stage.call(keep_ledger)
    stage.latency_s = 0.05
    read: Counter[str] = Counter()
    for _ in range(6):
        stage.at(stage.cloud.now_s + 300 - stage.took_s)
        assert len(stage.call(keep_ledger)) == 100
        assert stage.took_s <= 20
        read += stage.counted("autoscaling")
    assert read["DescribeScalingActivities"] == 200, "each group once in half an hour"


def test_fleets_without_time_are_named_and_are_first_the_next_time(stage_of: StageOf) -> None:
    names = tuple(f"fleet-{n}" for n in range(10))
    stage = stage_of(names, desired=1)
    late = 0
    for _ in range(10):
        stage.latency_s = 1.0
        with pytest.raises(TurnFailed, match="not every ledger was kept") as caught:
            stage.call(keep_ledger)
        assert stage.took_s < 30
        late += sum(
            "not read: other fleets took" in str(error) for error in caught.value.exceptions
        )
        stage.latency_s = 0.0
        stage.at(stage.cloud.now_s + 300 - stage.took_s)
    assert late
    assert all(book().opened(name)[0] for name in names)


def test_activities_that_hang_are_named_and_stop_no_look(stage_of: StageOf) -> None:
    stage = stage_of(("ocr", "search"))
    stage.hang.add("DescribeScalingActivities")
    with pytest.raises(TurnFailed) as caught:
        stage.call(keep_ledger)
    assert stage.took_s <= 20
    assert "what began and ended meanwhile may be missing" in str(caught.value.exceptions[0])
    table = book()
    assert len(table.opened("ocr")[0]) == len(table.opened("search")[0]) == 4
    assert table.opened("ocr")[1] is None, "the gap has no end yet"
    stage.hang.clear()
    stage.call(keep_ledger)
    assert table.opened("ocr")[1] == stage.now
