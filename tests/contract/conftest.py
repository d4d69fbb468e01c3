"""Every promise of a port is kept by the fake and by the adapter on moto alike."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import boto3
import pytest
from moto import mock_aws

from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.group_writer import AutoScalingWriter
from spotkeeper.domain.decision import Controller
from spotkeeper.ports import AtRiskNote, FleetStates, GroupReader, GroupWriter, Lease
from spotkeeper_lab.aws.client import Client
from spotkeeper_lab.aws.context import local_aws
from spotkeeper_lab.aws.dynamodb import Table, Tables
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Physics, two_groups
from spotkeeper_lab.fakes import EPOCH, FakeGroups, FakeStates
from spotkeeper_lab.faults import Kind
from spotkeeper_lab.run.up import PARTS, LabClient, LabSettings, running
from spotkeeper_lab.traces.market import market_of
from tests.builders import at
from tests.ports import free_ports

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CHECKOUT: Final = Path(__file__).parents[2]
ZONE: Final = "us-east-1a"
KIND: Final = "g5.xlarge"
IMAGE = "ami-12c6146b"
"""One that moto knows."""
POOL = f"{ZONE}/{KIND}"
SPOT, ON_DEMAND = "ocr-spot", "ocr-on-demand"
TABLE = "spotkeeper"
STRICT = Physics(ghost_s=90.0, marks_needed=True)


@pytest.fixture
def aws() -> Iterator[None]:
    """An account of moto's."""
    with mock_aws():
        yield


@dataclass(frozen=True, slots=True)
class Groups:
    """Two groups behind the ports: two spot instances of at most six, none on demand."""

    reader: GroupReader
    writer: GroupWriter
    settle: Callable[[], object]
    reclaim: Callable[[str], object] = lambda _: None
    now: Callable[[], datetime] = lambda: EPOCH + timedelta(seconds=600)

    def ids(self, name: str = SPOT) -> list[str]:
        return [i.instance_id for i in self.reader.describe([name])[name].instances]


# The local AWS is a separate process, called over HTTP.
ENDPOINT = pytest.param("endpoint", marks=[pytest.mark.enable_socket, pytest.mark.make_e2e])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabClient]:
    """A local AWS without a stack in it."""
    mine = tmp_path_factory.mktemp("lab")
    for name in PARTS:
        (mine / name).symlink_to(CHECKOUT / name)
    settings = LabSettings(port=free_ports(1)[0], auth=False)
    with running(settings, mine) as lab:
        yield lab


@pytest.fixture(params=["fake", "moto", ENDPOINT])
def groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    if request.param == "moto":
        with mock_aws():
            _groups_of_moto()
            yield _adapters(boto3.client, lambda: None)
    elif request.param == "fake":
        yield _simulated(cloud_of(Physics()))
    else:
        yield _over_the_wire(request.getfixturevalue("lab"), Physics())


@pytest.fixture(params=["fake", "mended moto", ENDPOINT])
def strict_groups(request: pytest.FixtureRequest) -> Iterator[Groups]:
    """The group ports where calls that AWS refuses are refused; moto alone lets them pass."""
    cloud = cloud_of(STRICT)
    if request.param == "mended moto":
        with local_aws(cloud, VirtualTime(EPOCH)):
            yield replace(_simulated(cloud), **_ports(boto3.client))
    elif request.param == "fake":
        yield _simulated(cloud)
    else:
        yield _over_the_wire(request.getfixturevalue("lab"), STRICT)


def _ports(client: Any) -> dict[str, Any]:
    autoscaling, ec2 = client("autoscaling"), client("ec2")
    writer = AutoScalingWriter(autoscaling, ec2, "nonce")
    return {"reader": AutoScalingReader(autoscaling, ec2, "nonce"), "writer": writer}


def _adapters(client: Any, settle: Callable[[], object], **more: Any) -> Groups:
    return Groups(**_ports(client), settle=settle, **more)


def _over_the_wire(lab: LabClient, physics: Physics) -> Groups:
    settings = LabSettings(desired=2, maximum=6, pools={POOL: 9}, physics=physics)
    lab.post("begin", settings.model_dump(mode="json"))
    lab.post("skip", 600.0)
    return _adapters(
        lab.aws,
        lambda: lab.post("skip", 600.0),
        reclaim=lambda one: lab.order(do=Kind.UNWARNED_LOSS, instances=[one]),
        # The local AWS has a time of its own, which skips add up to.
        now=lambda: datetime.fromisoformat(lab.look("state")["at"]),
    )


def _simulated(cloud: Cloud) -> Groups:
    fake = FakeGroups(cloud)
    return Groups(
        fake,
        fake,
        lambda: cloud.advance(cloud.now_s + 600.0),
        lambda one: cloud.reclaim([one], cloud.now_s),
    )


def cloud_of(physics: Physics) -> Cloud:
    """Both groups in a cloud of their own, settled."""
    specs = two_groups(SPOT, ON_DEMAND, pools=(POOL,), maximum=6, desired=2)
    cloud = Cloud(market_of("contract", 86_400.0, {POOL: [(0.0, 9)]}), specs, physics)
    cloud.advance(600.0)
    return cloud


def _groups_of_moto() -> None:
    boto3.client("ec2", region_name="us-east-1").create_launch_template(
        LaunchTemplateName="gpu", LaunchTemplateData={"ImageId": IMAGE, "InstanceType": KIND}
    )
    for name, desired in ((SPOT, 2), (ON_DEMAND, 0)):
        boto3.client("autoscaling", region_name="us-east-1").create_auto_scaling_group(
            AutoScalingGroupName=name, LaunchTemplate={"LaunchTemplateName": "gpu"}, MinSize=0,
            MaxSize=6, DesiredCapacity=desired, AvailabilityZones=[ZONE],
        )  # fmt: skip


def taken(
    states: FleetStates,
    after_s: float = 0,
    controller: Controller = Controller.AVAILABILITY,
    left: AtRiskNote | None = None,
) -> Lease:
    """Take a lease of the fleet ocr some seconds after noon."""
    lease = states.acquire("ocr", controller, at(after_s), left)
    assert lease
    return lease


@pytest.fixture(params=["fake", "moto", "chaos"])
def states(request: pytest.FixtureRequest) -> Iterator[FleetStates]:
    if request.param == "fake":
        yield FakeStates()
    else:
        moto = request.param == "moto"
        client = request.getfixturevalue("dynamodb") if moto else table_client()
        yield FleetStateTable(client, TABLE, timedelta(days=30))


def table_client() -> "DynamoDBClient":
    """A client of the lab's own table, as the chaos runs have it."""
    answers = Tables({TABLE: Table()}).answers()
    return cast("DynamoDBClient", Client("dynamodb", answers))
