"""Whether the search logs tell the whole load: only then is anything given back."""

import math
from collections.abc import Iterable
from datetime import datetime, timedelta

from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.request_queue import quiet_s
from spotkeeper.domain.sizing.silence import is_quiet

# So large a share of the instances without a log is more than the odd hung worker.
MANY = 1 / 3
# Standard deviations beyond what chance leaves without a request.
CHANCES = 3.0


def partly_known(
    load: Load, groups: Iterable[Group], memory: HealthMemory, fleet: Fleet, now: datetime
) -> str:
    """Say why the load may be more than its logs tell; nothing where all of it is known."""
    if is_quiet(quiet_s(memory.queue, now), fleet.sizing.quiet_after_s):
        return ""
    if not memory.flow.is_whole(load.window_s, now):
        return f"no whole window of {load.window_s} s of logs is known yet"
    window = timedelta(seconds=load.window_s)
    serving = [
        i.instance_id
        for group in groups
        for i in group.instances
        if i.phase is Phase.IN_SERVICE
        and i.healthy
        and now - memory.in_service_since.get(i.instance_id, now) >= window
    ]
    logged = {worker.instance_id for worker in load.workers}
    unlogged = sum(i not in logged for i in serving)
    if unlogged > max(MANY * len(serving), _by_chance(len(serving), load)):
        return f"{unlogged} of {len(serving)} instances in service have no log"
    return ""


def _by_chance(serving: int, load: Load) -> float:
    """Give how many of those who serve may have had no request: each goes to any of them."""
    if not serving:
        return 0.0
    idle = serving * math.exp(-load.finished / serving)
    return idle + CHANCES * math.sqrt(idle)
