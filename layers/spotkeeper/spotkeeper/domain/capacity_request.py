"""What a controller asked the spot group for: the value that passes between the two controllers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """What a controller asked the spot group for: what the load needs, and spares on top.

    With `limited`, the load needs more: the need is what one turn may ask for.
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

    An operator or a scaling policy that sets the group is therefore right at once. While spares are
    released one by one, desired lies between need and what was asked.
    """
    known = [r for r in requests if r is not None and r.need <= desired <= r.desired]
    exact = [ask for ask in known if ask.desired == desired]
    newest = max(exact or known, key=lambda ask: ask.at, default=None)
    return desired if newest is None else newest.need
