"""Reads facts from AWS: the answer, or `Unseen` with the action and why it failed."""

from collections.abc import Callable, Iterable, Iterator
from itertools import batched
from typing import Any

from botocore.exceptions import ClientError

from spotkeeper.adapters.errors import GRANT, aws_errors
from spotkeeper.domain.doctor.facts import GONE, Unseen
from spotkeeper.ports import FleetError

type Clients = Callable[[str], Any]
"""Makes a client of a service, by its boto3 name."""

# How AWS says that what launches need does not exist.
GONE_CODES = frozenset({
    "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable", "InvalidLaunchTemplateId.NotFound",
    "InvalidLaunchTemplateId.VersionNotFound", "InvalidLaunchTemplateName.NotFoundException",
    "NoSuchEntity", "NoSuchBucket", "InvalidSubnetID.NotFound",
})  # fmt: skip


def look[T](action: str, call: Callable[[], T]) -> T | Unseen:
    """Return what a call returns; `Unseen` where AWS refuses or does not answer."""
    try:
        with aws_errors(action):
            return call()
    except FleetError as error:
        why = str(error).removeprefix(f"{action}: ").removesuffix(GRANT)
        cause = error.__cause__
        code = cause.response["Error"]["Code"] if isinstance(cause, ClientError) else ""
        kind = GONE if code in GONE_CODES else type(error).__name__
        return Unseen(action=action, why=f"{kind}: {why}")


def names(action: str, call: Callable[[], Iterable[str]]) -> tuple[str, ...] | Unseen:
    """Look for names."""
    return look(action, lambda: tuple(call()))


def pages(client: Any, operation: str, key: str, **asked: Any) -> Iterator[Any]:
    """Read the items of all pages of an operation."""
    for page in client.get_paginator(operation).paginate(**asked):
        yield from page[key]


def described_types(client: Any, operation: str, key: str, types: Iterable[str]) -> Iterator[Any]:
    """Read what EC2 knows of instance types, 100 a call; unknown types are left out.

    It filters, because the parameter InstanceTypes fails as a whole for one unknown name.
    """
    zones = {"LocationType": "availability-zone"} if "offerings" in operation else {}
    for some in batched(types, 100, strict=False):
        filters = [{"Name": "instance-type", "Values": list(some)}]
        yield from pages(client, operation, key, Filters=filters, **zones)
