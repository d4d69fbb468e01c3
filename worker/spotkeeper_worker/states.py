"""What a machine is in, and why: a table over what its metadata and its workers say.

Pure: everything seen, and the time in seconds since the epoch, are arguments.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class State(str, enum.Enum):
    """The states of a machine, in the order in which it goes through them."""

    BOOTING = "booting"
    READY = "ready"
    SERVING = "serving"
    DRAINING = "draining"
    IDLE = "idle"
    GONE = "gone"


class Hook(str, enum.Enum):
    """The two lifecycle hooks of a group."""

    READY = "ready"
    DRAIN = "drain"


class Target(NamedTuple):
    """What a target lifecycle state means: whether it serves, and the hooks that hold it up."""

    serves: bool
    hooks: tuple[Hook, ...] = ()
    reason: str = ""


_WARMED = Target(serves=False, hooks=(Hook.READY, Hook.DRAIN), reason="warmed")
_ENDED = Target(serves=False, hooks=(Hook.DRAIN,), reason="terminated")

# The Auto Scaling guide ("Retrieve the target lifecycle state through instance metadata") lists the
# steady states. The launch hook runs on the way into the warm pool and again out of it.
TARGETS: dict[str, Target] = {
    "InService": Target(serves=True, hooks=(Hook.READY,)),
    "Detached": Target(serves=False, reason="detached"),
    "Standby": Target(serves=False, reason="standby"),
    "Terminated": _ENDED,
    "Warmed:Stopped": _WARMED,
    "Warmed:Running": _WARMED,
    "Warmed:Hibernated": _WARMED,
    "Warmed:Terminated": _ENDED,
}
# A machine in no group: the item is not there.
NO_GROUP = Target(serves=True)


class Seen(NamedTuple):
    """The last answers of the metadata; times are seconds since the epoch, by this clock."""

    target: str | None = None
    taken_at: float | None = None
    """AWS takes the spot instance then (`spot/instance-action`)."""
    rebalance: bool = False
    tagged_until: float | None = None
    """Spotkeeper counts it out and ends it then (the tag `spotkeeper:draining`)."""
    maintenance: tuple[float, str] | None = None
    """When EC2 stops, retires or reboots it, and the code (`events/maintenance/scheduled`)."""


class Workers(NamedTuple):
    """The machine's workers: how many are to be, which are ready, and how many requests run."""

    expected: int
    ready: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()
    busy: int = 0
    begun: int = 0
    """Requests begun so far by the workers that live: idle means that it stands still."""
    busy_with: tuple[tuple[str, int], ...] = ()
    """The workers that have a request, each with the number that it has begun."""
    gone: bool = False
    """No worker has been alive for a while."""

    @property
    def alive(self) -> int:
        """How many workers are running."""
        return len(self.ready) + len(self.not_ready)

    @property
    def all_ready(self) -> bool:
        """All expected workers have loaded their model."""
        return len(self.ready) >= self.expected and not self.not_ready

    def missing(self) -> str:
        """Name the workers that are not ready."""
        named = [f"{name} has not called ready(), or its probe fails" for name in self.not_ready]
        if self.alive < self.expected:
            named.append(f"{self.expected - self.alive} of {self.expected} workers are not running")
        return "; ".join(named)


class Leave(NamedTuple):
    """Why the machine takes no more requests, or only those done by `serve_until`.

    `until` is when it will be gone; None where only its last request decides that.
    """

    reason: str
    until: float | None = None
    serve_until: float | None = None


def meaning(target: str | None) -> Target:
    """Give what a target state means; raises KeyError for one that is not known."""
    return NO_GROUP if target is None else TARGETS[target]


def leaving(notices: Seen, own: str, rebalance_drains: bool) -> Leave | None:
    """Say whether the machine is to drain, and why; None while it may serve.

    `own` is a reason that metadata does not know: an order to stop, an ill GPU, a dead service.
    What ends its serving at once has priority over what leaves it some time.
    """
    maintained_at, code = notices.maintenance or (None, "")
    ends = (notices.taken_at, notices.tagged_until, maintained_at)
    timed = [at for at in ends if at is not None]
    until = min(timed) if timed else None
    target = meaning(notices.target)
    if not target.serves and not (notices.target == "Detached" and timed):
        return Leave(target.reason, until)
    if own:
        return Leave(own, until)
    if until is not None:
        reason = "tagged" if notices.tagged_until is not None else f"maintenance: {code}"
        return Leave("interruption" if notices.taken_at is not None else reason, until, until)
    if notices.rebalance and rebalance_drains:
        return Leave("rebalance recommendation")
    return None


def state_of(
    before: State, leave: Leave | None, workers: Workers, settled: bool, *, served: bool
) -> State:
    """Return the state that follows `before`.

    `settled`: no request has run, or begun, since the drain began. `served`: the machine has been
    in service before.
    """
    if leave is None:
        # A machine that served goes on while a worker restarts: the others still take requests.
        goes_on = served and (workers.ready or not workers.gone)
        return State.SERVING if workers.all_ready or goes_on else State.BOOTING
    if leave.reason == "warmed" and before in (State.BOOTING, State.READY) and not workers.busy:
        return State.READY if workers.all_ready else State.BOOTING
    if before is State.GONE:
        return State.GONE
    return State.IDLE if settled else State.DRAINING
