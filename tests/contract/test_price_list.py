"""List prices out of the answer of GetProducts, in the shape that the price list has."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from spotkeeper.adapters.ec2.prices import on_demand_prices, price_list_region, spot_prices
from spotkeeper.ports import Refused, Throttled
from tests.builders import NOON

SKU, TERM = "4S6UDJ4X4YRH2V7K", "JRTCKXETXF"


def product(kind: str = "g5.xlarge", usd: str = "1.0060000000", unit: str = "Hrs") -> str:
    """A product as the list has it, a JSON text of its own."""
    dimension = {
        "unit": unit,
        "endRange": "Inf",
        "description": f"${usd} per On Demand Linux {kind} Instance Hour",
        "appliesTo": [],
        "rateCode": f"{SKU}.{TERM}.6YS6EN2CT7",
        "beginRange": "0",
        "pricePerUnit": {"USD": usd},
    }
    whole = {
        "product": {
            "productFamily": "Compute Instance",
            "sku": SKU,
            "attributes": {
                "instanceType": kind, "operatingSystem": "Linux", "tenancy": "Shared",
                "regionCode": "us-west-2", "capacitystatus": "Used", "preInstalledSw": "NA",
                "operation": "RunInstances", "usagetype": f"USW2-BoxUsage:{kind}",
            },
        },
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                f"{SKU}.{TERM}": {
                    "priceDimensions": {f"{SKU}.{TERM}.6YS6EN2CT7": dimension},
                    "sku": SKU,
                    "effectiveDate": "2026-11-01T00:00:00Z",
                    "offerTermCode": TERM,
                    "termAttributes": {},
                }
            },
            "Reserved": {
                f"{SKU}.38NPMPTW36": {
                    "priceDimensions": {
                        f"{SKU}.38NPMPTW36.2TG2D8R56U": {
                            "unit": "Quantity", "pricePerUnit": {"USD": "9000"},
                        }
                    },
                    "termAttributes": {"LeaseContractLength": "3yr"},
                }
            },
        },
        "version": "20261110203447",
        "publicationDate": "2026-11-10T20:34:47Z",
    }  # fmt: skip
    return json.dumps(whole)


@pytest.fixture
def pricing() -> Iterator[Stubber]:
    with mock_aws(), Stubber(boto3.client("pricing", "us-east-1")) as stub:
        yield stub
        stub.assert_no_pending_responses()


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
    client = cast("Any", pricing.client)
    assert on_demand_prices(client, ["g5.xlarge"], "us-west-2") == expected


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("us-west-2", "us-east-1"),
        ("ap-south-1", "us-east-1"),
        ("cn-north-1", "cn-northwest-1"),
        ("us-gov-west-1", None),
    ],
)
def test_the_price_list_is_that_of_the_partition(region: str, expected: str | None) -> None:
    assert price_list_region(region) == expected


def test_where_there_is_no_price_list_nothing_has_a_list_price() -> None:
    assert on_demand_prices(None, ["g5.xlarge"], "us-gov-west-1") == {}


def test_each_type_is_asked_for_once(pricing: Stubber) -> None:
    for kind, usd in (("g5.xlarge", "1.006"), ("g6.xlarge", "0.8048")):
        pricing.add_response("get_products", {"PriceList": [product(kind, usd)]}, asked(kind))
    found = on_demand_prices(
        cast("Any", pricing.client), ["g6.xlarge", "g5.xlarge", "g6.xlarge"], "us-west-2"
    )
    assert found == {"g5.xlarge": 1.006, "g6.xlarge": 0.8048}


def test_a_role_that_may_not_is_told_so(pricing: Stubber) -> None:
    pricing.add_client_error("get_products", "AccessDeniedException", "not authorized")
    with pytest.raises(Refused, match="pricing:GetProducts"):
        on_demand_prices(cast("Any", pricing.client), ["g5.xlarge"], "us-west-2")


POOL = "us-east-1a/g5.xlarge"


def point(at: datetime, usd: str) -> dict[str, Any]:
    return {
        "AvailabilityZone": "us-east-1a", "InstanceType": "g5.xlarge", "Timestamp": at,
        "ProductDescription": "Linux/UNIX", "SpotPrice": usd,
    }  # fmt: skip


def test_a_history_that_is_throttled_on_the_way_counts_as_far_as_it_goes() -> None:
    with mock_aws(), Stubber(boto3.client("ec2", "us-east-1")) as ec2:
        half = NOON + timedelta(hours=1)
        newest = {"SpotPriceHistory": [point(half, "0.3")], "NextToken": "more"}
        ec2.add_response("describe_spot_price_history", newest)
        ec2.add_client_error("describe_spot_price_history", "RequestLimitExceeded")
        found = spot_prices(cast("Any", ec2.client), [POOL], NOON, NOON + timedelta(hours=2))
    spent, unknown_h = found[POOL].cost(NOON, NOON + timedelta(hours=2))
    assert spent == pytest.approx(0.3)
    assert unknown_h == pytest.approx(1.0)


def test_a_history_that_is_throttled_at_once_is_no_answer() -> None:
    with mock_aws(), Stubber(boto3.client("ec2", "us-east-1")) as ec2:
        ec2.add_client_error("describe_spot_price_history", "RequestLimitExceeded")
        with pytest.raises(Throttled):
            spot_prices(cast("Any", ec2.client), [POOL], NOON, NOON + timedelta(hours=2))
