"""One look at AWS: its answer, or `Unseen` with the action that was denied."""

from collections.abc import Callable, Iterable

from spotkeeper.adapters.errors import GRANT, aws_errors
from spotkeeper.domain.doctor.facts import Unseen
from spotkeeper.ports import FleetError


def look[T](action: str, call: Callable[[], T]) -> T | Unseen:
    """Answer what a call answers; what AWS refuses or does not answer is `Unseen`."""
    try:
        with aws_errors(action):
            return call()
    except FleetError as error:
        why = str(error).removeprefix(f"{action}: ").removesuffix(GRANT)
        return Unseen(action=action, why=f"{type(error).__name__}: {why}")


def all_or_unseen[T](parts: Iterable[T | Unseen]) -> list[T] | Unseen:
    """Answer every part, or the first that could not be seen."""
    seen: list[T] = []
    for part in parts:
        if isinstance(part, Unseen):
            return part
        seen.append(part)
    return seen
