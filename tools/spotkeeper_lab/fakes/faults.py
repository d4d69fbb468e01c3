"""What a fake does wrong when it is told to.

A fake can refuse, or crash at its n-th call; calls are counted over all fakes that share one
`Faults`, from 1, in the order in which they were made.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from botocore.exceptions import ClientError

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import FleetError
from spotkeeper_lab.cloud.values import CloudError


class Crash(BaseException):
    """The function died here, as at a time-out; nobody catches it."""


@dataclass(slots=True)
class Faults:
    """What the fakes that share it do wrong, and the calls that were made.

    `refusals` are the errors of every call of a name. Once call `crash_after` is done, the function
    is dead. `meanwhile` maps a name to what happens elsewhere right after its next call.
    """

    calls: list[str] = field(default_factory=list)
    refusals: dict[str, FleetError] = field(default_factory=dict)
    crash_after: int | None = None
    meanwhile: dict[str, Callable[[], object]] = field(default_factory=dict)

    @contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Make one call."""
        self.calls.append(name)
        number = len(self.calls)
        if self.refusals and name in self.refusals:
            raise self.refusals[name]
        yield
        if name in self.meanwhile:
            self.meanwhile.pop(name)()
        if number == self.crash_after:
            raise Crash(f"after call {number}, {name}")


@contextmanager
def as_aws(operation: str) -> Iterator[None]:
    """Let the cloud's refusals pass through the translation that AWS's pass through."""
    try:
        yield
    except CloudError as refusal:
        with aws_errors(operation):
            raise ClientError(
                {"Error": {"Code": refusal.code, "Message": refusal.message}}, operation
            ) from refusal
