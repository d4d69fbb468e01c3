"""How long instances of this fleet take to start, measured; and who has not reported yet."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from statistics import median

from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.load import Load

# So many of the last launches count.
LAUNCHES = 9


def watch_starts(
    memory: HealthMemory, spot: Group, on_demand: Group, load: Load, now: datetime
) -> HealthMemory:
    """Remember who has started without a log so far, and how long spot took to be in service."""
    reported = {worker.instance_id for worker in load.workers}
    known = memory.in_service_since.keys() - memory.starting.keys()
    starting = {
        i: memory.starting.get(i, now)
        for i in _present((spot, on_demand))
        if i not in reported and i not in known
    }
    took = (
        round((now - memory.starting[i.instance_id]).total_seconds())
        for i in spot.instances
        if i.phase is Phase.IN_SERVICE
        and i.instance_id in memory.starting
        and i.instance_id not in memory.in_service_since
    )
    return replace(memory, starting=starting, start_ups=(*memory.start_ups, *took)[-LAUNCHES:])


def _present(groups: Iterable[Group]) -> Iterable[str]:
    return (
        i.instance_id
        for group in groups
        for i in group.instances
        if i.phase is not Phase.LEAVING and i.healthy
    )


def start_up_s(memory: HealthMemory, default_s: float) -> float:
    """Give the median start-up time of the last launches, in seconds; the default without any."""
    return median(memory.start_ups) if memory.start_ups else default_s
