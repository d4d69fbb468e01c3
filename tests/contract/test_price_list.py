"""List prices out of the answer of GetProducts, in the shape that the price list has."""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from spotkeeper.adapters.ec2.prices import on_demand_prices, price_list_region, spot_prices
from spotkeeper.domain.money.prices import PriceSeries
from spotkeeper.ports import Throttled
from tests.builders import NOON


def product(kind: str = "g5.xlarge", usd: str = "1.0060000000", unit: str = "Hrs") -> str:
    """A product as the list has it: a JSON text of its own, here without most attributes."""
    sku, term = "4S6UDJ4X4YRH2V7K", "JRTCKXETXF"
    dimension = {"unit": unit, "beginRange": "0", "pricePerUnit": {"USD": usd}}
    reserved = {"unit": "Quantity", "pricePerUnit": {"USD": "9000"}}
    terms = {
        "OnDemand": {f"{sku}.{term}": {"priceDimensions": {f"{sku}.{term}.6YS": dimension}}},
        "Reserved": {f"{sku}.38N": {"priceDimensions": {f"{sku}.38N.2TG": reserved}}},
    }
    attributes = {"instanceType": kind, "operatingSystem": "Linux", "tenancy": "Shared"}
    whole = {"product": {"sku": sku, "attributes": attributes}, "terms": terms}
    return json.dumps(whole | {"serviceCode": "AmazonEC2", "version": "20261110203447"})


@pytest.fixture
def pricing() -> Iterator[Stubber]:
    with mock_aws(), Stubber(boto3.client("pricing", "us-east-1")) as stub:
        yield stub
        stub.assert_no_pending_responses()


def prices(pricing: Stubber, *kinds: str) -> Mapping[str, float]:
    return on_demand_prices(cast("Any", pricing.client), kinds or ("g5.xlarge",), "us-west-2")


def asked(kind: str) -> dict[str, Any]:
    values = {
        "instanceType": kind, "regionCode": "us-west-2", "operatingSystem": "Linux",
        "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
    }  # fmt: skip
    filters = [{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in values.items()]
    return {"ServiceCode": "AmazonEC2", "Filters": filters}


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([product()], {"g5.xlarge": 1.006}),
        ([], {}),
        # What is listed for nothing is no instance that runs.
        ([product(usd="0.0000000000"), product()], {"g5.xlarge": 1.006}),
        ([product(usd="0.0000000000")], {}),
        ([product(unit="Quantity")], {}),
        ([product(usd="1.2"), product(usd="1.1")], {"g5.xlarge": 1.1}),
        # As China's list has it, where spot prices are in CNY, too.
        ([product(usd="9.1").replace('"USD"', '"CNY"')], {"g5.xlarge": 9.1}),
    ],
)
def test_a_list_price(pricing: Stubber, listed: list[str], expected: dict[str, float]) -> None:
    pricing.add_response("get_products", {"PriceList": listed}, asked("g5.xlarge"))
    assert prices(pricing) == expected


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("us-west-2", "us-east-1"), ("ap-south-1", "us-east-1"), ("cn-north-1", "cn-northwest-1"),
        ("us-gov-west-1", None),
    ],
)  # fmt: skip
def test_the_price_list_is_that_of_the_partition(region: str, expected: str | None) -> None:
    assert price_list_region(region) == expected


def test_each_type_is_looked_up_once(pricing: Stubber) -> None:
    for kind, usd in (("g5.xlarge", "1.006"), ("g6.xlarge", "0.8048")):
        pricing.add_response("get_products", {"PriceList": [product(kind, usd)]}, asked(kind))
    found = prices(pricing, "g6.xlarge", "g5.xlarge", "g6.xlarge")
    assert found == {"g5.xlarge": 1.006, "g6.xlarge": 0.8048}


POOL, LATER = "us-east-1a/g5.xlarge", NOON + timedelta(hours=2)


@pytest.fixture
def ec2() -> Iterator[Stubber]:
    with mock_aws(), Stubber(boto3.client("ec2", "us-east-1")) as stub:
        yield stub


def point(at: datetime, usd: str) -> dict[str, Any]:
    return {
        "AvailabilityZone": "us-east-1a", "InstanceType": "g5.xlarge", "Timestamp": at,
        "ProductDescription": "Linux/UNIX", "SpotPrice": usd,
    }  # fmt: skip


def history(ec2: Stubber) -> Mapping[str, PriceSeries]:
    return spot_prices(cast("Any", ec2.client), [POOL], NOON, LATER)


def test_a_history_that_is_throttled_on_the_way_counts_as_far_as_it_goes(ec2: Stubber) -> None:
    newest = point(NOON + timedelta(hours=1), "0.3")
    page = {"SpotPriceHistory": [newest], "NextToken": "more"}
    ec2.add_response("describe_spot_price_history", page)
    ec2.add_client_error("describe_spot_price_history", "RequestLimitExceeded")
    assert history(ec2)[POOL].cost(NOON, LATER) == pytest.approx((0.3, 1.0))


def test_a_history_that_is_throttled_at_once_is_no_answer(ec2: Stubber) -> None:
    ec2.add_client_error("describe_spot_price_history", "RequestLimitExceeded")
    with pytest.raises(Throttled):
        history(ec2)
