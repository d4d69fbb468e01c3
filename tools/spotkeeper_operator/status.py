"""Is it whole? The state of each fleet, its instances and its events: as text and as JSON.

Every figure is known now, carries its age, or is withheld: a screen is read when things fail.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import takewhile
from typing import Any

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords, Records
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.request_queues import EveryRequestQueue
from spotkeeper.domain.decision import FAILED, OF_FLEETS, Action, Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet, Group, Instance, Phase
from spotkeeper.domain.load.load import SLOT_MS, Cluster, LoadDigest, WorkerLoad, milliseconds
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.money.ledger import LedgerItem, Life
from spotkeeper.domain.money.prices import PriceBook, priced
from spotkeeper.domain.permission import Control, Permission
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.ports import FleetError, TimedOut
from spotkeeper.turns.turn import ASK_UNTIL_S
from spotkeeper_operator.aws import Activity, Aws, chosen, read_activities
from spotkeeper_operator.text import (
    STALE_TURN_S,
    age_from,
    as_json,
    labelled,
    paragraphs,
    spoken,
)

# A worker that finished a request in this time is live. Load and waits are those of the second
# time; which workers there were before it is read from the third.
LIVE_S = 60
LOAD_WINDOW_S = 120
LOGS_READ_S = 300
# With fewer requests for each worker, chance moves its busy share.
_FEW = 5
# The busy share is withheld if new or silent workers, were they idle, would make it less by this.
_UNSURE = 0.1
# The fields of the last change that status shows.
OF_A_CHANGE = ("at", "controller", "action", "rule", "reason")
# What a later part of the status has as of now, or what is too old to be shown without its age.
_TOLD_ELSEWHERE = frozenset({
    "LoadRate", "OfferedLoad", "WorkersLive", "OnPremWorkersLive", "WaitP50", "WaitP95",
    "RequestsQueued", "RequestsInFlight", "SearchLogAge", "ArrivalRate",
})  # fmt: skip


class State(StrEnum):
    """Whether a fleet serves with as many instances as are wanted.

    `IN_SERVICE`: as many are in service, and not all are known to serve: no request of some was
    logged in the last minute. That is usual under little load.
    """

    WHOLE = "whole"
    IN_SERVICE = "in service"
    NOT_WHOLE = "NOT WHOLE"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    name: str
    desired: int
    in_service: int
    launching: int


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
class FleetStatus:
    """One fleet: whole or not, and what an operator asks next.

    `whole` is None when that is not known now. `known_to_serve` counts the instances in service of
    which a request was finished in the last minute: at least these serve. `load` and `waiting` are
    None when they are not known, and `unknown` gives the reason. Ages are in seconds, None where
    nothing was ever recorded; `turn_age_s` is the age of the last turn that worked. `seen` are the
    figures of both controllers' newest records, as far as these are fresh and no other part is
    newer. `last_change` is the newest decision that changed something, its reason what that was.
    """

    name: str
    state: State
    why: str
    wanted: int | None
    in_service: int | None
    known_to_serve: int | None
    last_turn: str | None
    groups: tuple[GroupStatus, ...]
    missing_groups: tuple[str, ...]
    seen: Mapping[str, float]
    load: LoadNow | None
    waiting: WaitingNow | None
    unknown: Mapping[str, str]
    promised_wait_s: float | None
    promised_share: float | None
    last_change: DecisionRecord | None
    turn_age_s: Mapping[Controller, float | None]
    failing: tuple[Failing, ...]
    log_age_s: float | None
    permission: Permission | None
    control: Control | None

    @property
    def whole(self) -> bool | None:
        """Whether the fleet serves with as many instances as are wanted; None if not known."""
        return {State.WHOLE: True, State.NOT_WHOLE: False}.get(self.state)

    @property
    def promise_missed(self) -> bool:
        """Whether requests that started lately waited longer than is promised, by over a tenth."""
        if self.promised_wait_s is None or self.load is None:
            return False
        return self.load.wait_promised_s > self.promised_wait_s * 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All fleets of a stack, the alarms that ring (None: not known), and what was not read."""

    stack: str
    region: str
    at: datetime
    fleets: tuple[FleetStatus, ...]
    ringing: tuple[str, ...] | None
    troubles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was read of one fleet, None where a read failed; `records` are newest first.

    `queue` is the request queue's length, or why it is not known. `oldest` is the age of its
    oldest message and when it was measured.
    """

    groups: Mapping[str, Group] | None
    records: Sequence[DecisionRecord] | None
    digests: Sequence[LoadDigest] | None
    queue: QueueLength | str
    oldest: tuple[datetime, float] | None = None
    control: Control | None = field(default_factory=Control)

    @property
    def serving(self) -> frozenset[str]:
        """The instances that are in service and healthy."""
        members = (i for group in (self.groups or {}).values() for i in group.instances)
        return frozenset(
            i.instance_id for i in members if i.healthy and i.phase is Phase.IN_SERVICE
        )

    def log_age(self, health: DecisionRecord | None, now: datetime) -> float | None:
        """The age of the newest search log, by the table or what the last turn saw there."""
        logs = (w.last_finished for d in self.digests or () for w in d.workers)
        known = [age_from(at, now) for at in logs]
        if health and (age := health.seen.get("SearchLogAge")) is not None:
            known.append(max(0.0, age + (now - health.at).total_seconds()))
        return min(known, default=None)


def fleet_status(fleet: Fleet, looked: Looked, now: datetime) -> FleetStatus:
    """Put one fleet's status together."""
    records, groups = looked.records or (), looked.groups or {}
    turns = {each: [r for r in records if r.controller is each] for each in OF_FLEETS}
    worked = {
        each: next((r for r in mine if r.rule != FAILED), None) for each, mine in turns.items()
    }
    ages = {each: age_from(r.at, now) if r else None for each, r in worked.items()}
    fresh = {each: r for each, r in worked.items() if r and (ages[each] or 0.0) <= STALE_TURN_S}
    failing = tuple(
        Failing(controller=each, turns=len(failed), since=failed[-1].at, error=failed[0].failure)
        for each, mine in turns.items()
        if (failed := [*takewhile(lambda record: record.failure, mine)])
    )
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
            )
        )
    missing = () if looked.groups is None else tuple(n for n in names if n not in groups)
    turn, health = worked[Controller.AVAILABILITY], worked[Controller.HEALTH]
    wanted = known = None
    if spot := groups.get(fleet.spot_group):
        # What the load or an operator wants.
        wanted = spot.desired
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
        found = _oldest(looked, queue, log_age, now) if queue.waiting else None
        at, oldest_s = found or (None, None)
        waiting = WaitingNow(
            requests=queue.waiting,
            in_flight=queue.in_flight,
            age_s=age_from(queue.seen_at, now) if queue.seen_at else 0.0,
            oldest_at_least_s=oldest_s,
            oldest_at=at,
        )
    changes = ((record, changed(record)) for record in records)
    figures = [it for r in fresh.values() for it in r.seen.items() if it[0] not in _TOLD_ELSEWHERE]
    status = FleetStatus(
        name=fleet.name,
        state=State.UNKNOWN,
        why="",
        wanted=wanted,
        in_service=sum(group.in_service for group in counted) if counted else None,
        known_to_serve=known,
        last_turn=turn.reason if turn else None,
        groups=tuple(counted),
        missing_groups=missing,
        seen=dict(figures),
        load=None if isinstance(load, str) else load,
        waiting=waiting,
        unknown={name: why for name, why in unknown.items() if isinstance(why, str)},
        promised_wait_s=fleet.objective.wait_s if fleet.objective else None,
        promised_share=fleet.objective.share if fleet.objective else None,
        last_change=next((replace(r, reason=what) for r, what in changes if what), None),
        turn_age_s=ages,
        failing=failing,
        log_age_s=log_age,
        permission=looked.control.permission(fleet.mode, now) if looked.control else None,
        control=looked.control,
    )
    state, why = _state(status, looked, turn, health, now)
    return replace(status, state=state, why="; ".join([why, *_also(status, why)]))


def _also(status: FleetStatus, why: str) -> Iterator[str]:
    """Name what a headline must not leave out, whatever the state."""
    # All may have served since the turn that suspects some.
    there, known = status.in_service or 0, status.known_to_serve or 0
    suspect = status.seen.get("WorkersSuspect") if known < there else None
    if suspect and "may not work" not in why:
        yield f"{suspect:g} may not work"
    if status.waiting and (count := status.waiting.requests):
        yield "1 request waits" if count == 1 else f"{count} requests wait"
    if status.promise_missed:
        yield "its promise is NOT KEPT"
    if status.failing:
        yield f"turns are FAILING: {', '.join(it.controller for it in status.failing)}"


def _state(
    status: FleetStatus,
    looked: Looked,
    turn: DecisionRecord | None,
    health: DecisionRecord | None,
    now: datetime,
) -> tuple[State, str]:
    """Judge a fleet by what is there and by the last turns that worked, and say why."""
    wanted, known = status.wanted, status.known_to_serve
    if missing := status.missing_groups:
        verb = "does" if len(missing) == 1 else "do"
        return State.NOT_WHOLE, f"{' and '.join(missing)} {verb} not exist"
    there = sum(group.in_service for group in status.groups)
    age_s = age_from(turn.at, now) if turn else 0.0
    unfilled = turn.seen.get("ShortfallUnfilled", 0.0) if turn else 0.0
    # AWS takes them within two minutes; those that were replaced have left their group.
    warned = 0
    if turn and age_s <= STALE_TURN_S:
        seen = turn.seen
        warned = max(0, int(seen.get("SpotAtRisk", 0) - seen.get("EarlyReplacements", 0)))
        warned = min(warned, there)
    if wanted is not None and there - warned < wanted:
        launching = sum(group.launching for group in status.groups)
        told = f"{there - warned} of {wanted} wanted are in service"
        more = "1 more is" if warned == 1 else f"{warned} more are"
        told += f", {more} warned" if warned else ""
        told += f", {launching} launching" if launching else ""
        told += f"; {_ago(age_s)}: {turn.reason}" if turn and unfilled > 0 else ""
        return State.NOT_WHOLE, told
    if looked.records is None:
        return State.UNKNOWN, "the decision records could not be read"
    of_ours = (it for it in status.failing if it.controller is Controller.AVAILABILITY)
    error = next((f": {it.error}" for it in of_ours), "")
    if turn is None:
        return State.UNKNOWN, f"no availability turn has succeeded yet{error}"
    if age_s > STALE_TURN_S:
        return State.UNKNOWN, f"no availability turn has succeeded for {spoken(age_s)}{error}"
    if wanted is None:
        return State.UNKNOWN, "the groups could not be read"
    unfilled -= turn.seen.get("SpotAtRisk", 0.0)
    if unfilled > 0:
        told = f"{wanted} wanted are in service, and {unfilled:g} of them were not known to serve"
        return State.UNKNOWN, f"{told} {_ago(age_s)}: {turn.reason}"
    told = f"{wanted} wanted, {there} in service"
    if known is None:
        return State.IN_SERVICE, f"{told}; the search logs could not be read"
    told = f"{told}, {known} served in the last minute"
    if known >= wanted:
        return State.WHOLE, told
    # The instances that the last health turn suspects, or all of them, with its reasons.
    if health and (age_s := age_from(health.at, now)) <= STALE_TURN_S:
        parts = health.reason.split("; ")
        if health.seen.get("NobodyServes"):
            nobody = "; ".join(part for part in parts if "nobody serves" in part)
            return State.UNKNOWN, f"{told}; {_ago(age_s)}: {nobody}"
        if suspect := health.seen.get("WorkersSuspect"):
            named = "; ".join(part for part in parts if part.startswith("i-"))
            told = f"{told}; {suspect:g} may not work ({_ago(age_s)}): {named}"
            return State.UNKNOWN, told
    return State.IN_SERVICE, told


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
    if load.newest is None or not load.finished:
        why = "" if serving else ", and no instance is in service"
        if log_age is None:
            when = "ever" if looked.records is not None else "lately"
            return f"no search log was {when} received{why}"
        return f"the newest search log is {spoken(log_age)} old{why}"

    def is_there(worker: WorkerLoad) -> bool:
        return worker.cluster is Cluster.ONPREM or worker.instance_id in serving

    lately = now - timedelta(seconds=LIVE_S)
    # Logs of the last seconds are on their way: nobody was idle after the newest one.
    until = summarise(fresh, now, LOAD_WINDOW_S, until=load.newest, slots=fleet.slots)
    there = [w for w in until.workers if is_there(w)]
    served = [w for w in load.workers if w.last_finished >= lately]
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
        queued = record.seen.get("RequestsQueued")
        served_since = log_age is not None and now - timedelta(seconds=log_age) > record.at
        if not queued or queued > waiting or record.seen.get("RequestsInFlight") or served_since:
            break
        waiting, since = int(queued), record.at
    waited_s = (now - since).total_seconds() - ASK_UNTIL_S if since else 0.0
    return (now, waited_s) if waited_s > 0 else looked.oldest


def changed(record: DecisionRecord) -> str:
    """Say what a turn changed, or nothing: what AWS refused or a turn only observed is no change.

    A turn that holds the size may replace instances.
    """
    done = [o.asked for o in record.outcomes if not o.error and not o.would]
    if record.rule == FAILED or (record.outcomes and not done):
        return ""
    # A reason names what was wanted, whether AWS accepted it or not.
    return "; ".join(done) if record.action is Action.HOLD or record.failure else record.reason


def status_text(status: StackStatus) -> str:
    blocks = [[f"{status.stack}  {status.region}  {status.at:%Y-%m-%d %H:%M:%S} UTC"]]
    for fleet in status.fleets:
        lines = labelled(fleet.name, f"{fleet.state}: {fleet.why}", indent=0)
        blocks.append([*lines, *(line for row in status_rows(fleet) for line in labelled(*row))])
    blocks += [] if status.fleets else [["no fleet"]]
    ringing = "unknown" if status.ringing is None else ", ".join(status.ringing) or "none ring"
    tail = [("alarms", ringing)]
    tail += (("trouble", trouble) for trouble in status.troubles)
    return paragraphs([*blocks, [line for row in tail for line in labelled(*row, indent=0)]])


def status_json(status: StackStatus) -> str:
    """Write it for programs: times in RFC 3339, ages and waits in seconds."""
    fleets = [{"name": f.name, "whole": f.whole, **asdict(f)} for f in status.fleets]
    for fleet in fleets:
        if change := fleet["last_change"]:
            fleet["last_change"] = {name: change[name] for name in OF_A_CHANGE}
    return as_json(asdict(status) | {"fleets": fleets})


def exit_code(status: StackStatus) -> int:
    """Return 0 when as many as wanted are in service and nothing fails or rings, else 1."""
    good = (State.WHOLE, State.IN_SERVICE)
    well = all(fleet.state in good and not fleet.failing for fleet in status.fleets)
    return 0 if status.fleets and well and not status.ringing and not status.troubles else 1


def status_rows(fleet: FleetStatus) -> list[tuple[str, str]]:
    """Say in labelled sentences how a fleet is, beside whether it is whole."""
    rows: list[tuple[str, str]] = []
    control = fleet.control
    if control is None:
        rows.append(("mode", "unknown: it could not be read"))
    elif fleet.permission is Permission.PAUSED and (pause := control.pause):
        until = f"{pause.until:%Y-%m-%d %H:%M} UTC"
        rows.append(("mode", f"PAUSED until {until}: {pause.why} ({pause.by})"))
    elif fleet.permission is Permission.OBSERVE:
        at, by = control.mode_at, control.mode_by
        since = f"since {at:%Y-%m-%d %H:%M} UTC ({by})" if at else "as its document says"
        rows.append(("mode", f"OBSERVING {since}"))
    for each in fleet.failing:
        turns = "1 turn has" if each.turns == 1 else f"{each.turns} turns have"
        told = f"{turns} failed since {each.since:%H:%M:%S}: {each.error}"
        rows.append(("FAILING", f"{each.controller}: {told}"))
    for label, group in zip(("spot", "on-demand"), fleet.groups, strict=False):
        launching = f", {group.launching} launching" if group.launching else ""
        told = f"{group.in_service} of {group.desired} in service{launching}  ({group.name})"
        rows.append((label, told))
    load, needed = fleet.load, fleet.seen.get("WorkersNeeded")
    if load is None:
        told = f"unknown: {fleet.unknown['load']}"
    else:
        told = "" if load.busy is None else f"{100 * load.busy:.0f} % busy; "
        told += f"{load.workers_live} of {load.workers_expected} workers"
        if load.workers_leaving:
            told += f", and {load.workers_leaving} of instances that leave"
        told += " served in the last minute"
    # Without search logs nothing is known to be needed: the size is held.
    silent = fleet.log_age_s is None or fleet.seen.get("StaleSearchLogs")
    if needed is not None and (load is not None or not silent):
        told += f"; {needed:.0f} needed ({_ago(fleet.turn_age_s[Controller.HEALTH])})"
    rows += (("load", told), ("wait", _wait_words(fleet)))
    if change := fleet.last_change:
        told = f"{change.at:%m-%d %H:%M} {change.action} [{change.rule}] {change.reason}"
        rows.append(("last change", told))
    age_s = fleet.turn_age_s[Controller.AVAILABILITY]
    above = (fleet.why, fleet.last_change.reason if fleet.last_change else "")
    if fleet.last_turn and age_s is not None and not any(fleet.last_turn in one for one in above):
        rows.append(("last turn", f"{_ago(age_s)}: {fleet.last_turn}"))
    ages = ", ".join(f"{each} {_ago(age_s)}" for each, age_s in fleet.turn_age_s.items())
    ages = f"unknown: {fleet.unknown['turns']}" if "turns" in fleet.unknown else ages
    newest = fleet.unknown.get("newest search log") or _ago(fleet.log_age_s)
    return [*rows, ("turns", f"{ages}; newest search log {newest}")]


def _wait_words(fleet: FleetStatus) -> str:
    load, waiting = fleet.load, fleet.waiting
    parts: list[str] = []
    if waiting is not None and waiting.requests:
        longest = ""
        if waiting.oldest_at_least_s is not None and waiting.oldest_at is not None:
            # Not rounded up, in the units of `spoken`.
            least = waiting.oldest_at_least_s
            least -= least % (1 if least < 120 else 60 if least < 7200 else 360)  # noqa: PLR2004
            longest = f", the oldest for at least {spoken(least)} at {waiting.oldest_at:%H:%M}"
        count = waiting.requests
        waits = "1 request waits" if count == 1 else f"{count} requests wait"
        parts.append(f"{waits} now{longest}")
    elif waiting is not None:
        parts.append("no request waits now")
    if load is not None:
        when = f"last {LOAD_WINDOW_S // 60} min"
        if load.newest_log_age_s > LIVE_S:
            when += f", none for {spoken(load.newest_log_age_s)}"
        percent = f"{100 * (fleet.promised_share or 0.95):.4g} %"
        started = f"{load.requests} requests started within {load.wait_promised_s:.1f} s"
        parts.append(f"{percent} of {started} ({when})")
    elif waiting is None or waiting.requests:
        parts.append(f"of those served: unknown, {fleet.unknown['load']}")
    if fleet.promised_wait_s is None or fleet.promised_share is None:
        return "; ".join([*parts, "nothing is promised"])
    share = f"{100 * fleet.promised_share:.4g} %"
    kept = ", NOT KEPT" if fleet.promise_missed else ""
    return "; ".join([*parts, f"promised: {share} within {fleet.promised_wait_s:g} s{kept}"])


def _ago(age_s: float | None) -> str:
    return "never" if age_s is None else f"{spoken(age_s)} ago"


# The last change is looked for in this many turns: about two and a half hours of both controllers.
RECORDS_READ = 300
# CloudWatch has the age of the oldest message a minute or two late.
AGE_KNOWN = timedelta(minutes=3)
# A turn of a time that is this much later than now: the clock of this machine is behind.
CLOCKS_DIFFER_S = 30.0
# The alarms of template.yaml.
ALARMS = frozenset({
    "both-short", "checker-not-running", "configuration-failure", "doctor", "errors",
    "events-unsent", "failed-invocations", "job-stuck", "nobody-serves", "oldest-message",
    "on-demand-too-long", "onprem-workers", "paused-too-long", "request-queue-unread",
    "search-log-dead-letters", "search-logs-lost", "shortfall-unfilled", "stale-search-logs",
    "throttles",
})  # fmt: skip
# Of checkers that have no turn at all there is no data.
NOT_HEARD_OF = ("checker-not-running", "INSUFFICIENT_DATA")
# The services that each fleet is read from.
TABLE, CLOUDWATCH, EC2 = "the table", "CloudWatch", "EC2"


def read_status(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> StackStatus:
    """Read a stack's status; what could not be read is among its troubles.

    Raises `Gone` for an unknown stack and `OperatorError` for an unknown fleet.
    """
    reading = Reading(aws, stack_name, fleet, now)
    return StackStatus(
        stack=reading.stack.name,
        region=aws.region,
        at=now,
        fleets=tuple(fleet_status(each, looked, now) for each, looked in reading.looked()),
        ringing=reading.ringing(),
        troubles=tuple(reading.troubles),
    )


class Reading:
    """The reads of one status; each may fail alone, and `troubles` then says so.

    A service that does not answer in time is not called again: each fleet would wait for it.
    """

    def __init__(self, aws: Aws, stack: str, fleet: str | None, now: datetime) -> None:
        """Look the stack and its fleets, or the one, up; raises `Gone` and `OperatorError`."""
        self._aws, self._now, self.stack = aws, now, aws.stack(stack)
        documents = aws.documents(self.stack)
        self.fleets = chosen(documents, fleet)
        self.troubles = [str(error) for error in documents.errors]
        self._hung: set[str] = set()

    def attempt[Found](self, of: str, label: str, read: Callable[[], Found]) -> Found | None:
        """Read something of a service, or note why that failed."""
        found = self._read(of, label, read)
        return None if isinstance(found, FleetError) else found

    def _read[Found](self, of: str, label: str, read: Callable[[], Found]) -> Found | FleetError:
        try:
            if of in self._hung:
                raise FleetError(f"not read, because {of} did not answer before")
            return read()
        except FleetError as error:
            if isinstance(error, TimedOut):
                self._hung.add(of)
            self.troubles.append(f"{label}: {error}")
            return error

    def looked(self) -> Iterator[tuple[Fleet, Looked]]:
        """Read the fleets, their groups together."""
        aws, now, table = self._aws, self._now, self.stack.table
        names = [n for f in self.fleets for n in (f.spot_group, f.on_demand_group)]
        reader = AutoScalingReader(aws.autoscaling, aws.ec2)
        load, controls = LoadDigestTable(aws.dynamodb, table), ControlTable(aws.dynamodb, table)
        clients = partial(aws.client, "sqs"), lambda: aws.cloudwatch
        queues = EveryRequestQueue(*clients, aws.dynamodb, table, lambda: now)
        groups = self.attempt(
            "Auto Scaling", "groups are not known", lambda: reader.describe(names)
        )
        for fleet in self.fleets:
            name, url = fleet.name, fleet.request_queue_url
            mine = (fleet.spot_group, fleet.on_demand_group)
            queue: QueueLength | str = "no request queue is named"
            if url is not None:
                found = self._read("the request queue", name, partial(queues.length, url))
                queue = str(found) if isinstance(found, FleetError) else found
            records = self.records(
                name, partial(DecisionRecords.newest, fleet=name, limit=RECORDS_READ)
            )
            ahead_s = max(((r.at - now).total_seconds() for r in records or ()), default=0.0)
            if ahead_s > CLOCKS_DIFFER_S:
                behind = f"this machine's clock is at least {spoken(ahead_s)} behind"
                self.troubles.append(f"{name}: {behind}: the ages shown are too small")
            since = now - timedelta(seconds=LOGS_READ_S)
            digests = self.attempt(
                TABLE, f"{name}: load is not known", partial(load.since, name, since)
            )
            oldest = None
            # CloudWatch measures the age of the oldest message of an SQS queue.
            if isinstance(queue, QueueLength) and queue.waiting and str(url).startswith("https://"):
                label = f"{name}: oldest request"
                ages = self.attempt(CLOUDWATCH, label, partial(self._ages, str(url)))
                oldest = max(ages or (), default=None)
            yield (
                fleet,
                Looked(
                    groups=None if groups is None else {n: groups[n] for n in mine if n in groups},
                    records=records,
                    digests=digests,
                    queue=queue,
                    oldest=oldest,
                    control=self.attempt(
                        TABLE, f"{name}: mode is not known", partial(controls.of, name)
                    ),
                ),
            )

    def records(
        self, fleet: str, read: Callable[[DecisionRecords], Records]
    ) -> Sequence[DecisionRecord] | None:
        """Read decision records of a fleet; those of another release are a trouble."""
        table = self._aws.records(self.stack)
        found = self.attempt(TABLE, f"{fleet}: decisions are not known", lambda: read(table))
        if found and found.unreadable:
            unreadable = f"{found.unreadable} records of another release left out"
            self.troubles.append(f"{fleet}: {unreadable}")
        return found.records if found else None

    def _ages(self, url: str) -> list[tuple[datetime, float]]:
        metric: Any = {
            "Namespace": "AWS/SQS",
            "MetricName": "ApproximateAgeOfOldestMessage",
            "Dimensions": [{"Name": "QueueName", "Value": url.rpartition("/")[2]}],
        }
        stat: Any = {"Metric": metric, "Period": 60, "Stat": "Maximum"}
        with aws_errors("cloudwatch:GetMetricData"):
            answer = self._aws.cloudwatch.get_metric_data(
                MetricDataQueries=[{"Id": "oldest", "MetricStat": stat}],
                StartTime=self._now - AGE_KNOWN,
                EndTime=self._now,
            )
        return [
            measure
            for found in answer["MetricDataResults"]
            for measure in zip(found["Timestamps"], found["Values"], strict=True)
        ]

    def ringing(self) -> tuple[str, ...] | None:
        """List the stack's alarms that ring; None where they could not be read.

        The name of another stack, and so those of its alarms, may begin as this one's does.
        """
        prefix = f"{self.stack.name}-"

        def read() -> dict[str, str]:
            client = self._aws.cloudwatch
            pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix)
            with aws_errors("cloudwatch:DescribeAlarms"):
                found = [alarm for page in pages for alarm in page["MetricAlarms"]]
            return {one["AlarmName"].removeprefix(prefix): one["StateValue"] for one in found}

        states = self.attempt(CLOUDWATCH, "alarms are not known", read)
        if states is None:
            return None
        return tuple(
            name
            for name, state in states.items()
            if name in ALARMS and (state == "ALARM" or (name, state) == NOT_HEARD_OF)
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
class Details:
    """A list of each fleet, of `events` or of instances, and what could not be read.

    Ages are in seconds, costs in USD. `left_out` counts the earlier events that are not listed.
    """

    events: bool
    stack: str
    at: datetime
    fleets: Mapping[str, Sequence[InstanceStatus] | Sequence[Event]]
    troubles: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def read_instances(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> Details:
    """Read every instance of the fleets; raises `Gone` and `OperatorError`."""
    reading = Reading(aws, stack_name, fleet, now)
    reader = AutoScalingReader(aws.autoscaling, aws.ec2)
    fleets: dict[str, Sequence[InstanceStatus]] = {}
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
        fleets[name] = instances_of(each, looked, lives, draining, book, now)
    troubles = tuple(reading.troubles)
    return Details(events=False, stack=reading.stack.name, at=now, fleets=fleets, troubles=troubles)


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
    # What the newest health turn holds against single instances, in its reason.
    health = next((r for r in looked.records or () if r.controller is Controller.HEALTH), None)
    parts = health.reason.split("; ") if health else ()
    judged = {name: why for name, _, why in (p.partition(" ") for p in parts if p[:2] == "i-")}
    found: list[InstanceStatus] = []
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
        elif name in judged:
            why = judged[name]
        else:
            counts, why = True, "in service; no request finished in the last minute"
            if looked.digests is None:
                why = "in service; its search logs could not be read"
            elif live[name]:
                why = "it serves"
        zone, _, instance_type = instance.pool.partition("/")
        life = lives.get(name)
        found.append(
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
                cost_usd=_cost(fleet, life, book, now) if life and book else None,
            )
        )
    return tuple(found)


def _cost(fleet: Fleet, life: Life, book: PriceBook, now: datetime) -> float | None:
    item = LedgerItem(
        fleet=fleet.name,
        instance_id=life.instance_id,
        pool=life.pool,
        option=life.option,
        since=life.since,
    )
    found = priced([item], book, life.since, now)
    # A spot instance without a list price is priced all the same.
    known = [p.paid for p in found if p.paid > 0 or not p.unpriced_h]
    return sum(known) if known else None


def read_events(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> Details:
    """Read the last changes and failures; raises `Gone` and `OperatorError`."""
    reading = Reading(aws, stack_name, fleet, now)
    since = now - EVENTS_OF
    fleets: dict[str, Sequence[Event]] = {}
    left_out: dict[str, int] = {}
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
        found = folded(events)
        fleets[name] = found[-EVENTS_AT_MOST:]
        left_out |= {name: len(found) - EVENTS_AT_MOST} if found[EVENTS_AT_MOST:] else {}
    return Details(
        events=True,
        stack=reading.stack.name,
        at=now,
        fleets=fleets,
        troubles=tuple(reading.troubles),
        left_out=left_out,
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
        elif (done := changed(record)) or failure:
            why = "; ".join(filter(None, [done or record.reason, failure]))
            what = f"{record.controller}: {record.action} [{record.rule}] {why}"
        else:
            continue
        yield Event(at=record.at, last=record.at, what=what, failed=bool(failure))


def folded(events: Iterable[Event]) -> tuple[Event, ...]:
    """Order events, oldest first, and count those alike that follow each other."""
    found: list[Event] = []
    latest: dict[str, int] = {}
    for event in sorted(events, key=lambda one: one.at):
        place = latest.get(event.what)
        if place is not None and place >= len(found) - 2:
            before = found[place]
            found[place] = replace(before, last=event.at, times=before.times + 1)
        else:
            latest[event.what] = len(found)
            found.append(event)
    return tuple(found)


def details_text(details: Details) -> str:
    blocks = [[f"{details.stack}  {details.at:%Y-%m-%d %H:%M:%S} UTC"]]
    for name, rows in details.fleets.items():
        left_out = details.left_out.get(name, 0)
        count = len(rows) + left_out
        known = "known " if details.troubles else ""
        if details.events:
            what = f"{count or 'no'} {known}event{'s' * (count > 1)}"
            told = f"{what} in {spoken(EVENTS_OF.total_seconds())}"
            told += f"; the last {len(rows)} of them" if left_out else ""
        else:
            counted = sum(isinstance(row, InstanceStatus) and row.counted for row in rows)
            told = f"{counted} of {count} instances count" if rows else f"no {known}instance"
        blocks.append([f"{name}: {told}", *(line for row in rows for line in _lines(row))])
    blocks += [] if details.fleets else [["no fleet"]]
    troubles = [line for it in details.troubles for line in labelled("trouble", it, indent=0)]
    return paragraphs([*blocks, *([troubles] if troubles else [])])


def details_json(details: Details) -> str:
    found = asdict(details)
    if not details.left_out:
        del found["left_out"]
    return as_json(found)


def _lines(row: InstanceStatus | Event) -> list[str]:
    if isinstance(row, Event):
        many = f" ({row.times} times until {row.last:%H:%M:%S})" if row.times > 1 else ""
        mark = "FAILED " if row.failed else ""
        return labelled(f"{row.at:%H:%M:%S}", f"{mark}{row.what}{many}")
    age = "age unknown" if row.age_s is None else spoken(row.age_s)
    cost = "cost unknown" if row.cost_usd is None else f"{row.cost_usd:.2f} USD so far"
    state = row.state.replace("_", " ")
    live = "?" if row.workers_live is None else f"{row.workers_live}"
    first = f"{row.market}  {row.zone}  {row.instance_type}  {state}  {age}"
    counted = "counts" if row.counted else "does not count"
    second = f"{counted}: {row.why}; {live} of {row.workers_expected} workers live; {cost}"
    return [*labelled(row.instance_id, first, hang=23), *labelled("", second, hang=23)]
