"""What is known of fleets, their instances and their events, as values without words.

Every figure is known now, carries its age, or is None.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import pairwise, takewhile

from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.domain.availability.count import LAUNCH
from spotkeeper.domain.decision import (
    FAILED,
    OF_FLEETS,
    Action,
    Alarm,
    AvailabilityFigures,
    Awaited,
    Controller,
    DecisionRecord,
    HealthFigures,
    NewVersion,
    RequestKind,
    Suspect,
    Suspicion,
)
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Fleet, Instance, Phase
from spotkeeper.domain.load.load import SLOT_MS, Cluster, LoadDigest, WorkerLoad, milliseconds
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.money.ledger import LedgerItem, Life
from spotkeeper.domain.money.prices import PriceBook, priced
from spotkeeper.domain.permission import Control, Permission
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.domain.spread import NEVER, Place
from spotkeeper.turns.turn import ASK_UNTIL_S
from spotkeeper_operator.aws import Activity, Aws, read_activities
from spotkeeper_operator.rollout import Refresh
from spotkeeper_operator.status.looked import EC2, Looked, Reading
from spotkeeper_operator.text import STALE_TURN_S, age_from, extended, spoken

# A worker that finished a request in this time is live. Load and waits are those of the second
# time; which workers there were before it is read from longer ago.
LIVE_S = 60
LOAD_WINDOW_S = 120
# With fewer requests for each worker, chance moves its busy share.
_FEW = 5
# The first of several are named.
NAMED = 3
# The busy share is withheld if new or silent workers, were they idle, would make it less by this.
_UNSURE = 0.1


class State(StrEnum):
    """Whether a fleet serves with as many instances as are wanted.

    `IN_SERVICE`: as many are in service, and not all are known to serve: no request of some was
    logged in the last minute. That is usual under little load.
    """

    WHOLE = "whole"
    IN_SERVICE = "in service"
    NOT_WHOLE = "NOT WHOLE"
    UNKNOWN = "UNKNOWN"


class Cause(StrEnum):
    """What a fleet's state was judged by."""

    SERVES = "serves"
    GROUPS_MISSING = "groups_missing"
    TOO_FEW = "too_few"
    RECORDS_UNREAD = "records_unread"
    NO_TURN = "no_turn"
    GROUPS_UNREAD = "groups_unread"
    NOT_KNOWN_TO_SERVE = "not_known_to_serve"
    LOGS_UNREAD = "logs_unread"
    LOGS_UNCOUNTED = "logs_uncounted"
    NOBODY_SERVES = "nobody_serves"
    SUSPECTS = "suspects"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """A group; `offers` are the pools in which it may launch, unless it may not (`suspended`).

    AWS suspends the launches of a group that launched nothing for a day.
    """

    name: str
    desired: int
    in_service: int
    launching: int
    maximum: int
    suspended: bool
    suspended_by_aws: bool
    offers: tuple[str, ...]
    refresh: Refresh | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadNow:
    """What the newest search logs show of the workers whose instances are in service.

    `workers_live` finished a request in the last `LIVE_S` seconds: at least these are live.
    `workers_leaving` did, too, and their instances are in service no more.
    `busy` is the busy share of these until the newest log, None where too few requests or workers
    are logged to know it now; `wait_p95_s` is that of the requests that started lately, and
    `wait_promised_s` that of the share which the fleet's promise names.
    """

    workers_live: int
    workers_expected: int
    workers_leaving: int
    busy: float | None
    wait_p95_s: float
    wait_promised_s: float
    requests: int
    newest_log_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingNow:
    """The request queue as it was `age_s` ago.

    The oldest request had waited at least `oldest_at_least_s` at `oldest_at`; None without
    evidence.
    """

    requests: int
    in_flight: int
    age_s: float
    oldest_at_least_s: float | None
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Turns of a controller that failed, or were refused something, since the last that was not."""

    controller: Controller
    turns: int
    since: datetime
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingLaunches:
    """Launches that fail for one class: the newest, why, and since when turns see such failures."""

    failure_class: FailureClass
    at: datetime
    since: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The spot group's desired capacity was changed, and not by a turn."""

    at: datetime
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn in short."""

    at: datetime
    controller: Controller
    action: Action
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFigures:
    """What is known of a region from its report of `known_at`, and the share that its home set.

    `state` is empty, "leaving", "stale" or "gone". `price_usd` is a spot hour, egress included.
    What it serves on spot and on demand is None before its first report.
    """

    region: str
    cover: int
    ask: int
    serving: int | None
    on_demand: int | None
    price_usd: float | None
    refused_since: datetime | None
    refused: tuple[str, ...]
    known_at: datetime | None
    state: str


def region_figures(places: Mapping[str, Place]) -> tuple[RegionFigures, ...]:
    """Show regions as their home knows them, each with when that was known."""
    return tuple(
        RegionFigures(
            region=region,
            known_at=(at := None if (report := place.report).at == NEVER else report.at),
            cover=place.share.cover,
            ask=place.share.ask,
            serving=report.serving if at else None,
            on_demand=report.on_demand if at else None,
            price_usd=None if report.price is None else place.price,
            refused_since=report.since if report.refused else None,
            refused=tuple(sorted(report.refused)),
            state=place.standing,
        )
        for region, place in places.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """One fleet: whole or not, and what an operator asks next.

    `whole` says whether it serves with as many instances as are wanted, None when that is not known
    now. `known_to_serve` counts the instances in service of
    which a request was finished in the last minute: at least these serve. `load` and `waiting` are
    None when they are not known, and `unknown` gives the reason. Ages are in seconds, None where
    nothing was ever recorded; `turn_age_s` is the age of the last turn that worked. `availability`
    and `health` are the figures of each controller's newest record, as far as these are fresh,
    `suspects`, `awaited` and the `launches` that fail what these records name. `last_change` is the
    newest decision that changed something.

    `cause` says what `state` was judged by, and `since` when it began, None where nobody knows.
    `warned` instances serve until AWS takes them, `unfilled` were known to serve nowhere.
    `last_turn` is the last availability turn that worked. With `stale`, the last health turn missed
    search logs; `nobody_serves` is why it found that no worker serves. `regions` are those among
    which a home divides the need, `spot_max` is the document's. `outside` is the newest change of
    the spot group's capacity by somebody else. `new_version` is the one that began last, while
    there are two. Of the stack's search logs, `uncounted` messages wait and `dead` could not be
    read, as far as none was counted lately; None: their queue does not exist. Nothing is replaced
    before `maintenance_until`. `unread` is what the newest turns could not read and went on
    without. `failed` turns of the last minutes are those of controllers whose newest turn worked.
    `home_silent` names the home region whose share is overdue.
    """

    name: str
    whole: bool | None
    state: State
    cause: Cause
    since: datetime | None
    wanted: int | None
    in_service: int | None
    known_to_serve: int | None
    last_turn: Turn | None
    stale: bool
    nobody_serves: str
    groups: tuple[GroupStatus, ...]
    missing_groups: tuple[str, ...]
    warned: int
    unfilled: int
    availability: AvailabilityFigures | None
    health: HealthFigures | None
    suspects: tuple[Suspect, ...]
    awaited: tuple[Awaited, ...]
    launches: tuple[FailingLaunches, ...]
    load: LoadNow | None
    waiting: WaitingNow | None
    unknown: Mapping[str, str]
    promised_wait_s: float | None
    promised_share: float | None
    last_change: Turn | None
    turn_age_s: Mapping[Controller, float | None]
    failing: tuple[Failing, ...]
    log_age_s: float | None
    permission: Permission | None
    control: Control | None
    regions: tuple[RegionFigures, ...]
    spot_max: int
    outside: Outside | None = None
    new_version: NewVersion | None = None
    uncounted: int | None = 0
    dead: int | None = 0
    maintenance_until: datetime | None = None
    unread: tuple[str, ...] = ()
    failed: tuple[Failing, ...] = ()
    home_silent: str = ""

    @property
    def promise_missed(self) -> bool:
        """Whether requests that started lately waited longer than is promised, by over a tenth."""
        if self.promised_wait_s is None or self.load is None:
            return False
        return self.load.wait_promised_s > self.promised_wait_s * 1.1

    @property
    def unproven(self) -> int:
        """The spot instances in service that are not known to serve, as far as that is known."""
        if not (self.groups and self.availability):
            return 0
        seen = self.availability.spot_serving + self.availability.spot_at_risk
        silent = (self.in_service or 0) - (self.known_to_serve or 0)
        return max(0, min(silent, self.groups[0].in_service - seen))


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All fleets of a stack, the alarms that ring (None: not known), and what was not read."""

    stack: str
    region: str
    at: datetime
    fleets: tuple[FleetStatus, ...]
    ringing: tuple[str, ...] | None
    ringing_fleets: Mapping[str, tuple[str, ...]]
    troubles: tuple[str, ...]


def _failing(turns: Mapping[Controller, Sequence[DecisionRecord]]) -> tuple[Failing, ...]:
    return tuple(
        Failing(controller=each, turns=len(failed), since=failed[-1].at, error=failed[0].failure)
        for each, failed in turns.items()
        if failed
    )


def fleet_status(fleet: Fleet, looked: Looked, now: datetime) -> FleetStatus:
    """Put one fleet's status together."""
    records, groups = looked.records or (), looked.groups or {}
    turns = {each: [r for r in records if r.controller is each] for each in OF_FLEETS}
    newest = {each: [r for r in mine if r.rule != FAILED][:1] for each, mine in turns.items()}
    worked = {each: mine[0] for each, mine in newest.items() if mine}
    ages = {each: age_from(worked[each].at, now) if each in worked else None for each in turns}
    fresh = {each: r for each, r in worked.items() if age_from(r.at, now) <= STALE_TURN_S}
    failing = {each: [*takewhile(lambda r: r.failed, mine)] for each, mine in turns.items()}
    # What still makes the alarm of errors ring, although the newest turn worked.
    failed = {
        each: [r for r in mine if r.failed and age_from(r.at, now) <= FAILED_S]
        for each, mine in turns.items()
        if not failing[each]
    }
    tried = turns[Controller.AVAILABILITY]
    # What was between turns that are further apart is not known.
    near = takewhile(lambda two: age_from(two[1].at, two[0].at) <= STALE_TURN_S, pairwise(tried))
    unbroken = [*tried[:1], *(before for _, before in near)]
    names = (fleet.spot_group, fleet.on_demand_group)
    counted: list[GroupStatus] = []
    for group in (groups[name] for name in names if name in groups):
        phases = Counter(i.phase for i in group.instances if i.healthy)
        counted.append(
            GroupStatus(
                name=group.name,
                desired=group.desired,
                in_service=phases[Phase.IN_SERVICE],
                launching=phases[Phase.LAUNCHING],
                maximum=group.maximum,
                suspended=LAUNCH in group.suspended,
                suspended_by_aws=LAUNCH in group.suspended_by_aws,
                offers=group.offers,
                refresh=looked.refreshes.get(group.name),
            )
        )
    missing = () if looked.groups is None else tuple(n for n in names if n not in groups)
    turn, health = worked.get(Controller.AVAILABILITY), worked.get(Controller.HEALTH)
    wanted = known = None
    if spot := groups.get(fleet.spot_group):
        # What the load or an operator wants.
        wanted = spot.desired
        if fleet.is_shared and turn and turn.availability:
            # The spot group holds what is on trial for other regions, too.
            wanted = turn.availability.spot_desired
    if looked.groups is not None and looked.digests is not None:
        lately = now - timedelta(seconds=LIVE_S)
        workers = (w for d in looked.digests for w in d.workers if w.last_finished >= lately)
        known = len({w.instance_id for w in workers} & looked.serving)
    log_age = looked.log_age(health, now)
    load, queue = _load_now(fleet, looked, log_age, now), looked.queue
    unread = "the decision records could not be read"
    unknown = {"load": load, "waiting": queue, "turns": unread if looked.records is None else None}
    if log_age is None and None in (looked.records, looked.digests):
        unknown["newest search log"] = "unknown"
    waiting = None
    if isinstance(queue, QueueLength):
        oldest = _oldest(looked, queue, log_age, now) if queue.waiting else None
        at, oldest_s = oldest or (None, None)
        waiting = WaitingNow(
            requests=queue.waiting,
            in_flight=queue.in_flight,
            age_s=age_from(queue.seen_at, now) if queue.seen_at else 0.0,
            oldest_at_least_s=oldest_s,
            oldest_at=at,
        )
    changed = next((record for record in records if record.changed), None)
    figures = turn.availability if turn and turn.availability else AvailabilityFigures()
    alarms = {alarm for record in fresh.values() for alarm in record.alarms}
    in_service = sum(group.in_service for group in counted)
    # AWS takes them within two minutes; those that were replaced have left their group.
    warned = max(0, figures.spot_at_risk - figures.early_replacements)
    status = FleetStatus(
        name=fleet.name,
        whole=None,
        state=State.UNKNOWN,
        cause=Cause.NO_TURN,
        since=None,
        wanted=wanted,
        in_service=in_service if counted else None,
        known_to_serve=known,
        last_turn=extended(Turn, turn) if turn else None,
        stale=health is not None and health.stale,
        nobody_serves=health.nobody_serves if health else "",
        groups=tuple(counted),
        missing_groups=missing,
        warned=min(warned, in_service) if Controller.AVAILABILITY in fresh else 0,
        unfilled=figures.shortfall_unfilled,
        availability=turn.availability if turn and turn.controller in fresh else None,
        health=health.health if health and health.controller in fresh else None,
        suspects=tuple(s for r in fresh.values() for s in r.suspects),
        awaited=tuple(
            replace(one, until=one.until and max(one.until, now))
            for record in fresh.values()
            for one in record.awaited
        ),
        launches=_failing_launches(unbroken) if fresh else (),
        load=None if isinstance(load, str) else load,
        waiting=waiting,
        unknown={name: why for name, why in unknown.items() if isinstance(why, str)},
        promised_wait_s=fleet.objective.wait_s if fleet.objective else None,
        promised_share=fleet.objective.share if fleet.objective else None,
        last_change=extended(Turn, changed, reason=changed.change) if changed else None,
        turn_age_s=ages,
        failing=_failing(failing),
        failed=_failing(failed),
        log_age_s=log_age,
        permission=looked.control.permission(fleet.mode, now) if looked.control else None,
        control=looked.control,
        regions=region_figures(health.regions) if health else (),
        spot_max=fleet.bounds.spot_max,
        outside=None if fleet.is_shared else _outside(records),
        new_version=health.new_version if health and health.controller in fresh else None,
        uncounted=looked.uncounted,
        dead=looked.dead,
        maintenance_until=fleet.maintenance_until(now),
        unread=tuple(what for record in fresh.values() for what in record.unread),
        home_silent=(fleet.home or "") if Alarm.SHARE_EXPIRED in alarms else "",
    )
    state, cause = _judged(status, looked, fresh)
    since = _since(
        cause, status, unbroken if status.availability and unbroken[0].availability else ()
    )
    whole = {State.WHOLE: True, State.NOT_WHOLE: False}.get(state)
    return replace(status, whole=whole, state=state, cause=cause, since=since)


def _failing_launches(turns: Sequence[DecisionRecord]) -> tuple[FailingLaunches, ...]:
    """Return the classes that the newest turn names, each since turns name it without a gap."""
    found: list[FailingLaunches] = []
    for kind in dict.fromkeys([f.failure_class for record in turns[:1] for f in record.failures]):
        mine = ([f for f in record.failures if f.failure_class is kind] for record in turns)
        run = [failure for failures in takewhile(bool, mine) for failure in failures]
        newest = max(run, key=lambda failure: failure.at)
        since = min(failure.at for failure in run)
        found.append(
            FailingLaunches(failure_class=kind, at=newest.at, since=since, why=newest.text)
        )
    return tuple(found)


# A turn lasts no longer.
A_TURN = timedelta(seconds=60)
FAILED_S = 300.0
# What changes a spot group's desired capacity.
_RESIZING = frozenset({
    RequestKind.RESIZE_SPOT, RequestKind.RESTORE_SPOT, RequestKind.END,
})  # fmt: skip


def _outside(records: Sequence[DecisionRecord]) -> Outside | None:
    """Find the newest change of the desired capacity that no turn between two looks requested."""
    looks = [(r.at, r.availability.spot_desired) for r in records if r.availability]
    for (at, after), (earlier, before) in pairwise(looks):
        # A turn that began before the look may have made its request after it.
        turns = (r for r in records if earlier - A_TURN <= r.at <= at)
        if before != after and not any(
            outcome.request.kind in _RESIZING for turn in turns for outcome in turn.outcomes
        ):
            return Outside(at=at, before=before, after=after)
    return None


def _judged(
    status: FleetStatus, looked: Looked, fresh: Mapping[Controller, DecisionRecord]
) -> tuple[State, Cause]:
    """Judge a fleet by what is there and by the last turns that worked."""
    wanted, known = status.wanted, status.known_to_serve
    if status.missing_groups:
        return State.NOT_WHOLE, Cause.GROUPS_MISSING
    if wanted is not None and (status.in_service or 0) - status.warned < wanted:
        return State.NOT_WHOLE, Cause.TOO_FEW
    if looked.records is None:
        return State.UNKNOWN, Cause.RECORDS_UNREAD
    if Controller.AVAILABILITY not in fresh:
        return State.UNKNOWN, Cause.NO_TURN
    if wanted is None:
        return State.UNKNOWN, Cause.GROUPS_UNREAD
    at_risk = status.availability.spot_at_risk if status.availability else 0
    if status.unfilled > at_risk:
        return State.UNKNOWN, Cause.NOT_KNOWN_TO_SERVE
    if known is None:
        return State.IN_SERVICE, Cause.LOGS_UNREAD
    if known >= wanted:
        return State.WHOLE, Cause.SERVES
    if status.uncounted is None:
        return State.UNKNOWN, Cause.LOGS_UNCOUNTED
    if health := fresh.get(Controller.HEALTH):
        if status.uncounted and (health.stale or Alarm.NOBODY_SERVES in health.alarms):
            return State.UNKNOWN, Cause.LOGS_UNCOUNTED
        if Alarm.NOBODY_SERVES in health.alarms:
            return State.UNKNOWN, Cause.NOBODY_SERVES
        if health.health and health.health.workers_suspect:
            return State.UNKNOWN, Cause.SUSPECTS
    return State.IN_SERVICE, Cause.SERVES


def _since(cause: Cause, status: FleetStatus, turns: Sequence[DecisionRecord]) -> datetime | None:
    """Return since when what is wrong has been so: unknown after a turn that is old or failed."""
    match cause:
        case Cause.SUSPECTS:
            return min((one.since for one in status.suspects), default=None)
        case Cause.NO_TURN:
            return next((each.since for each in status.failing), None)
        case Cause.TOO_FEW | Cause.NOT_KNOWN_TO_SERVE:
            counted = [(r.at, r.availability and r.availability.shortfall_unfilled) for r in turns]
            return min((at for at, _ in takewhile(lambda each: each[1], counted)), default=None)
        case _:
            return None


def _load_now(fleet: Fleet, looked: Looked, log_age: float | None, now: datetime) -> LoadNow | str:
    """Sum the newest search logs up, or say why nothing is known of them."""
    if looked.groups is None or looked.digests is None:
        return f"the {'groups' if looked.groups is None else 'search logs'} could not be read"
    serving = looked.serving
    # Logs may be minutes late: all requests of a digest finished about since the window's begin.
    since_ms = milliseconds(now - timedelta(seconds=LOAD_WINDOW_S + LIVE_S))
    fresh = [
        digest
        for digest in looked.digests
        if min((min(w.busy_ms) * SLOT_MS for w in digest.workers), default=0)
        + round(1000 * digest.service.quantile_s(1.0))
        >= since_ms
    ]
    load = summarise(fresh, now, LOAD_WINDOW_S, slots=fleet.slots)
    everyone = summarise(looked.digests, now, LOAD_WINDOW_S, slots=fleet.slots)
    if load.newest is None or not load.finished:
        why = "" if serving else ", and no instance is in service"
        if log_age is None:
            when = "ever" if looked.records is not None else "lately"
            return f"no search log was {when} received{why}"
        behind = {
            w.instance_id or w.worker_id
            for digest in looked.digests
            for w in digest.workers
            if digest.sent_at - w.last_finished > timedelta(seconds=LOAD_WINDOW_S)
        }
        if log_age <= LOAD_WINDOW_S and behind:
            names = ", ".join(sorted(behind)[:NAMED])
            return f"logs of {names} arrive minutes late: are their clocks right?"
        return f"the newest search log is {spoken(log_age)} old{why}"

    def is_there(worker: WorkerLoad) -> bool:
        return worker.cluster is Cluster.ONPREM or worker.instance_id in serving

    lately = now - timedelta(seconds=LIVE_S)
    # Logs of the last seconds are on their way: nobody was idle after the newest one.
    until = summarise(fresh, now, LOAD_WINDOW_S, until=load.newest, slots=fleet.slots)
    there = [w for w in until.workers if is_there(w)]
    served = [w for w in everyone.workers if w.last_finished >= lately]
    live = sum(map(is_there, served))
    onprem = sum(w.cluster is Cluster.ONPREM for w in there)
    expected = len(serving) * fleet.workers_per_instance + (fleet.onprem_workers or onprem)
    known = max(expected, len(there))
    # One that stopped taking requests is no idle one: the others wait for nobody.
    busy_of = [w for w in there if w.last_finished >= lately]
    return LoadNow(
        workers_live=live,
        workers_expected=expected,
        workers_leaving=len(served) - live,
        busy=_busy(busy_of, looked.digests, known, fleet.slots),
        wait_p95_s=load.waits.quantile_s(0.95),
        wait_promised_s=load.waits.quantile_s(fleet.objective.share if fleet.objective else 0.95),
        requests=load.finished,
        newest_log_age_s=age_from(load.newest, now),
    )


def _busy(
    workers: Sequence[WorkerLoad], digests: Iterable[LoadDigest], expected: int, slots: int
) -> float | None:
    """Return the busy share of workers over the window.

    A worker was idle before its first request in the window where it served before the window. Few
    logs may be little load or logs on their way.
    """
    busy_s = sum(w.busy_s for w in workers)
    few = sum(w.finished for w in workers) < _FEW * expected
    if few and busy_s < expected * slots * LOAD_WINDOW_S / 2:
        return None
    first: dict[tuple[str, str], int] = {}
    for worker in (w for d in digests for w in d.workers):
        key = (worker.instance_id, worker.worker_id)
        first[key] = min(first.get(key, 1 << 62), *worker.busy_ms)
    begins = [w.began for w in workers if w.began]
    idle_s = sum(
        (w.began - min(begins)).total_seconds()
        for w in workers
        if w.began and first[w.instance_id, w.worker_id] * SLOT_MS < milliseconds(min(begins))
    )
    capacity_s = sum(w.capacity_s for w in workers) + slots * idle_s
    if not capacity_s:
        return None
    at_least = busy_s / max(capacity_s, expected * slots * LOAD_WINDOW_S)
    return None if busy_s / capacity_s - at_least > _UNSURE else busy_s / capacity_s


def _oldest(
    looked: Looked, queue: QueueLength, log_age: float | None, now: datetime
) -> tuple[datetime, float] | None:
    """Bound the oldest request's wait from below, at an instant.

    While requests wait, nothing is in flight, no fewer wait than before and no log arrives, nobody
    takes one. A turn may read the queue until `ASK_UNTIL_S` after its record's time. Otherwise
    CloudWatch's measure holds for when it was taken.
    """
    waiting, since = queue.waiting, None
    looks = [r for r in looked.records or () if r.controller is Controller.HEALTH]
    for record in looks if not queue.in_flight else ():
        figures = record.health or HealthFigures()
        queued = figures.requests_queued
        served_since = log_age is not None and now - timedelta(seconds=log_age) > record.at
        if not queued or queued > waiting or figures.requests_in_flight or served_since:
            break
        waiting, since = queued, record.at
    waited_s = (now - since).total_seconds() - ASK_UNTIL_S if since else 0.0
    return (now, waited_s) if waited_s > 0 else looked.oldest


def read_status(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> StackStatus:
    """Read a stack's status; what could not be read is among its troubles.

    Raises `Gone` for an unknown stack and `OperatorError` for an unknown fleet.
    """
    reading = Reading(aws, stack_name, fleet, now)
    fleets = tuple(fleet_status(each, looked, now) for each, looked in reading.looked())
    ringing = reading.ringing()
    return StackStatus(
        stack=reading.stack.name,
        region=aws.region,
        at=now,
        fleets=fleets,
        ringing=None if ringing is None else tuple(ringing),
        ringing_fleets=ringing or {},
        troubles=tuple(reading.troubles),
    )


# Events of this time are listed, at most this many of a fleet.
EVENTS_OF = timedelta(hours=3)
EVENTS_AT_MOST = 50
_ID = re.compile(r"\bi-[0-9a-f]+\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One instance as it is now; what is not known is None."""

    instance_id: str
    market: PurchaseOption
    zone: str
    instance_type: str
    state: str
    age_s: float | None
    workers_live: int | None
    workers_expected: int
    counted: bool
    why: str
    suspicion: Suspicion | None
    suspect_since: datetime | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a turn changed, or that failed; `times` alike followed each other."""

    at: datetime
    last: datetime
    what: str
    failed: bool
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetInstances:
    """The instances of a fleet; ages are in seconds, costs in USD."""

    name: str
    instances: tuple[InstanceStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvents:
    """The last events of a fleet; `left_out` counts the earlier ones that are not listed."""

    name: str
    events: tuple[Event, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Details[Listed: (FleetInstances, FleetEvents)]:
    """A list of each fleet, and what could not be read."""

    stack: str
    at: datetime
    fleets: tuple[Listed, ...]
    troubles: tuple[str, ...]


def read_instances(
    aws: Aws, stack_name: str, fleet: str | None, now: datetime
) -> Details[FleetInstances]:
    """Read every instance of the fleets; raises `Gone` and `OperatorError`."""
    reading = Reading(aws, stack_name, fleet, now)
    reader = AutoScalingReader(aws.autoscaling, aws.ec2)
    fleets: list[FleetInstances] = []
    for each, looked in reading.looked():
        name, there = each.name, looked.groups or {}
        groups = [g for g in (each.spot_group, each.on_demand_group) if g in there]
        marked = partial(reader.marked, groups)
        marks = reading.attempt(EC2, f"{name}: marks are not known", marked)
        draining = {mark.instance_id: mark.gone_at for mark in marks or ()}
        ids = [i.instance_id for group in groups for i in there[group].instances] + [*draining]
        lived = partial(InstanceLives(aws.ec2).of, ids, now)
        lives = reading.attempt(EC2, f"{name}: ages are not known", lived) or {}
        spot = [life for life in lives.values() if life.option is PurchaseOption.SPOT]
        cost = partial(
            aws.prices,
            pools={life.pool for life in spot},
            types={life.pool.partition("/")[2] for life in lives.values()},
            since=min((life.since for life in spot), default=now),
            until=now,
        )
        book = reading.attempt("prices", f"{name}: prices are not known", cost)
        rows = instances_of(each, looked, lives, draining, book, now)
        fleets.append(FleetInstances(name=name, instances=rows))
    return Details(
        stack=reading.stack.name, at=now, fleets=(*fleets,), troubles=(*reading.troubles,)
    )


def instances_of(
    fleet: Fleet,
    looked: Looked,
    lives: Mapping[str, Life],
    draining: Mapping[str, datetime],
    book: PriceBook | None,
    now: datetime,
) -> tuple[InstanceStatus, ...]:
    """Put the instances of both groups together, spot first, then those that left a group."""
    groups = looked.groups or {}
    members = [
        (market, instance)
        for market, name in (
            (PurchaseOption.SPOT, fleet.spot_group),
            (PurchaseOption.ON_DEMAND, fleet.on_demand_group),
        )
        if name in groups
        for instance in sorted(groups[name].instances, key=lambda i: i.instance_id)
    ]
    there = {instance.instance_id for _, instance in members}
    members += [
        (life.option, Instance(instance_id=i, pool=life.pool, phase=Phase.LEAVING, healthy=True))
        for i in sorted(draining.keys() - there)
        if (life := lives.get(i))
    ]
    live = Counter(
        worker.instance_id
        for worker in summarise(looked.digests or (), now, LOAD_WINDOW_S).workers
        if (now - worker.last_finished).total_seconds() <= LIVE_S
    )
    # What the newest health turn holds against single instances.
    health = next((r for r in looked.records or () if r.controller is Controller.HEALTH), None)
    suspects = health.suspects if health else ()
    judged = {one.instance_id: one for one in suspects if not one.on_premises}
    instances: list[InstanceStatus] = []
    for market, instance in members:
        name, gone_at = instance.instance_id, draining.get(instance.instance_id)
        state: str = instance.phase if instance.healthy else "unhealthy"
        counts = False
        if name not in there and gone_at:
            state, why = "detached", f"it left its group and drains until {gone_at:%H:%M:%S}"
        elif instance.phase is Phase.LEAVING:
            why = "it leaves its group"
        elif not instance.healthy:
            why = "AWS finds it unhealthy and replaces it"
        elif gone_at is not None:
            why = f"it drains until {gone_at:%H:%M:%S}"
        elif instance.phase is Phase.LAUNCHING:
            why = "it launches"
        elif suspect := judged.get(name):
            why = suspect.why
        else:
            counts, why = True, "in service; no request finished in the last minute"
            if looked.digests is None:
                why = "in service; its search logs could not be read"
            elif live[name]:
                why = "it serves"
        zone, _, instance_type = instance.pool.partition("/")
        suspect = judged.get(name)
        life = lives.get(name)
        instances.append(
            InstanceStatus(
                instance_id=name,
                market=market,
                zone=zone,
                instance_type=instance_type,
                state=state,
                age_s=age_from(life.since, now) if life else None,
                workers_live=None if looked.digests is None else live[name],
                workers_expected=fleet.workers_per_instance,
                counted=counts,
                why=why,
                suspicion=suspect.kind if suspect else None,
                suspect_since=suspect.since if suspect else None,
                cost_usd=_cost(fleet, life, book, now) if life and book else None,
            )
        )
    return tuple(instances)


def _cost(fleet: Fleet, life: Life, book: PriceBook, now: datetime) -> float | None:
    item = LedgerItem(
        fleet=fleet.name,
        instance_id=life.instance_id,
        pool=life.pool,
        option=life.option,
        since=life.since,
    )
    lives = priced([item], book, life.since, now)
    # A spot instance without a list price is priced all the same.
    known = [p.paid for p in lives if p.paid > 0 or not p.unpriced_h]
    return sum(known) if known else None


def read_events(
    aws: Aws, stack_name: str, fleet: str | None, now: datetime
) -> Details[FleetEvents]:
    """Read the last changes and failures; raises `Gone` and `OperatorError`."""
    reading = Reading(aws, stack_name, fleet, now)
    since = now - EVENTS_OF
    fleets: list[FleetEvents] = []
    for each in reading.fleets:
        name = each.name
        read = partial(DecisionRecords.between, fleet=name, since=since, until=now)
        events = list(_of_records(reading.records(name, read) or ()))
        for group in (each.spot_group, each.on_demand_group):
            activities = reading.attempt(
                "Auto Scaling",
                f"{group}: activities are not known",
                partial(read_activities, aws, group, since, now),
            )
            events += _of_activities(activities or ())
        rows = folded(events)
        listed, left_out = rows[-EVENTS_AT_MOST:], len(rows[:-EVENTS_AT_MOST])
        fleets.append(FleetEvents(name=name, events=listed, left_out=left_out))
    return Details(
        stack=reading.stack.name, at=now, fleets=(*fleets,), troubles=(*reading.troubles,)
    )


def _of_activities(activities: Iterable[Activity]) -> Iterator[Event]:
    """Tell of activities; instances of one group, second and cause are one event."""
    together: dict[tuple[object, ...], list[Activity]] = {}
    for number, one in enumerate(activities):
        cause = _ID.sub("", one.cause)
        key = (number,) if one.failed else (one.at.replace(microsecond=0), one.what[:12], cause)
        together.setdefault(key, []).append(one)
    for same in together.values():
        first = same[0]
        parts = [first.group, first.cause]
        if not first.failed:
            ids = ", ".join(i for one in same for i in one.instances)
            cause = " ".join(_ID.sub("", first.cause).split())
            what = "AWS ended" if first.taken else first.what.partition(": ")[0]
            parts = [first.group, what, *([ids] if ids else []), cause]
        yield Event(at=first.at, last=first.at, what=": ".join(parts), failed=first.failed)


def _of_records(records: Iterable[DecisionRecord]) -> Iterator[Event]:
    for record in records:
        failure = record.failure
        if record.rule == FAILED:
            what = f"{record.controller}: {failure}"
        elif record.changed or failure:
            done = record.change if record.changed else record.reason
            why = "; ".join(filter(None, [done, failure]))
            what = f"{record.controller}: {record.action} [{record.rule}] {why}"
        else:
            continue
        yield Event(at=record.at, last=record.at, what=what, failed=bool(failure))


def folded(events: Iterable[Event]) -> tuple[Event, ...]:
    """Order events, oldest first, and count those alike that follow each other."""
    rows: list[Event] = []
    latest: dict[str, int] = {}
    for event in sorted(events, key=lambda one: one.at):
        place = latest.get(event.what)
        if place is not None and place >= len(rows) - 2:
            before = rows[place]
            rows[place] = replace(before, last=event.at, times=before.times + 1)
        else:
            latest[event.what] = len(rows)
            rows.append(event)
    return tuple(rows)
