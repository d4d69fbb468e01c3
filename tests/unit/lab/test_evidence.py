"""The lab does what AWS is known to do: the tables that the product is held against, too."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.session import get_session

from spotkeeper.adapters.errors import End, end_of
from spotkeeper_lab.aws import answers
from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.context import local_aws
from spotkeeper_lab.aws.limits import beyond
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import REFRESHED, Physics, two_groups
from spotkeeper_lab.fakes import TIME
from spotkeeper_lab.scenario import TAKING
from spotkeeper_lab.traces.export import changes_of
from spotkeeper_lab.traces.market import market_of
from tests.builders import EVIDENCE, evidence

POOL = "us-east-1a/g5.xlarge"
TAKEN = {"aws", "unknown"}
LIMITS = Path(answers.__file__).with_name("limits.tsv")


def make() -> Cloud:
    """Forty spot instances in service."""
    groups = two_groups("spot", "od", pools=(POOL,), maximum=99, desired=40)
    cloud = Cloud(market_of("facts", 90_000.0, {POOL: ((0.0, 99),)}), groups, Physics())
    cloud.advance(600.0)
    return cloud


def newest(cloud: Cloud) -> Any:
    """The group's last activity but for launches, as boto3 answers it."""
    describe = Answers(cloud, TIME).auto_scaling()["describe_scaling_activities"]
    found: Any = describe({"AutoScalingGroupName": "spot"})
    words = "Launching a new EC2 instance:"
    return next(it for it in found["Activities"] if not it["Description"].startswith(words))


@pytest.mark.parametrize("row", evidence("ends"), ids=lambda row: row["cause"][-50:])
def test_an_instance_of_the_lab_ends_with_aws_s_causes(row: dict[str, str]) -> None:
    cloud = make()
    ended = cloud.group("spot").instances[0].instance_id
    cloud.replace(ended, re.sub(r"^At \S+Z ", "", row["cause"]))
    activity = newest(cloud)
    assert activity["Description"] == f"Terminating EC2 instance: {ended}"
    assert end_of(activity["Cause"]) is End(row["end"])
    (change,) = changes_of([activity])
    assert change.limits is (row["end"] in TAKEN)


SITUATIONS: dict[str, tuple[End, Callable[[Cloud, str], object]]] = {
    "the market takes it": (End.AWS, lambda cloud, it: cloud.reclaim([it], 0.0)),
    "somebody ends it in EC2": (End.AWS, lambda cloud, it: cloud.terminate([it])),
    "a call marks it": (End.UNHEALTHY, lambda cloud, it: cloud.set_unhealthy(it)),
    "a call ends it": (End.SHRUNK, lambda cloud, it: cloud.end(it)),
    "a call replaces it": (End.REQUESTED, lambda cloud, it: cloud.end(it, replaced=True)),
    "the group is smaller": (End.SHRUNK, lambda cloud, _: cloud.set_desired("spot", 39)),
    "it is detached": (End.REQUESTED, lambda cloud, it: cloud.detach("spot", [it])),
    "a refresh": (End.REPLACED, lambda cloud, it: cloud.replace(it, REFRESHED)),
}


@pytest.mark.parametrize("why", SITUATIONS)
def test_what_the_lab_writes_itself_is_a_row_of_evidence(why: str) -> None:
    cloud = make()
    end, happens = SITUATIONS[why]
    happens(cloud, cloud.group("spot").instances[0].instance_id)
    cause = newest(cloud)["Cause"]
    assert end_of(cause) is end
    assert (plain(cause), end) in {(plain(it["cause"]), End(it["end"])) for it in evidence("ends")}


def plain(cause: str) -> str:
    """A cause without its time, numbers and ids, and without what was selected."""
    said = re.sub(r"^At \S+Z |  At \S+Z instance \S+ was selected for termination\.", "", cause)
    return re.sub(r"\bi-[0-9a-f]+|\d+", "N", said)


def test_the_lab_has_aws_s_table_of_spot_request_statuses() -> None:
    name = "spot_request_statuses.tsv"
    assert (EVIDENCE / name).read_bytes() == Path(answers.__file__).with_name(name).read_bytes()
    running = {it["status"]: it["instance"] for it in evidence(name.removesuffix(".tsv"))
               if it["instance state"] == "running"}  # fmt: skip
    assert {running[status] for status in TAKING} == {"goes"}


def nested(path: list[str], value: object) -> Any:
    """Parameters that have a value at a path."""
    if not path:
        return value
    return [nested(path[1:], value)] if path[0] == "[]" else {path[0]: nested(path[1:], value)}


@pytest.mark.parametrize(
    "row", evidence("limits"), ids=lambda row: f"{row['operation']} {row['parameter']}"
)
def test_the_lab_refuses_a_call_beyond_aws_s_limits(row: dict[str, str]) -> None:
    """Every call of the product in the lab is held against them, and against botocore's models."""
    assert (EVIDENCE / "limits.tsv").read_bytes() == LIMITS.read_bytes()
    model = get_session().get_service_model(row["service"]).operation_model(row["operation"])
    most, path = int(row["most"]), row["parameter"].split(".")
    shape: Any = model.input_shape
    for name in path:
        shape = shape.member if name == "[]" else shape.members[name]
    for size, refused in ((most, False), (most + 1, True)):
        value: Any = size if shape.type_name == "integer" else "x" * size
        value = ["x"] * size if shape.type_name == "list" else value
        assert bool(beyond(model, nested(path, value))) is refused
    assert row["source"]


def test_a_client_of_the_lab_refuses_what_botocores_model_refuses() -> None:
    names = [f"i-{number:017x}" for number in range(21)]
    with local_aws(make(), TIME), pytest.raises(ClientError, match="20 at most"):
        boto3.client("autoscaling").detach_instances(
            AutoScalingGroupName="spot", InstanceIds=names, ShouldDecrementDesiredCapacity=False
        )
    with local_aws(make(), TIME), pytest.raises(ClientError, match="255 at most"):
        boto3.client("autoscaling").set_desired_capacity(
            AutoScalingGroupName="x" * 256, DesiredCapacity=1
        )
