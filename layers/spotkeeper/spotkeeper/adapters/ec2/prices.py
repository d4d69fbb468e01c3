"""Spot prices by DescribeSpotPriceHistory, on-demand prices by the price list."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from botocore.session import get_session

from spotkeeper.adapters.ec2.auto_scaling import filtered
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper.ports import Throttled

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_pricing import PricingClient

PRODUCT = "Linux/UNIX"
# The price list is served from a few regions only, for all of their partition.
_USUAL = "us-east-1"


def price_list_region(region: str) -> str | None:
    """Name the region that serves a region's list prices; a partition may have none (GovCloud)."""
    session = get_session()
    partition = session.get_partition_for_region(region)
    served = session.get_available_regions("pricing", partition_name=partition)
    return _USUAL if _USUAL in served else next(iter(served), None)


def spot_prices(
    ec2: "EC2Client", pools: Iterable[str], since: datetime, until: datetime
) -> Mapping[str, PriceSeries]:
    """Read the prices of pools (zone/type) over a time, from the one in force when it begins.

    AWS keeps 90 days; a pool without any price is left out. Where AWS throttles on the way, what
    was read counts, newest first: the hours before it have no price.
    """
    wanted = set(pools)
    types = {pool.partition("/")[2] for pool in wanted}
    points: dict[str, dict[datetime, float]] = defaultdict(dict)
    of, by = ("describe_spot_price_history", "SpotPriceHistory"), {"instance-type": types}
    time: Any = {"StartTime": since, "EndTime": until}
    try:
        with aws_errors("ec2:DescribeSpotPriceHistory"):
            for point in filtered(ec2, *of, by, ProductDescriptions=[PRODUCT], **time):
                pool = f"{point['AvailabilityZone']}/{point['InstanceType']}"
                points[pool][point["Timestamp"]] = float(point["SpotPrice"])
    except Throttled:
        if not points:
            raise
    return {pool: _series(points[pool]) for pool in wanted & points.keys()}


def _series(points: Mapping[datetime, float]) -> PriceSeries:
    at = tuple(sorted(points))
    return PriceSeries(at=at, usd=tuple(points[instant] for instant in at))


def on_demand_prices(
    pricing: "PricingClient | None", types: Iterable[str], region: str
) -> Mapping[str, float]:
    """Read each type's list price, Linux and shared tenancy; an unlisted one is left out.

    Without a client, where no price list is served, that is all of them.
    """
    if pricing is None:
        return {}
    prices: dict[str, float] = {}
    for instance_type in sorted(set(types)):
        with aws_errors("pricing:GetProducts"):
            answer = pricing.get_products(
                ServiceCode="AmazonEC2",
                Filters=[
                    {"Type": "TERM_MATCH", "Field": field, "Value": value}
                    for field, value in {
                        "instanceType": instance_type,
                        "regionCode": region,
                        "operatingSystem": "Linux",
                        "tenancy": "Shared",
                        "preInstalledSw": "NA",
                        "capacitystatus": "Used",
                    }.items()
                ],
            )
        offers = [
            usd for text in answer["PriceList"] if (usd := _usd(json.loads(text))) is not None
        ]
        if offers:
            prices[instance_type] = min(offers)
    return prices


class MarketPrices:
    """Prices in force; list prices are read once a type."""

    def __init__(self, ec2: "EC2Client", pricing: "PricingClient | None", region: str) -> None:
        """Take typed clients; nothing is called yet."""
        self._ec2, self._pricing, self._region = ec2, pricing, region
        self._listed: dict[str, float] = {}

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        """Read the prices of pools (zone/type) in force; missing ones are left out."""
        types = {pool.partition("/")[2] for pool in pools}
        unknown = types - self._listed.keys()
        self._listed |= on_demand_prices(self._pricing, unknown, self._region)
        listed = {kind: usd for kind, usd in self._listed.items() if kind in types}
        return PriceBook(spot=spot_prices(self._ec2, pools, now, now), on_demand=listed)


def _usd(product: Mapping[str, Mapping[str, Mapping[str, Mapping[str, object]]]]) -> float | None:
    """Find the hourly on-demand price in a product of the price list."""
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in dict(term)["priceDimensions"].values():  # type: ignore[attr-defined]
            # In China list and spot prices are in CNY.
            amounts = dimension["pricePerUnit"]
            price = float(amounts.get("USD") or amounts.get("CNY") or 0)
            # Some products of the list are there for nothing: they are no instance that runs.
            if dimension["unit"] == "Hrs" and price > 0:
                return price
    return None
