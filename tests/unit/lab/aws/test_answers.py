"""boto3 against the simulated cloud: answers and errors have AWS's shapes."""

from collections.abc import Iterator
from datetime import UTC, datetime

import boto3
import pytest
from botocore.exceptions import ClientError

from spotkeeper_lab.aws.context import local_aws
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.traces.market import market_of

TIME = VirtualTime(datetime(2026, 1, 5, tzinfo=UTC))


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """A spot group over two zones, the second of which is dry, behind boto3."""
    market = market_of("m", 7200.0, {"a/x": [(0.0, 2), (3600.0, 1)], "b/x": [(0.0, 0)]})
    specs = [
        GroupSpec(name=name, purchase=purchase, minimum=0, maximum=5, pools=market.pools)
        for name, purchase in (("spot", Purchase.SPOT), ("od", Purchase.ON_DEMAND))
    ]
    cloud = Cloud(market, specs, Physics(cold_start_s=100.0))
    with local_aws(cloud, TIME):
        yield cloud


def test_more_names_than_a_page_are_refused(cloud: Cloud) -> None:
    for number in range(58):
        name = f"g{number:02d}"
        spec = GroupSpec(name=name, purchase=Purchase.SPOT, minimum=0, maximum=5, pools=("a/x",))
        cloud.create_group(spec)
    client, names = boto3.client("autoscaling"), list(cloud.groups())
    with pytest.raises(ClientError, match="limited to 50"):
        client.describe_auto_scaling_groups(AutoScalingGroupNames=names)
    asked = client.describe_auto_scaling_groups(AutoScalingGroupNames=names, MaxRecords=100)
    assert len(asked["AutoScalingGroups"]) == 60
    assert len(client.describe_auto_scaling_groups()["AutoScalingGroups"]) == 50
