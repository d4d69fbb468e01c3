"""What a turn of the availability controller reads, after it has its lease.

Groups and troubled spot requests of all fleets are read together, once, by the first turn that
needs them. Only the groups are required. Anything else that cannot be read is left out, and the
record says so.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.domain.availability.count import has_gap, missing_group, overdue
from spotkeeper.domain.availability.decide import LOOKED_AFTER_S
from spotkeeper.domain.availability.memory import within
from spotkeeper.domain.availability.snapshot import Snapshot, Sweep
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import BusyShares, Fleet, Group, Observation, Phase
from spotkeeper.domain.health.reports import TURNS_STOPPED, not_met, requests_had_stopped
from spotkeeper.domain.interruption import at_risk_since
from spotkeeper.domain.load.flow import CERTAIN, SLOT_S
from spotkeeper.domain.load.load import slot_begins
from spotkeeper.domain.load.request_queue import quiet_s
from spotkeeper.domain.release import BUSY_WINDOW, busy_shares
from spotkeeper.ports import Ports, SpotRequest
from spotkeeper.turns.spread import own_share
from spotkeeper.turns.turn import TABLE, Budget, Round, fleet_in_force, groups_of

# The APIs of optional reads: one that did not answer is not called again in an invocation.
EC2, ACTIVITIES, GROUPS = "EC2", "the log of scaling activities", "EC2 Auto Scaling"
# Failures older than this explain nothing any more, unless the gap that they explain lasts.
FAILURE_MEMORY = timedelta(minutes=5)
# Instances with tags that cannot be proven are searched for this often.
SWEEP_EVERY_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What was read for several fleets; `unread` says what could not be."""

    groups: Mapping[str, Group]
    requests: tuple[SpotRequest, ...]
    unread: tuple[str, ...] = ()


def read_together(fleets: Sequence[Fleet], ports: Ports, now: datetime, budget: Budget) -> Together:
    """Read the groups of some fleets, and the spot requests of their instances."""
    names = [name for fleet in fleets for name in fleet.groups]
    groups, unread = ports.groups.describe(names), list[str]()
    mine = {fleet.spot_group for fleet in fleets}
    ids = [i.instance_id for n, g in groups.items() if n in mine for i in g.instances]
    requests: tuple[SpotRequest, ...] = ()
    if ids:
        read = partial(ports.groups.troubled_spot_requests, ids, now - FAILURE_MEMORY)
        requests = budget.optional(unread, "spot requests", requests, read, api=EC2)
    return Together(groups=groups, requests=requests, unread=tuple(unread))


def snapshot_of(this: Round, read: Together) -> Snapshot:
    """Put together what one fleet's decision needs; failures are read only to explain a gap.

    The sweep for marked instances is last: it must not take the time of any other read.

    Raises `Gone` if the spot group does not exist, unless it is remembered.
    """
    ports, lease, now = this.ports, this.lease, this.now
    memory, health = lease.availability, lease.health
    fleet = fleet_in_force(this, read.groups)
    if fleet is not this.fleet:
        this.fleet, read = fleet, read_together([fleet], ports, now, this.budget)
    this.unread += read.unread
    missing = None
    if fleet.spot_group not in read.groups:
        missing = missing_group(fleet.spot_group, memory)
    spot, on_demand = groups_of(fleet, read.groups, ports.owner, missing)
    spot_failures = [*_failures(this, spot)] if spot.exists else []
    on_demand_failures = _failures(this, on_demand)
    inside = {i.instance_id for i in spot.instances}
    # Detached instances, and those that vanished before they served.
    others = sorted({*memory.detached, *memory.spot_launching} - inside)
    requests = [request for request in read.requests if request.instance_id in inside]
    if others:
        their = partial(ports.groups.troubled_spot_requests, others, now - FAILURE_MEMORY)
        requests += this.optional("spot requests", (), their, api=EC2)
    # Only the failed request of an instance that never served is a failed launch.
    spot_failures += [
        r.failure for r in requests if r.failure and r.instance_id in memory.launching_since
    ]
    notice = timedelta(seconds=fleet.availability.notice_s)
    going = {r.instance_id: r for r in requests if r.at_risk_since}
    due = sorted(
        going.keys() | (overdue(memory, fleet.availability, now) if memory.detached else ())
    )
    running = (
        this.optional("which instances run", None, lambda: ports.groups.running(due), api=EC2)
        if due
        else None
    )
    taken = frozenset([i for i, r in going.items() if _is_gone(r, running, now - notice)])
    # What notes and spot requests report about the same instance.
    warned: dict[str, datetime] = {}
    noted = [(i, note.at) for note in lease.notes for i in note.instance_ids]
    marked = [(i, r.at_risk_since) for i, r in going.items() if r.at_risk_since and i not in taken]
    for i, at in (*noted, *marked):
        warned[i] = at_risk_since(warned.get(i), at, now, notice)
    # Nobody knows what serves once the health controller's last turn is long ago.
    stopped = 0 < health.flow.counted < (now - TURNS_STOPPED).timestamp() // SLOT_S
    same = memory.groups == (spot.name, on_demand.name)
    looked_after = same and within(memory.seen_at, now, LOOKED_AFTER_S)
    # Only a fleet that was adopted waits for its load to be known.
    waits = not looked_after or memory.adoption is not None
    return Snapshot(
        fleet=fleet,
        groups=Observation(seen_at=now, spot=spot, on_demand=on_demand),
        spot_failures=tuple(spot_failures),
        on_demand_failures=on_demand_failures,
        warned=warned,
        served={i: note.at for note in lease.notes for i in note.served},
        taken=taken,
        silent=frozenset(health.silent),
        unreported=health.unreported,
        unproven=_unproven(this, spot),
        size_limited=health.size_limited,
        load_known=waits and _is_load_known(this),
        logged=health.flow.newest is not None,
        logs_known_for=health.flow.known_for(now) if waits else timedelta(),
        # As that turn saw it: logs arrived since.
        logs_missing=waits and health.flow.is_missing(slot_begins(health.flow.counted)),
        running=None if running is None else frozenset(running),
        sweep=_sweep(this, (spot, on_demand), running or ()),
        on_demand_launched=None if looked_after else _launched(this, on_demand),
        claims=bool(ports.owner),
        left=_left(this) if memory.left or memory.groups != fleet.groups else {},
        health_lost=lease.other_unreadable or (stopped and fleet.worker_health.enabled),
        unread=tuple(this.unread),
        share=own_share(this) if fleet.is_shared else None,
    )


def _is_gone(request: SpotRequest, running: Mapping[str, bool] | None, over: datetime) -> bool:
    """Tell whether EC2 has taken an instance: it runs no more, or its notice began by `over`."""
    if running is not None and not running.get(request.instance_id):
        return True
    return request.final and request.at_risk_since is not None and request.at_risk_since <= over


def with_busy_shares(snapshot: Snapshot, this: Round) -> Snapshot:
    """Read from the search logs which instances are busy; without them, none counts as busy."""

    def read() -> BusyShares:
        digests = this.ports.load.since(this.fleet.name, this.now - BUSY_WINDOW)
        return busy_shares(digests, this.now, this.fleet.slots)

    shares = this.optional("which instances are busy", None, read, api=TABLE)
    return replace(snapshot, busy_shares=shares, unread=tuple(this.unread))


def _failures(this: Round, group: Group) -> tuple[LaunchFailure, ...]:
    """Read the launches that failed lately, where the group has a gap.

    A launch that fails may have begun as long ago as the launch deadline.
    """
    if not has_gap(group):
        return ()
    what, since, read = f"activities of {group.name}", this.now - FAILURE_MEMORY, this.ports.groups
    longest = timedelta(seconds=this.fleet.availability.launch_deadline_s)
    return this.optional(
        what, (), lambda: read.failures(group.name, since, longest), api=ACTIVITIES
    )


def _launched(this: Round, group: Group) -> datetime | None:
    """Read since when at least a group has been in use, from EC2, as no memory says it."""
    ids, read = [each.instance_id for each in group.instances], this.ports.groups.oldest_launch
    what = "since when on-demand is in use"
    return this.optional(what, None, partial(read, ids), api=EC2) if ids else None


def _left(this: Round) -> Mapping[str, int | None]:
    """Count the instances of groups that earlier documents named; None where that is not known.

    Those that this stack does not own, or that a fleet has now, are none of them.
    """
    memory, ports = this.lease.availability, this.ports
    names = sorted({*memory.left, *memory.groups}.difference(this.fleet.groups, this.taken))
    if not names or not ports.owner:
        return {}
    read = this.optional(
        "the groups of before", None, lambda: ports.groups.describe(names), api=GROUPS
    )
    if read is None:
        return dict.fromkeys(names)
    mine = {name: group for name, group in read.items() if group.owner == ports.owner}
    return {n: count for n, g in mine.items() if (count := max(g.desired, len(g.instances)))}


def _unproven(this: Round, spot: Group) -> Mapping[str, datetime]:
    """Return the unproven instances, with those that the health controller has not seen yet."""
    health = this.lease.health
    if not this.fleet.worker_health.enabled:
        return {}
    there = [i.instance_id for i in spot.instances if i.phase is Phase.IN_SERVICE]
    new = [i for i in there if i not in health.in_service_since]
    unproven = (*health.unproven, *(not_met(health, new, this.now) if new else ()))
    since = {**health.in_service_since, **health.starting}
    return {i: since.get(i, this.now) for i in unproven}


def _is_load_known(this: Round) -> bool:
    """Tell whether a need was found in a whole window of logs: the first few show only a part.

    The load is also known if the request queue proves that no request arrives, or if requests had
    stopped while workers that served before were in service.
    """
    health, sizing, now = this.lease.health, this.fleet.sizing, this.now
    if not sizing.enabled:
        return False
    if quiet_s(health.queue, now, sizing.quiet_after_s):
        return True
    if requests_had_stopped(health, CERTAIN, now):
        return True
    if not health.needed or health.needed[-1].held:
        return False
    # What was needed before a pause says nothing of now.
    current = within(health.needed[-1].at, now, LOOKED_AFTER_S)
    return current and health.flow.is_whole(sizing.window_s, now)


def _sweep(this: Round, groups: Sequence[Group], running: Collection[str]) -> Sweep | None:
    """Search for marked instances after a memory was lost; None when that is not due.

    A controller that remembers knows what it marked and detached, but not whether it may end it:
    a release before may have marked it. Tags that cannot be proven are looked at again each hour,
    until an operator removes them.
    """
    memory, names = this.lease.availability, [group.name for group in groups]
    known = memory.swept_at is not None and memory.groups == tuple(names)
    ending = overdue(memory, this.fleet.availability, this.now)
    if (
        known
        and not ending
        and (not memory.unproven_marks or within(memory.swept_at, this.now, SWEEP_EVERY_S))
    ):
        return None
    read = this.ports.groups
    marks = this.optional("marked instances", None, lambda: read.marked(names), api=EC2)
    if marks is None:
        return None
    members = {i.instance_id for group in groups for i in group.instances}
    outside = [m for m in marks if m.instance_id not in members]
    proven = {m.instance_id: m.gone_at for m in outside if m.detached and m.ours}
    known_of = {m.instance_id for m in outside if m.instance_id in memory.detached and m.ours}
    # One without any mark of ours cannot be ended either.
    lacking = (ending & set(running)) - {m.instance_id for m in marks}
    return Sweep(
        inside=frozenset([m.instance_id for m in marks if m.instance_id in members]),
        detached={i: at for i, at in proven.items() if i not in known_of},
        unproven_marks=tuple(
            sorted({m.instance_id for m in outside} - proven.keys() - known_of | lacking)
        ),
    )
