"""How long the functions can know nothing of workers that do nothing, or do nothing about them."""

import math
from itertools import pairwise

from spotkeeper.domain.load.flow import CERTAIN
from spotkeeper_lab.chaos.promises import WHOLE_AFTER_S
from spotkeeper_lab.chaos.story.scenario import Scenario

# How busy workers were is remembered for so long after they were all heard of.
REMEMBERED_S = 3600.0


def to_be_missed_s(scenario: Scenario, now_s: float, there: int, idle: int, *, hang: bool) -> float:
    """How long a worker may do nothing until so many requests passed it that it is missed.

    Of the instances that are `there` so many are `idle`. Where all served once and `hang` together,
    their logs may be missing as well: only a request queue tells more.
    """
    if not idle:
        return 0.0
    if hang and idle == there and not (scenario.onprem_workers or scenario.queue_known):
        return math.inf
    left = there - idle
    steps = [*scenario.loads, (math.inf, 0.0)]
    loads = [
        load
        for (begins_s, load), (end_s, _) in pairwise(steps)
        if begins_s <= now_s < end_s + REMEMBERED_S
    ]
    everybody, serving = there + scenario.onprem_workers, left + scenario.onprem_workers
    if 3 * idle > there and _is_at_ease(loads, everybody, serving):
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


def is_budget_spent(ages_s: list[float], short: int, budget: int) -> bool:
    """Whether all who are short were just replaced, and the replacements of an hour were spent."""
    just = sum(age_s < WHOLE_AFTER_S for age_s in ages_s)
    lately = sum(age_s < 3600.0 + WHOLE_AFTER_S for age_s in ages_s)
    return just >= short and lately >= budget
