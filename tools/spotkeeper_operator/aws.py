"""One session for everything that an operator's command reads, the activities of a group too."""

import re
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config
from botocore.exceptions import ProfileNotFound
from botocore.session import get_session

from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.ec2.auto_scaling import (
    activities_of,
    instances_of,
    is_failed_launch,
    pages,
)
from spotkeeper.adapters.ec2.prices import on_demand_prices, price_list_region, spot_prices
from spotkeeper.adapters.errors import End, aws_errors, end_of
from spotkeeper.adapters.fleet_documents import DocumentCopy, FleetDocuments, FleetDocumentStore
from spotkeeper.adapters.stacks import Stack, StackReader
from spotkeeper.domain.money.prices import PriceBook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_ec2 import EC2Client

    from spotkeeper.domain.fleet import Fleet
    from spotkeeper.ports import FleetError

# A person waits: fail within seconds, but ride out a throttled call.
CONFIG = Config(
    retries={"mode": "standard", "total_max_attempts": 3}, connect_timeout=3, read_timeout=15
)
# What is only better to know must not take long.
IMPATIENT = CONFIG.merge(Config(retries={"total_max_attempts": 1}, read_timeout=3))


class OperatorError(Exception):
    """Something that the operator can mend; says how."""


@cache
def _regions() -> frozenset[str]:
    """All regions that botocore knows, of every partition."""
    partitions = get_session().get_component("data_loader").load_data("partitions")["partitions"]
    return frozenset(region for each in partitions for region in each["regions"])


def _check(region: str) -> None:
    if region not in _regions():
        near = *get_close_matches(region.lower(), sorted(_regions()), 1), "us-east-1"
        newer = "one that is newer than this boto3 needs a newer boto3"
        raise OperatorError(f"{region} is not the name of a region, such as {near[0]}: {newer}")


class Aws:
    """Clients of one region and profile, made when they are first used."""

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        """Find region and profile; raises `OperatorError` when there are none."""
        self.wrong_documents: Sequence[FleetError] = ()
        self._profile = profile
        try:
            self.session = boto3.Session(region_name=region, profile_name=profile)
        except ProfileNotFound as error:
            raise OperatorError(f"{error}: see `aws configure list-profiles`") from error
        if not self.session.region_name:
            raise OperatorError("no region: give --region or set AWS_REGION")
        _check(self.session.region_name)

    @property
    def region(self) -> str:
        return self.session.region_name

    def client(self, service: str, region: str | None = None) -> Any:
        """Make a client of any service, by its boto3 name."""
        _check(region or self.region)
        make: Callable[..., Any] = self.session.client
        return make(service, region_name=region, config=CONFIG)

    def there(self, region: str) -> "Aws":
        """The same profile in another region."""
        return Aws(region, self._profile)

    @cached_property
    def autoscaling(self) -> "AutoScalingClient":
        return self.session.client("autoscaling", config=CONFIG)

    @cached_property
    def cloudformation(self) -> "CloudFormationClient":
        return self.session.client("cloudformation", config=CONFIG)

    @cached_property
    def cloudwatch(self) -> "CloudWatchClient":
        return self.session.client("cloudwatch", config=CONFIG)

    @cached_property
    def dynamodb(self) -> "DynamoDBClient":
        return self.session.client("dynamodb", config=CONFIG)

    @cached_property
    def ec2(self) -> "EC2Client":
        return self.session.client("ec2", config=CONFIG)

    def stack(self, name: str) -> Stack:
        """Read a stack's outputs; raises `Gone` when there is none of that name, or not ours."""
        stack = StackReader(self.cloudformation).outputs(name)
        # Another kind of stack, or one that is not complete, fails here.
        _ = stack.table
        return stack

    def documents(self, stack: Stack) -> FleetDocuments:
        ssm = self.session.client("ssm", config=CONFIG)
        copy = DocumentCopy(self.session.client("dynamodb", config=IMPATIENT), stack.table)
        documents = FleetDocumentStore(ssm, stack.documents_path, copy).load()
        self.wrong_documents = documents.errors
        return documents

    def document_texts(self, stack: Stack) -> dict[str, str]:
        """Read the documents as they are, right or wrong, by name."""
        path, operation = stack.documents_path, "get_parameters_by_path"
        with aws_errors(f"reading the fleet documents under {path}"):
            read = pages(self.client("ssm"), operation, "Parameters", Path=path, Recursive=True)
            return {one["Name"].removeprefix(f"{path}/"): one["Value"] for one in read}

    def prices(
        self,
        pools: "AbstractSet[str]",
        types: "AbstractSet[str]",
        since: "datetime",
        until: "datetime",
    ) -> PriceBook:
        """Read the spot prices of pools over a time, and the list prices of types."""
        where = price_list_region(self.region)
        return PriceBook(
            spot=spot_prices(self.ec2, pools, since, until),
            on_demand=on_demand_prices(
                self.client("pricing", where) if where else None, types, self.region
            ),
        )

    def records(self, stack: Stack) -> DecisionRecords:
        return DecisionRecords(self.dynamodb, stack.table)


def chosen(documents: FleetDocuments, name: str | None) -> "Sequence[Fleet]":
    """Return the fleets, or the one of that name.

    Raises `OperatorError` for an unknown one, and for one whose document is wrong.
    """
    if name is None:
        return documents.fleets
    named = [fleet for fleet in documents.fleets if fleet.name == name]
    if not named and name in documents.names:
        wrong = "; ".join(str(e) for e in documents.errors if e.fleet in (None, name))
        raise OperatorError(f"fleet {name} has no turns: {wrong}")
    if not named:
        known = ", ".join(fleet.name for fleet in documents.fleets) or "none"
        raise OperatorError(f"there is no fleet {name}; the stack has: {known}")
    return named


# A group in trouble logs an activity every 15 s.
AT_MOST = 500
# How a cause begins: with the time that `at` has, too.
_AT = re.compile(r"^At \S+Z ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One activity: a launch, or an end.

    `failed` launches have the error in `cause`. AWS took the `taken` ones, or lost them.
    """

    group: str
    at: datetime
    what: str
    cause: str
    instances: tuple[str, ...]
    failed: bool = False
    taken: bool = False


def read_activities(aws: Aws, group: str, first: datetime, last: datetime) -> tuple[Activity, ...]:
    """Read a group's activities that began between two instants, oldest first."""
    activities: list[Activity] = []
    for one in activities_of(aws.autoscaling, group, first, AT_MOST, last):
        if not first <= one["StartTime"] <= last:
            continue
        failed, what = is_failed_launch(one), one.get("Description", "")
        cause = _AT.sub("", one["Cause"])
        activities.append(
            Activity(
                group=one["AutoScalingGroupName"],
                at=one["StartTime"],
                what=what,
                cause=one.get("StatusMessage", cause) if failed else cause,
                instances=tuple(instances_of(one)),
                failed=failed,
                taken="terminating" in what.lower() and end_of(one["Cause"]) is End.AWS,
            )
        )
    return tuple(sorted(activities, key=lambda one: one.at))
