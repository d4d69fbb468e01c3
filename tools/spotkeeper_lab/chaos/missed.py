"""How long the functions can know nothing of workers that do nothing."""

import math
from itertools import pairwise

from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper_lab.chaos.story.scenario import Scenario

# How busy workers were is remembered for so long after they were all heard of.
REMEMBERED_S = 3600.0


def to_be_missed_s(scenario: Scenario, now_s: float, there: int, left: int) -> float:
    """How long a worker may do nothing until so many requests passed it that it is missed.

    Of the instances that are `there`, those that are `left` serve.
    """
    if left == there:
        return 0.0
    steps = [*scenario.loads, (math.inf, 0.0)]
    loads = [
        load
        for (begins_s, load), (end_s, _) in pairwise(steps)
        if begins_s <= now_s < end_s + REMEMBERED_S
    ]
    everybody, serving = there + scenario.onprem_workers, left + scenario.onprem_workers
    if 3 * (there - left) > there and _is_at_ease(loads, everybody, serving):
        return math.inf
    return CERTAIN * scenario.service_s * everybody / loads[-1]


def _is_at_ease(loads: list[float], everybody: int, serving: int) -> bool:
    """Whether the load fell so much that rather the logs of those who do nothing are missing.

    Who is left is nearer to how busy all were than to how busy they would have become.
    """
    if not serving:
        return False
    taken_over = max(loads) / everybody * (1 + everybody / serving) / 2
    return loads[-1] / serving < taken_over
