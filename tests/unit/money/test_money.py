"""The ledger, prices over time and what was saved: by hand and by law."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from spotkeeper.domain.money.ledger import (
    EndedBy,
    LedgerItem,
    Life,
    each_life_once,
    entries,
    over_and_not_open,
)
from spotkeeper.domain.money.prices import PriceBook, PriceSeries, priced
from spotkeeper.domain.money.savings import savings
from spotkeeper.domain.purchase import PurchaseOption
from tests.builders import NOON

POOL = "us-east-1a/g5.xlarge"


def hour(number: float) -> datetime:
    return NOON + timedelta(hours=number)


ITEM = LedgerItem(
    fleet="ocr", instance_id="i-1", pool=POOL, option=PurchaseOption.SPOT, since=hour(0)
)
LIFE = Life(instance_id="i-1", pool=POOL, option=PurchaseOption.SPOT, since=hour(0))
BOOK = PriceBook(
    spot={POOL: PriceSeries(at=(hour(-5), hour(2)), usd=(0.3, 0.4))}, on_demand={"g5.xlarge": 1.0}
)


def test_an_instance_without_a_known_end_is_closed_once() -> None:
    closed = replace(ITEM, until=hour(1), ended_by=EndedBy.AWS)
    over = replace(LIFE, until=hour(2), ended_by=EndedBy.AWS)
    assert over_and_not_open([], {"i-1": over}) == (over,)
    assert over_and_not_open([ITEM], {"i-1": over}) == over_and_not_open([], {"i-1": LIFE}) == ()
    assert entries("ocr", [], {"i-1": over}, hour(2), [closed]) == ()
    # A warm instance has a life each time that it is started.
    again = replace(over, since=hour(1.5))
    (item,) = entries("ocr", [], {"i-1": again}, hour(2), [closed])
    assert (item.since, item.until) == (hour(1.5), hour(2))


def test_of_a_life_that_was_booked_more_than_once_one_item_counts() -> None:
    """Of items of earlier releases, the first end counts, or the item that still runs."""
    first, second = (replace(ITEM, until=hour(end), ended_by=EndedBy.AWS) for end in (5, 5.1))
    other = replace(first, instance_id="i-2")
    again = replace(ITEM, since=hour(6))
    assert each_life_once([first, second, other, again]) == (first, other, again)
    assert each_life_once([second, first]) == (first,)
    assert each_life_once([first, ITEM]) == each_life_once([ITEM, first]) == (ITEM,)
    missed = replace(ITEM, until=hour(2), ended_by=EndedBy.UNKNOWN)
    assert each_life_once([missed, second]) == (second,)


def test_a_warm_instance_that_started_again_has_two_items() -> None:
    again = replace(LIFE, since=hour(3))
    first, second = entries("ocr", [ITEM], {"i-1": again}, hour(4))
    assert (first.since, first.until) == (hour(0), hour(3))
    assert (second.since, second.until) == (hour(3), None)


@pytest.mark.parametrize(
    ("option", "ended_by", "minutes", "paid"),
    [
        (PurchaseOption.SPOT, EndedBy.AWS, 59, 0.0),
        (PurchaseOption.SPOT, EndedBy.AWS, 60, 0.3),
        (PurchaseOption.SPOT, EndedBy.US, 30, 0.15),
        (PurchaseOption.SPOT, EndedBy.UNKNOWN, 30, 0.15),
        (PurchaseOption.ON_DEMAND, EndedBy.AWS, 30, 0.5),
        (PurchaseOption.SPOT, EndedBy.US, 0.5, 0.005),
        (PurchaseOption.ON_DEMAND, EndedBy.US, 0.5, 1 / 60),
    ],
)
def test_aws_charges_nothing_for_an_interrupted_first_hour_and_a_minute_at_least(
    option: PurchaseOption, ended_by: EndedBy, minutes: float, paid: float
) -> None:
    item = replace(ITEM, option=option, until=hour(minutes / 60), ended_by=ended_by)
    (found,) = priced([item], BOOK, hour(0), hour(2))
    assert found.paid == pytest.approx(paid)
    assert found.hours == pytest.approx(minutes / 60)
    assert found.unpriced_h == 0


def test_what_a_reservation_pays_for_is_in_no_sum() -> None:
    """EC2 forgets the reservation of what has ended."""
    began = replace(LIFE, option=PurchaseOption.ON_DEMAND, reservation="cr-1")
    (item,) = entries("ocr", [], {"i-1": began}, hour(1))
    (item,) = entries(
        "ocr", [item], {"i-1": replace(began, until=hour(2), reservation="")}, hour(3)
    )
    found = savings(priced([item, ITEM], BOOK, hour(0), hour(2)), hour(0), hour(2))
    assert (found.reserved_h, found.on_demand_h, found.spot_h) == (2, 0, 2)
    assert (found.paid, found.same_on_demand_usd, found.unpriced_h) == (0.6, 2, 0)


@pytest.mark.parametrize(
    ("spot", "listed", "paid", "saved"),
    [
        ({}, 1.0, 3.0, 0.0),
        ({POOL: PriceSeries(at=(hour(2),), usd=(0.4,))}, 1.0, 3.4, 0.6),
        ({POOL: PriceSeries(at=(hour(0),), usd=(0.4,))}, None, 1.2, 0.0),
    ],
)
def test_hours_without_a_price_are_compared_with_nothing(
    spot: dict[str, PriceSeries], listed: float | None, paid: float, saved: float
) -> None:
    """For three hours, one instance ran on spot and another on demand, and both were needed."""
    book = PriceBook(spot=spot, on_demand={} if listed is None else {"g5.xlarge": listed})
    other = replace(ITEM, instance_id="i-2", option=PurchaseOption.ON_DEMAND)
    found = savings(priced([ITEM, other], book, hour(0), hour(3)), hour(0), hour(3), 2)
    sums = [found.paid, found.saved_by_spot_usd, found.saved_by_sizing]
    assert sums == pytest.approx([paid, saved, 0])
    soon = replace(ITEM, until=hour(0.5 / 60))
    (short,) = priced([soon], PriceBook(on_demand={"g5.xlarge": 1.0}), hour(0), hour(3))
    assert [short.on_demand, short.unpriced_h] == pytest.approx([0, 0.5 / 60])


def test_what_the_group_terminated_ends_then_although_ec2_forgot_it() -> None:
    (item,) = entries("ocr", [ITEM], {}, hour(9), ends={"i-1": hour(2)})
    assert (item.until, item.ended_by) == (hour(2), EndedBy.UNKNOWN)
    (item,) = entries("ocr", [ITEM], {}, hour(9), ends={"i-1": hour(-1)})
    assert item.until == hour(9)


def test_two_savings_are_kept_apart() -> None:
    """Four hours: two instances for two of them, one on demand, then one."""
    other = replace(ITEM, instance_id="i-2", option=PurchaseOption.ON_DEMAND)
    items = [
        replace(ITEM, until=hour(2), ended_by=EndedBy.AWS),
        replace(other, until=hour(2), ended_by=EndedBy.US),
        replace(ITEM, instance_id="i-3", since=hour(2)),
    ]
    found = savings(priced(items, BOOK, hour(0), hour(4)), hour(0), hour(4), 2)
    assert (found.spot_h, found.on_demand_h, found.peak, found.interruptions) == (4, 2, 2, 1)
    assert found.paid == pytest.approx(0.6 + 2.0 + 0.8)
    assert found.same_on_demand_usd == pytest.approx(6.0)
    assert found.fixed_fleet_usd == pytest.approx(8.0)
    assert found.saved_by_spot_usd == pytest.approx(2.6)
    assert found.saved_by_sizing == pytest.approx(2.0)
