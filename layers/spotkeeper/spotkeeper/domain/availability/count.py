"""How many instances serve, launch and are missing, and which failures explain that (rules 3, 4).

Launched is not serving (rule 13): an instance in service whose workers have not reported although
requests flow is still launching.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from spotkeeper.domain.availability.memory import (
    AvailabilityMemory,
    PendingIncrease,
    Unexplained,
    within,
)
from spotkeeper.domain.availability.risk import Risk
from spotkeeper.domain.availability.snapshot import Snapshot, Sweep
from spotkeeper.domain.failure import FailureClass, LaunchFailure, Remedy, remedy
from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.settings.availability import AvailabilityPolicy

LAUNCH = "Launch"
# With this many launches, or this long, without a success an unknown text is no lack of capacity.
UNEXPLAINED_LAUNCHES, UNEXPLAINED_S = 3, 600
# A launch may fail before a turn sees the gap that it was meant to fill.
GAP_SLACK = timedelta(seconds=60)


# --- serving, launching, missing ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The instances of a group by how they count for the fleet.

    `target` is what the fleet must serve, or the on-demand group's desired capacity. `lasting` are
    those that serve, less those that AWS ends once the launching ones are in service. `late`
    instances are past the launch deadline, of which `stuck` ones have themselves been there this
    long; `missing` ones are desired but not in the group. `unproven` ones are in service and may
    serve: nothing is launched in their place, and nothing is released because of them. `tried` are
    those launching or unproven with a version of the launch template that nothing serves with yet.
    """

    target: int
    serving: int
    lasting: int
    launching: int
    late: int
    at_risk: int
    missing: int
    unproven: int = 0
    stuck: int = 0
    tried: int = 0


def count(
    group: Group,
    target: int,
    launching: "Launching",
    at_risk: Set[str],
    gone: Set[str],
    deadline: datetime,
    unproven: Set[str],
) -> Count:
    """Count a group against its target.

    An instance at risk never counts. One that launches counts as `late` if it began by `deadline`,
    at risk or `gone` as well or not: more instances would not serve in its place either. `gone` are
    those that do not serve: silent, or taken by AWS while the group still lists them.
    """
    since, heirs = launching.since, launching.heirs
    aside = since.keys() | unproven | gone
    there = [i for i in group.instances if i.phase is Phase.IN_SERVICE and i.healthy]
    # The version is not known of types with launch templates of their own.
    versions = {i.template for i in there if i.instance_id not in aside} - {""}
    serving = starting = late = stuck = risky = present = may_serve = tried = 0
    for instance in group.instances:
        this = instance.instance_id
        if instance.phase is Phase.LEAVING:
            continue
        present += 1
        is_late = this in since and since[this] <= deadline
        late += is_late
        stuck += is_late and heirs.get(this, since[this]) <= deadline
        if this in at_risk:
            risky += 1
        elif is_late or this in gone:
            continue
        elif this in since or this in unproven:
            starting += this in since
            may_serve += this not in since and instance.healthy
            tried += bool(versions) and instance.template not in {"", *versions}
        else:
            serving += instance.healthy
    return Count(
        target=target,
        serving=serving,
        lasting=max(0, min(serving, group.desired - starting - may_serve - risky)),
        launching=starting,
        late=late,
        stuck=stuck,
        at_risk=risky,
        missing=max(0, group.desired - present),
        unproven=may_serve,
        tried=tried,
    )


def count_groups(
    snapshot: Snapshot, launching: "Launching", risky: Set[str]
) -> tuple[Count, Count]:
    """Count the spot group against what the fleet must serve, on-demand against its own desired."""
    groups, gone, fleet = snapshot.groups, snapshot.silent | snapshot.taken, snapshot.fleet
    deadline = groups.seen_at - timedelta(seconds=fleet.availability.launch_deadline_s)
    back, unproven = groups.on_demand, snapshot.unproven.keys()
    return (
        count(groups.spot, snapshot.need, launching, risky, gone, deadline, unproven),
        count(back, back.desired, launching, risky, gone, deadline, unproven),
    )


# --- launching ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """The launching instances, with since when; `spot` are those of the spot group.

    `heirs` are those that have the age of one that vanished before it served, with their own.
    `unserved` has an instant for each of those that nothing replaces yet: now, less the time for
    which it launched.
    `unproven` has since when those of the spot group are in service that may serve.
    """

    since: Mapping[str, datetime]
    heirs: Mapping[str, datetime]
    spot: tuple[str, ...]
    unserved: tuple[datetime, ...]
    unproven: tuple[datetime, ...]


def find_launching(memory: AvailabilityMemory, snapshot: Snapshot) -> Launching:
    """Note since when each instance is launching, and forget those that serve or are gone.

    A replacement of an instance that vanished before it served inherits its age. Otherwise a boot
    loop, or spot that is taken before it serves, would be launching for ever. The time without any
    replacement does not count: nothing was launching in it.
    """
    spot = _launching(snapshot.groups.spot, snapshot)
    on_demand = _launching(snapshot.groups.on_demand, snapshot)
    heirs = [i for i in spot if i not in memory.launching_since]
    vanished = _vanished(memory, snapshot) if memory.spot_launching else ()
    waited = snapshot.now - (memory.seen_at or snapshot.now)
    ages = sorted([*[at + waited for at in memory.unserved], *vanished])
    inherited = dict(zip(heirs, ages, strict=False))
    known = memory.launching_since
    since = {**spot, **on_demand}
    since |= {i: at for i, at in inherited.items() if i in since}
    since |= {i: known[i] for i in known.keys() & since.keys()}
    born = {i: spot[i] for i in inherited}
    born |= {i: at for i, at in memory.heirs.items() if i in since}
    there = [i.instance_id for i in snapshot.groups.spot.instances if i.phase is Phase.IN_SERVICE]
    unproven = snapshot.unproven
    return Launching(
        since=since,
        heirs=born,
        spot=tuple(spot),
        unserved=tuple(ages[len(inherited) :]),
        unproven=tuple([unproven[i] for i in there if i in unproven and i not in since]),
    )


def _launching(group: Group, snapshot: Snapshot) -> dict[str, datetime]:
    """Return the launching instances of a group, with when that was seen first."""
    unreported, now = snapshot.unreported, snapshot.now
    since = dict.fromkeys(
        [i.instance_id for i in group.instances if i.phase is Phase.LAUNCHING], now
    )
    if unreported:
        in_service = [i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE]
        since |= {i: unreported[i] for i in in_service if i in unreported}
        since |= {i: unreported[i] for i in unreported.keys() & since.keys()}
    return since


def _vanished(memory: AvailabilityMemory, snapshot: Snapshot) -> list[datetime]:
    """Return the ages of the spot instances that vanished unserved, unless the group shrank."""
    group = snapshot.groups.spot
    there = {i.instance_id for i in group.instances if i.phase is not Phase.LEAVING}
    gone = [memory.launching_since[i] for i in memory.spot_launching if i not in there]
    shrunk_by = max(0, (memory.spot_seen or 0) - group.desired)
    return sorted(gone)[: max(0, len(gone) - shrunk_by)]


# --- the shortfall --------------------------------------------------------------------------------


def pending_increases(
    memory: AvailabilityMemory,
    spot: Count,
    starting: Launching,
    failures: tuple[LaunchFailure, ...],
    policy: AvailabilityPolicy,
    now: datetime,
) -> tuple[PendingIncrease, ...]:
    """Keep the increases of the need that launches may still fill, as far as they are unfilled.

    The missing part of an increase ends with its grace, or once a launch failed after it, unless an
    instance arrived within the grace: one empty zone logs failures while the group still fills. An
    increase is dated by the last turn that saw the old need, because a launch may have failed
    since. Instances launched since keep it while it is not known whether they serve. A first turn
    takes the need as just requested.
    None is kept once as many serve as are needed.
    """
    grace = timedelta(seconds=policy.request_grace_s)
    longest = timedelta(seconds=policy.launch_deadline_s)
    if spot.serving >= spot.target:
        return ()
    grown = spot.target - (memory.need or 0)
    increases = memory.pending_increases
    if grown > 0:
        increases = (*increases, PendingIncrease(at=memory.seen_at or now, count=grown))
    kept: list[PendingIncrease] = []
    refused_at = [f.at for f in failures if remedy(f.failure_class) is not Remedy.NONE]
    unproven = [*starting.unproven]
    # The newest spot instance that is not known to serve was launched then.
    newest = max([*[starting.since[i] for i in starting.spot], *unproven], default=None)
    filling = newest is not None and now - newest < grace
    launching, missing = spot.launching, spot.missing
    for increase in increases:
        begun = newest is not None and newest >= increase.at
        young = now - increase.at < grace and not any(at >= increase.at for at in refused_at)
        waits = young or (begun and filling and now - increase.at < longest)
        arrived = [at for at in unproven if at >= increase.at][: increase.count]
        for at in arrived:
            unproven.remove(at)
        left = increase.count - len(arrived)
        launched = min(left, launching) if begun or waits else 0
        due = min(left - launched, missing) if waits else 0
        launching, missing = launching - launched, missing - due
        if count := len(arrived) + launched + due:
            kept.append(PendingIncrease(at=increase.at, count=count, unproven=len(arrived)))
    return tuple(kept)


# --- failures that explain a gap (rule 6) ---------------------------------------------------------


def explain_gaps(snapshot: Snapshot, memory: AvailabilityMemory) -> Snapshot:
    """Add what explained a gap before, and what a suspended Launch process means.

    A text that nobody knows counts as configuration once launches have failed often or long enough.
    """
    observation = snapshot.groups
    ringing = {
        one.group
        for one in memory.unexplained
        if one.count >= UNEXPLAINED_LAUNCHES
        or (one.count and not within(one.since, snapshot.now, UNEXPLAINED_S))
    }
    groups = (
        (observation.spot, memory.spot_failures, snapshot.spot_failures),
        (observation.on_demand, memory.on_demand_failures, snapshot.on_demand_failures),
    )
    if not observation.spot.exists:
        why = f"{observation.spot.name} does not exist: create it, or correct the fleet document"
        gone = LaunchFailure(at=snapshot.now, failure_class=FailureClass.CAPACITY, message=why)
        snapshot = replace(snapshot, spot_failures=(*snapshot.spot_failures, gone))
        groups = ((observation.spot, (), snapshot.spot_failures), groups[1])
    spot, on_demand = [
        (
            *[
                replace(failure, failure_class=FailureClass.CONFIGURATION)
                if group.name in ringing and not failure.known
                else failure
                for failure in explaining(known, read, group)
            ],
            *([_suspended_launch(group, snapshot.now)] if LAUNCH in group.suspended else ()),
        )
        for group, known, read in groups
    ]
    return replace(snapshot, spot_failures=spot, on_demand_failures=on_demand)


def unexplained(memory: AvailabilityMemory, snapshot: Snapshot) -> tuple[Unexplained, ...]:
    """Count the launches of each group that failed for unknown reasons since its last success.

    A launch has succeeded once its instance is in service, or the group has no gap.
    """
    texts, now = list[Unexplained](), snapshot.now
    known = {one.group: one for one in memory.unexplained}
    for group, failures in (
        (snapshot.groups.spot, snapshot.spot_failures),
        (snapshot.groups.on_demand, snapshot.on_demand_failures),
    ):
        before = known.get(group.name)
        if before:
            serve = [i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE]
            begun = [snapshot.served.get(i) or memory.launching_since.get(i) for i in serve]
            if any([at is not None and at >= before.since for at in begun]):
                before = Unexplained(group=group.name, since=now, newest=now, count=0)
        unknown = [f.at for f in failures if not f.known]
        new = sorted([at for at in unknown if not before or at > before.newest])
        if not has_gap(group) or not (new or before):
            continue
        count = before.count if before else 0
        since = before.since if before and (count or not new) else new[0]
        newest = max(new, default=now) if before is None else max([*new, before.newest])
        total = count + len(new)
        texts.append(Unexplained(group=group.name, since=since, newest=newest, count=total))
    return tuple(texts)


def explaining(
    known: tuple[LaunchFailure, ...], read: tuple[LaunchFailure, ...], group: Group
) -> tuple[LaunchFailure, ...]:
    """Return the failures just read, with those known while instances are missing and none is new.

    AWS waits longer between its attempts the longer a group fails, so that a gap must not forget
    its class. Once all are launched, earlier failures explain nothing of those that do not serve.
    """
    if not known or any(remedy(failure.failure_class) is not Remedy.NONE for failure in read):
        return read
    present = len([i for i in group.instances if i.phase is not Phase.LEAVING])
    return read if present >= group.desired else (*read, *known)


def of_gap(failures: Sequence[LaunchFailure], since: datetime | None) -> tuple[LaunchFailure, ...]:
    """Leave out the failures of an earlier gap, which the group has filled since."""
    return tuple([f for f in failures if since is None or f.at >= since])


def has_gap(group: Group) -> bool:
    """Say whether a group has fewer instances in service than desired."""
    return len([i for i in group.instances if i.phase is Phase.IN_SERVICE]) < group.desired


def _suspended_launch(group: Group, now: datetime) -> LaunchFailure:
    """Read a suspended Launch process as a failure: no instance will arrive.

    A person's suspension is a configuration; AWS's own, after a day of failed launches, is missing
    capacity.
    """
    by_aws = LAUNCH in group.suspended_by_aws
    failure_class = FailureClass.CAPACITY if by_aws else FailureClass.CONFIGURATION
    fix = "AWS suspended it, Spotkeeper resumes it" if by_aws else "resume it"
    message = f"the Launch process of {group.name} is suspended: {fix}"
    return LaunchFailure(at=now, failure_class=failure_class, message=message)


# --- a spot group that was deleted ----------------------------------------------------------------


def missing_group(name: str, memory: AvailabilityMemory) -> Group | None:
    """Return a deleted spot group as it is remembered: of its size, with no instances.

    None where nothing is remembered of it.
    """
    if memory.spot_seen is None or name not in memory.groups:
        return None
    size = memory.spot_seen
    return Group(name=name, desired=size, minimum=0, maximum=size, exists=False)


def restore_size(snapshot: Snapshot, memory: AvailabilityMemory) -> Snapshot:
    """Take a group that was created again with less for as large as it was.

    Its operator may have chosen another size, unless the load sizes the fleet or the group has its
    minimum.
    """
    group, fleet = snapshot.groups.spot, snapshot.fleet
    known = min(memory.spot_seen or 0, group.maximum, fleet.bounds.spot_max)
    chosen = group.desired > group.minimum and not fleet.sizing.enabled
    if not group.exists or not memory.spot_missing or chosen or group.desired >= known:
        return snapshot
    return replace(snapshot, groups=replace(snapshot.groups, spot=replace(group, desired=known)))


# --- outside of the group -------------------------------------------------------------------------


def overdue(memory: AvailabilityMemory, policy: AvailabilityPolicy, now: datetime) -> set[str]:
    """Name the detached instances past their deadline: nothing else ends what AWS left running."""
    begin = now - timedelta(seconds=policy.launch_deadline_s)
    return {i for i, at in memory.detached.items() if at <= begin}


def still_outside(memory: AvailabilityMemory, snapshot: Snapshot) -> dict[str, datetime]:
    """Return the detached instances that may run: those remembered, and those a sweep proved.

    One that is back in the group never left it, and one that was looked for in vain has ended. One
    that the role may not end is reported, and no longer this stack's.
    """
    sweep = snapshot.sweep or Sweep()
    detached = sweep.detached
    known = {
        i: at for i, at in {**detached, **memory.detached}.items() if i not in sweep.unproven_marks
    }
    if not known:
        return {}
    ended = set(snapshot.taken - (snapshot.running or frozenset()))
    if snapshot.running is not None:
        due = overdue(memory, snapshot.fleet.availability, snapshot.now)
        ended |= due - snapshot.running - detached.keys()
    group = snapshot.groups.spot
    ended |= {i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE}
    return {i: at for i, at in known.items() if i not in ended}


# --- all of it ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Both groups counted and the memory updated: everything that was seen, nothing decided.

    `risky` are the instances at risk now, `newly_risky` those that were not at risk in the previous
    turn, `unmark` those whose warning has lapsed and that still carry the mark. The failures are
    those that explain a gap, a suspended Launch process included. `moved` is how far on-demand has
    moved by a request whose answer was lost. `restored` is by how much the spot group is smaller
    than before it was deleted.
    """

    snapshot: Snapshot
    now: datetime
    policy: AvailabilityPolicy
    memory: AvailabilityMemory
    spot: Count
    on_demand: Count
    risk: Risk
    risky: frozenset[str]
    newly_risky: frozenset[str]
    unmark: tuple[str, ...]
    launching: Launching
    spot_failures: tuple[LaunchFailure, ...]
    on_demand_failures: tuple[LaunchFailure, ...]
    moved: int
    restored: int = 0

    @property
    def target_serving(self) -> int:
        """How many instances should serve, of either group."""
        return self.spot.target + self.risk.extra

    @property
    def shortfall(self) -> int:
        """How many of those are missing, with nothing that brings them soon enough (rule 3).

        Launching instances count, unless on-demand is warm and would serve sooner; then only the
        growth of the need is waited for, and what AWS ends another one for. One that tries a new
        version may never serve: its place is covered until it does.
        """
        spot, increases = self.spot, self.memory.pending_increases
        growth = sum([increase.count - increase.unproven for increase in increases])
        if self.policy.on_demand_warm:
            # One that is in service, and unproven, launches no more.
            others = max(spot.serving - spot.lasting, spot.tried - spot.unproven)
            waited_for = min(growth + others, spot.launching + spot.missing)
        else:
            waited_for = spot.launching + min(max(0, growth - spot.launching), spot.missing)
        # Further launches may have the fault of the first, and a second one is not ended for them.
        tried = max(spot.tried, min(1, spot.serving - spot.lasting))
        there = spot.lasting + spot.unproven + waited_for - tried
        # Further on-demand may have the new version, too, and none of it covers the other.
        return max(0, self.target_serving - there) + min(1, self.on_demand.tried)

    @property
    def short_now(self) -> int:
        """The part of the shortfall that cannot wait; warned instances still serve for the rest."""
        return max(0, self.shortfall - self.risk.deferral.instances)

    @property
    def deferred(self) -> bool:
        """Whether more on-demand will be needed, but not yet."""
        covered = self.on_demand.target - self.on_demand.at_risk
        return max(self.short_now, covered) < self.shortfall

    @property
    def failures(self) -> tuple[LaunchFailure, ...]:
        """The recent launch failures of both groups."""
        return (*self.spot_failures, *self.on_demand_failures)

    @property
    def both_short(self) -> bool:
        """Whether on-demand was requested, does not arrive, and AWS says why (rule 7)."""
        remedies = {remedy(failure.failure_class) for failure in self.on_demand_failures}
        return not remedies <= {Remedy.NONE} and self.on_demand.missing > 0 and self.unfilled > 0

    @property
    def unfilled(self) -> int:
        """How many instances are served by neither group at this moment."""
        spot, on_demand = self.spot, self.on_demand
        there = spot.serving + spot.unproven + on_demand.serving + on_demand.unproven
        return max(0, spot.target - there)
