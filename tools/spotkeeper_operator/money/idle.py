"""What metrics add to a cost: how much time was idle, and how many instances were needed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import aws_errors

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import MetricDataQueryTypeDef

PERIOD_S = 3600
LOAD, LIVE, WANTED = "OfferedLoad", "WorkersLive", "SpotDesired"


def read_idle(
    client: "CloudWatchClient", stack: str, fleets: Sequence[str], since: datetime, until: datetime
) -> float | None:
    """Answer the share of the live workers' time without a request; None where nothing is known."""
    pages = client.get_paginator("get_metric_data").paginate(
        MetricDataQueries=list(_queries(stack, fleets)), StartTime=since, EndTime=until
    )
    sums: Mapping[str, dict[datetime, float]] = {LOAD: {}, LIVE: {}}
    with aws_errors("cloudwatch:GetMetricData"):
        for page in pages:
            for result in page["MetricDataResults"]:
                name = result["Label"]
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    sums[name][at] = sums[name].get(at, 0.0) + value
    live = sum(sums[LIVE].values())
    busy = sum(min(load, sums[LIVE].get(at, 0.0)) for at, load in sums[LOAD].items())
    return 1 - busy / live if live else None


def read_peak(
    client: "CloudWatchClient", stack: str, fleets: Sequence[str], since: datetime, until: datetime
) -> int | None:
    """Return the most spot instances that were wanted at once; None where nothing is known.

    What runs is no measure: while one instance takes another's place, both run.
    """
    pages = client.get_paginator("get_metric_data").paginate(
        MetricDataQueries=list(_queries(stack, fleets, (WANTED,), "Maximum")),
        StartTime=since,
        EndTime=until,
    )
    wanted: dict[datetime, float] = {}
    with aws_errors("cloudwatch:GetMetricData"):
        for page in pages:
            for result in page["MetricDataResults"]:
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    wanted[at] = wanted.get(at, 0.0) + value
    return round(max(wanted.values())) if wanted else None


def _queries(
    stack: str, fleets: Sequence[str], names: Sequence[str] = (LOAD, LIVE), stat: str = "Average"
) -> "Iterable[MetricDataQueryTypeDef]":
    for number, fleet in enumerate(fleets):
        for name in names:
            yield {
                "Id": f"{name[0].lower()}{name[1:]}{number}",
                "Label": name,
                "MetricStat": {
                    "Metric": {
                        "Namespace": "Spotkeeper",
                        "MetricName": name,
                        "Dimensions": [
                            {"Name": "service", "Value": stack},
                            {"Name": "fleet", "Value": fleet},
                        ],
                    },
                    "Period": PERIOD_S,
                    "Stat": stat,
                },
            }
