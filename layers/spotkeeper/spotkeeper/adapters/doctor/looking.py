"""Reads facts from AWS: the answer, or `Unseen` with the action and why it failed."""

from collections.abc import Callable, Iterable, Iterator
from itertools import batched
from typing import Any

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.doctor.facts import Unseen
from spotkeeper.ports import FleetError

type Clients = Callable[[str], Any]
"""Makes a client of a service, by its boto3 name."""

# The values that EC2 takes in one filter.
FILTERED_A_CALL = 200


def look[T](action: str, call: Callable[[], T]) -> T | Unseen:
    """Return what a call returns; `Unseen` where AWS refuses or does not answer."""
    try:
        with aws_errors(action):
            return call()
    except FleetError as error:
        kind, why = type(error).__name__, str(error).removeprefix(f"{action}: ")
        return Unseen(action=action, why=f"{kind}: {why}", kind=kind)


def names(action: str, call: Callable[[], Iterable[str]]) -> tuple[str, ...] | Unseen:
    """Look for names."""
    return look(action, lambda: tuple(call()))


def pages(client: Any, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
    """Read the items of all pages of an operation, of which some have one."""
    if not client.can_paginate(operation):
        yield from getattr(client, operation)(**arguments)[key]
        return
    for page in client.get_paginator(operation).paginate(**arguments):
        yield from page[key]


def filtered(
    ec2: Any, operation: str, key: str, by: str, values: Iterable[str], **arguments: Any
) -> Iterator[Any]:
    """Read what EC2 describes with some values of a filter.

    Values that EC2 does not know are left out: as a parameter, one of them fails the whole call.
    """
    for some in batched(sorted(values), FILTERED_A_CALL, strict=False):
        filters = [{"Name": by, "Values": list(some)}]
        yield from pages(ec2, operation, key, Filters=filters, **arguments)
