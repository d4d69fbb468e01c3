"""Whether the search logs tell the whole load: only then is anything given back."""

from datetime import datetime

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.load.load import Load
from spotkeeper.domain.load.request_queue import quiet_s
from spotkeeper.domain.sizing.silence import is_quiet

# So many requests pass one by chance once in twenty times: exp(-3).
UNHEARD = 3.0
# So large a share of the instances unheard of is more than chance and the odd hung worker.
MANY = 1 / 3


def partly_known(load: Load, memory: HealthMemory, fleet: Fleet, now: datetime) -> str:
    """Say why the load may be more than its logs tell; nothing where all of it is known."""
    if is_quiet(quiet_s(memory.queue, now), fleet.sizing.quiet_after_s):
        return ""
    if not memory.flow.is_whole(load.window_s, now):
        return f"no whole window of {load.window_s} s of logs is known yet"
    serving = len(memory.in_service_since)
    unheard = sum(memory.expected.get(i, 0.0) >= UNHEARD for i in memory.in_service_since)
    if unheard > max(1, MANY * serving):
        return f"requests passed by {unheard} of {serving} instances in service without a log"
    return ""
