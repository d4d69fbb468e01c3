"""What AWS billed, by Cost Explorer: the instances that carry a tag, a day at a time.

An account's cost allocation tags must be activated once, in the billing console; what is billed
shows up there a day later, and each question costs 0.01 USD.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from spotkeeper.adapters.errors import aws_errors

# Auto Scaling gives every instance this tag with its group's name.
GROUP_TAG = "aws:autoscaling:groupName"
# Cost Explorer is served from here for all regions.
REGION = "us-east-1"
SPOT, ON_DEMAND = "Spot Instances", "On Demand Instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """USD that AWS billed for the groups' instances in whole days (UTC), by how they were bought.

    `others` is all else that carries the tag: disks, data transfer. `estimated` says that a day of
    it may still change.
    """

    first: datetime
    until: datetime
    spot: float
    on_demand: float
    others: float
    estimated: bool

    @property
    def found(self) -> bool:
        """Whether anything was billed under the tag."""
        return bool(self.spot or self.on_demand or self.others)


def first_day(since: datetime) -> datetime:
    """Give the beginning of a time's first day (UTC), from which AWS is asked what it billed."""
    return since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def read_actual(client: Any, groups: Sequence[str], since: datetime, until: datetime) -> Actual:
    """Ask for the whole days that lie within a time, the first day as a whole."""
    first = first_day(since)
    last = max(first_day(until), first + timedelta(days=1))
    billed: dict[str, float] = {}
    estimated = False
    token: dict[str, str] = {}
    while True:
        with aws_errors("ce:GetCostAndUsage"):
            answer = client.get_cost_and_usage(
                TimePeriod={"Start": f"{first:%Y-%m-%d}", "End": f"{last:%Y-%m-%d}"},
                Granularity="DAILY",
                Metrics=["UnblendedCost"],
                Filter={"Tags": {"Key": GROUP_TAG, "Values": sorted(groups)}},
                GroupBy=[{"Type": "DIMENSION", "Key": "PURCHASE_TYPE"}],
                **token,
            )
        for day in answer["ResultsByTime"]:
            estimated = estimated or day.get("Estimated", False)
            for group in day["Groups"]:
                (kind,) = group["Keys"]
                usd = float(group["Metrics"]["UnblendedCost"]["Amount"])
                billed[kind] = billed.get(kind, 0.0) + usd
        if not answer.get("NextPageToken"):
            break
        token = {"NextPageToken": answer["NextPageToken"]}
    spot, on_demand = billed.pop(SPOT, 0.0), billed.pop(ON_DEMAND, 0.0)
    return Actual(
        first=first,
        until=last,
        spot=spot,
        on_demand=on_demand,
        others=sum(billed.values()),
        estimated=estimated,
    )
