"""How long the functions can know nothing of workers that do nothing."""

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper_lab.cloud.words import IN_SERVICE

if TYPE_CHECKING:
    from spotkeeper_lab.chaos.world import World

# How busy workers were is remembered for so long after they were all heard of.
REMEMBERED_S = 3600.0


def to_be_missed_s(world: "World") -> float:
    """How long a worker may do nothing until so many requests passed it that it is missed."""
    if world.hung_unseen.intersection(world.force.instances):
        return math.inf
    groups = (world.cloud.group(world.spot), world.cloud.group(world.on_demand))
    there = [i for group in groups for i in group.instances if i.state == IN_SERVICE]
    left = sum(world.works(i.instance_id) for i in there)
    if left == len(there):
        return 0.0
    if _are_logs_rather_missing(world, len(there), left):
        return math.inf
    workers = len(there) + world.scenario.onprem_workers
    return CERTAIN * world.scenario.service_s * workers / world.load()


def _are_logs_rather_missing(world: "World", there: int, left: int) -> bool:
    """Whether over a third do nothing, and the load fell meanwhile.

    Who is left is then nearer to how busy all were than to how busy they would have become.
    """
    since_s = world.now_s - REMEMBERED_S
    steps = [*world.scenario.loads, (math.inf, 0.0)]
    before = max(load for (_, load), (end_s, _) in pairwise(steps) if end_s > since_s)
    onprem = world.scenario.onprem_workers
    everybody, remain = there + onprem, max(1, left + onprem)
    taken_over = before / everybody * (1 + everybody / remain) / 2
    return 3 * (there - left) > there and world.load() / remain < taken_over
