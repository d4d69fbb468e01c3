"""A spot group that is whole, and who may stand in for it."""

from spotkeeper.domain.availability.memory import AvailabilityMemory
from tests.builders import group, ids, instances, turn

SPOT = ids("a", 8)


BACK = ids("b", 8)


STEADY = AvailabilityMemory(need=4)


def whole(serving: int = 4, desired: int = 4) -> tuple[int, AvailabilityMemory]:
    """A memory in which `serving` of `desired` spot instances have settled."""
    spot, back = group("spot", desired, instances(SPOT[:serving])), group("on-demand", 0)
    first = turn(-3600, spot, back)
    return desired, turn(-60, spot, back, first.memory).memory
