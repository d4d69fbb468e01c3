"""Reads facts from AWS: the answer, or `Unseen` with the action and why it failed."""

from collections.abc import Callable, Iterable
from typing import Any

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.doctor.facts import Unseen
from spotkeeper.ports import FleetError

type Clients = Callable[[str], Any]
"""Makes a client of a service, by its boto3 name."""


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
