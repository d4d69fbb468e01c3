"""A request to the spot group: the value that passes between the two controllers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """A controller's request to the spot group: the capacity that the load needs, plus spares.

    With `limited`, the load needs more than one turn may request.
    """

    at: datetime
    need: int
    spare: int
    limited: bool = False

    @property
    def desired(self) -> int:
        """The group's desired capacity that this makes."""
        return self.need + self.spare


def required_capacity(desired: int, requests: Iterable[CapacityRequest | None]) -> int:
    """Return the need in a desired capacity; one that no controller set is all need.

    A capacity that an operator or a scaling policy sets therefore holds at once. While spares are
    released one by one, desired lies between the need and the whole request.
    """
    known = [r for r in requests if r is not None and r.need <= desired <= r.desired]
    exact = [ask for ask in known if ask.desired == desired]
    newest = max(exact or known, key=lambda ask: ask.at, default=None)
    return desired if newest is None else newest.need
