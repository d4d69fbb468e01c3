"""Is it whole? The state of each fleet, its instances and its events: as text and as JSON.

Every figure is known now, carries its age, or is withheld: a screen is read when things fail.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import takewhile

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords, Records
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.request_queues import EveryRequestQueue
from spotkeeper.domain.decision import FAILED, Action, Controller, DecisionRecord
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
from spotkeeper_operator.text import STALE_TURN_S, as_json, labelled, paragraphs, spoken

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
    are logged to know it now; `wait_p95_s` is that of the requests that started lately.
    """

    workers_live: int
    workers_expected: int
    workers_leaving: int
    busy: float | None
    wait_p95_s: float
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
    """Turns of a controller that failed one after another, since the last that worked."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """All fleets of a stack, the alarms that ring, and what could not be read."""

    stack: str
    region: str
    at: datetime
    fleets: tuple[FleetStatus, ...]
    ringing: tuple[str, ...]
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


def fleet_status(fleet: Fleet, looked: Looked, now: datetime) -> FleetStatus:
    """Put one fleet's status together."""
    records = looked.records or ()
    worked = {
        controller: next(
            (r for r in records if r.controller is controller and r.rule != FAILED), None
        )
        for controller in Controller
    }
    ages = {
        controller: (now - r.at).total_seconds() if r else None for controller, r in worked.items()
    }
    fresh = {c: r for c, r in worked.items() if r and (now - r.at).total_seconds() <= STALE_TURN_S}
    failing = _failing(records)
    names = (fleet.spot_group, fleet.on_demand_group)
    groups = looked.groups or {}
    counted = tuple(_group(groups[name]) for name in names if name in groups)
    missing = tuple(n for n in names if n not in groups) if looked.groups is not None else ()
    wanted = _wanted(groups.get(fleet.spot_group), fresh.get(Controller.AVAILABILITY))
    known = _known_to_serve(looked, now)
    state, why = _state(looked, worked, failing, counted, missing, wanted, known, now)
    turn = worked[Controller.AVAILABILITY]
    log_age = _log_age(looked, worked[Controller.HEALTH], now)
    unknown: dict[str, str] = {}
    load = _load_now(fleet, looked, log_age, now, unknown)
    waiting = _waiting_now(looked, log_age, now, unknown)
    return FleetStatus(
        name=fleet.name,
        state=state,
        why=why,
        wanted=wanted,
        in_service=sum(group.in_service for group in counted) if counted else None,
        known_to_serve=known,
        last_turn=turn.reason if turn else None,
        groups=counted,
        missing_groups=missing,
        seen={
            name: value
            for record in fresh.values()
            for name, value in record.seen.items()
            if name not in _TOLD_ELSEWHERE
        },
        load=load,
        waiting=waiting,
        unknown=unknown,
        promised_wait_s=fleet.objective.wait_s if fleet.objective else None,
        promised_share=fleet.objective.share if fleet.objective else None,
        last_change=_last_change(records),
        turn_age_s=ages,
        failing=failing,
        log_age_s=log_age,
        permission=looked.control.permission(fleet.mode, now) if looked.control else None,
        control=looked.control,
    )


def _failing(records: Sequence[DecisionRecord]) -> tuple[Failing, ...]:
    """Find the controllers whose newest turns failed."""
    found: list[Failing] = []
    for controller in Controller:
        turns = (record for record in records if record.controller is controller)
        if failed := [*takewhile(lambda record: record.rule == FAILED, turns)]:
            found.append(
                Failing(
                    controller=controller,
                    turns=len(failed),
                    since=failed[-1].at,
                    error=failed[0].reason,
                )
            )
    return tuple(found)


def _wanted(spot: Group | None, record: DecisionRecord | None) -> int | None:
    """Count the instances that the load or an operator wants: the spot group's, less its spares."""
    if spot is None:
        return None
    spare = int(record.seen.get("SpotSpare", 0.0)) if record else 0
    return max(0, spot.desired - max(0, spare))


def _known_to_serve(looked: Looked, now: datetime) -> int | None:
    """Count the instances in service that finished a request in the last minute."""
    if looked.groups is None or looked.digests is None:
        return None
    lately = now - timedelta(seconds=LIVE_S)
    heard = {w.instance_id for d in looked.digests for w in d.workers if w.last_finished >= lately}
    return len(heard & _serving(looked.groups.values()))


def _state(
    looked: Looked,
    worked: Mapping[Controller, DecisionRecord | None],
    failing: Sequence[Failing],
    groups: Sequence[GroupStatus],
    missing: Sequence[str],
    wanted: int | None,
    known: int | None,
    now: datetime,
) -> tuple[State, str]:
    if missing:
        verb = "does not exist" if len(missing) == 1 else "do not exist"
        return State.NOT_WHOLE, f"{' and '.join(missing)} {verb}"
    record = worked[Controller.AVAILABILITY]
    there = sum(group.in_service for group in groups)
    if wanted is not None and (short := wanted - there) > 0:
        return State.NOT_WHOLE, _short(short, wanted, groups, record, now)
    if looked.records is None:
        return State.UNKNOWN, "the decision records could not be read"
    error = next((f": {f.error}" for f in failing if f.controller is Controller.AVAILABILITY), "")
    if record is None:
        return State.UNKNOWN, f"no availability turn has worked yet{error}"
    age_s = (now - record.at).total_seconds()
    if age_s > STALE_TURN_S:
        return State.UNKNOWN, f"no availability turn has worked for {spoken(age_s)}{error}"
    if wanted is None:
        return State.UNKNOWN, "the groups could not be read"
    unfilled = record.seen.get("ShortfallUnfilled", 0.0) - record.seen.get("SpotAtRisk", 0.0)
    if unfilled > 0:
        told = f"{wanted} wanted are in service, and {unfilled:g} of them were not known to serve"
        return State.UNKNOWN, f"{told} {spoken(age_s)} ago: {record.reason}"
    told = f"{wanted} wanted, {there} in service"
    if known is None:
        return State.IN_SERVICE, f"{told}; the search logs could not be read"
    told = f"{told}, {known} served in the last minute"
    if known >= wanted:
        return State.WHOLE, told
    found = _suspects(worked[Controller.HEALTH], now)
    return (State.UNKNOWN, f"{told}; {found}") if found else (State.IN_SERVICE, told)


def _suspects(record: DecisionRecord | None, now: datetime) -> str:
    """Name the instances that the last health turn suspects, or all of them, with its reasons."""
    if record is None or (age_s := (now - record.at).total_seconds()) > STALE_TURN_S:
        return ""
    parts = record.reason.split("; ")
    if record.seen.get("NobodyServes"):
        return f"{_ago(age_s)}: {'; '.join(part for part in parts if 'nobody serves' in part)}"
    named = "; ".join(part for part in parts if part.startswith("i-"))
    suspect = record.seen.get("WorkersSuspect")
    return f"{suspect:g} may not work ({_ago(age_s)}): {named}" if suspect else ""


def _short(
    short: int,
    wanted: int,
    groups: Sequence[GroupStatus],
    record: DecisionRecord | None,
    now: datetime,
) -> str:
    launching = sum(group.launching for group in groups)
    text = f"{wanted - short} of {wanted} wanted are in service"
    text += f", {launching} launching" if launching else ""
    if record is None or record.seen.get("ShortfallUnfilled", 0.0) <= 0:
        return text
    return f"{text}; {_ago((now - record.at).total_seconds())}: {record.reason}"


def _log_age(looked: Looked, health: DecisionRecord | None, now: datetime) -> float | None:
    """Find the age of the newest search log, from the table or what the last turn saw there."""
    known = [
        (now - w.last_finished).total_seconds() for d in looked.digests or () for w in d.workers
    ]
    if health and (age := health.seen.get("SearchLogAge")) is not None:
        known.append(age + (now - health.at).total_seconds())
    return max(0.0, min(known)) if known else None


def _load_now(
    fleet: Fleet,
    looked: Looked,
    log_age: float | None,
    now: datetime,
    unknown: dict[str, str],
) -> LoadNow | None:
    serving = None if looked.groups is None else _serving(looked.groups.values())
    if looked.digests is None or serving is None:
        unknown["load"] = f"the {'groups' if serving is None else 'search logs'} could not be read"
        return None
    since = now - timedelta(seconds=LOAD_WINDOW_S)
    fresh = [d for d in looked.digests if _is_of(d, since)]
    load = summarise(fresh, now, LOAD_WINDOW_S, slots=fleet.slots)
    if load.newest is None or not load.finished:
        unknown["load"] = _silence(log_age, serving)
        return None
    lately = now - timedelta(seconds=LIVE_S)
    # Logs of the last seconds are on their way: nobody was idle after the newest one.
    until = summarise(fresh, now, LOAD_WINDOW_S, until=load.newest, slots=fleet.slots)
    there = [w for w in until.workers if _there(w, serving)]
    served = [w for w in load.workers if w.last_finished >= lately]
    live = sum(_there(w, serving) for w in served)
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
        requests=load.finished,
        newest_log_age_s=max(0.0, (now - load.newest).total_seconds()),
    )


def _is_of(digest: LoadDigest, since: datetime) -> bool:
    """Whether all requests of a digest finished about since then: logs may be minutes late."""
    begin_ms = min(min(w.busy_ms) * SLOT_MS for w in digest.workers) if digest.workers else 0
    begin_ms += round(1000 * digest.service.quantile_s(1.0))
    return begin_ms >= milliseconds(since) - 1000 * LIVE_S


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


def _serving(groups: Iterable[Group]) -> frozenset[str]:
    return frozenset(
        i.instance_id
        for group in groups
        for i in group.instances
        if i.healthy and i.phase is Phase.IN_SERVICE
    )


def _there(worker: WorkerLoad, serving: frozenset[str]) -> bool:
    return worker.cluster is Cluster.ONPREM or worker.instance_id in serving


def _silence(log_age: float | None, serving: frozenset[str]) -> str:
    why = "" if serving else ", and no instance is in service"
    if log_age is None:
        return f"no search log was ever received{why}"
    return f"the newest search log is {spoken(log_age)} old{why}"


def _waiting_now(
    looked: Looked, log_age: float | None, now: datetime, unknown: dict[str, str]
) -> WaitingNow | None:
    queue = looked.queue
    if isinstance(queue, str):
        unknown["waiting"] = queue
        return None
    found = _oldest(looked, queue, log_age, now) if queue.waiting else None
    at, oldest_s = found or (None, None)
    return WaitingNow(
        requests=queue.waiting,
        in_flight=queue.in_flight,
        age_s=max(0.0, (now - queue.seen_at).total_seconds()) if queue.seen_at else 0.0,
        oldest_at_least_s=oldest_s,
        oldest_at=at,
    )


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


def _group(group: Group) -> GroupStatus:
    phases = [i.phase for i in group.instances if i.healthy]
    return GroupStatus(
        name=group.name,
        desired=group.desired,
        in_service=phases.count(Phase.IN_SERVICE),
        launching=phases.count(Phase.LAUNCHING),
    )


def changed(record: DecisionRecord) -> str:
    """Say what a turn changed, or nothing: what AWS refused or a turn only observed is no change.

    A turn that holds the size may replace instances.
    """
    done = [o.asked for o in record.outcomes if not o.error and not o.would]
    if record.rule == FAILED or (record.outcomes and not done):
        return ""
    return "; ".join(done) if record.action is Action.HOLD else record.reason


def _last_change(records: Iterable[DecisionRecord]) -> DecisionRecord | None:
    changes = ((record, changed(record)) for record in records)
    return next((replace(record, reason=what) for record, what in changes if what), None)


def status_text(status: StackStatus) -> str:
    head = [f"{status.stack}  {status.region}  {status.at:%Y-%m-%d %H:%M:%S} UTC"]
    blocks = [_fleet_lines(fleet) for fleet in status.fleets] or [["no fleet"]]
    alarms = ", ".join(status.ringing) if status.ringing else "none ring"
    tail = labelled("alarms", alarms, indent=0)
    for trouble in status.troubles:
        tail += labelled("trouble", trouble, indent=0)
    return paragraphs([head, *blocks, tail])


def status_json(status: StackStatus) -> str:
    """Write it for programs: times in RFC 3339, ages and waits in seconds."""
    fleets = [{"name": f.name, "whole": f.whole, **asdict(f)} for f in status.fleets]
    for fleet in fleets:
        if change := fleet["last_change"]:
            fleet["last_change"] = {name: change[name] for name in OF_A_CHANGE}
    return as_json(asdict(status) | {"fleets": fleets})


def exit_code(status: StackStatus) -> int:
    """Answer 0 when as many as wanted are in service and nothing fails or rings, else 1."""
    good = (State.WHOLE, State.IN_SERVICE)
    well = all(fleet.state in good and not fleet.failing for fleet in status.fleets)
    return 0 if status.fleets and well and not status.ringing and not status.troubles else 1


def _fleet_lines(fleet: FleetStatus) -> list[str]:
    lines = labelled(fleet.name, f"{fleet.state}: {fleet.why}", indent=0)
    return lines + [line for label, text in status_rows(fleet) for line in labelled(label, text)]


def status_rows(fleet: FleetStatus) -> list[tuple[str, str]]:
    """Say in labelled sentences how a fleet is, beside whether it is whole."""
    rows = _permission(fleet)
    for each in fleet.failing:
        turns = "1 turn has" if each.turns == 1 else f"{each.turns} turns have"
        told = f"{turns} failed since {each.since:%H:%M:%S}: {each.error}"
        rows.append(("FAILING", f"{each.controller}: {told}"))
    groups = zip(("spot", "on-demand"), fleet.groups, strict=False)
    rows += ((label, _group_words(group)) for label, group in groups)
    rows += (("load", _load_words(fleet)), ("wait", _wait_words(fleet)))
    if change := fleet.last_change:
        told = f"{change.at:%m-%d %H:%M} {change.action} [{change.rule}] {change.reason}"
        rows.append(("last change", told))
    age_s = fleet.turn_age_s[Controller.AVAILABILITY]
    above = (fleet.why, fleet.last_change.reason if fleet.last_change else "")
    if fleet.last_turn and age_s is not None and not any(fleet.last_turn in one for one in above):
        rows.append(("last turn", f"{_ago(age_s)}: {fleet.last_turn}"))
    return [*rows, ("turns", _turns(fleet))]


def _permission(fleet: FleetStatus) -> list[tuple[str, str]]:
    """Say that turns ask AWS for nothing, who decided so, and until when."""
    control = fleet.control
    if control is None:
        return [("mode", "unknown: it could not be read")]
    if fleet.permission is Permission.PAUSED and (pause := control.pause):
        until = f"{pause.until:%Y-%m-%d %H:%M} UTC"
        return [("mode", f"PAUSED until {until}: {pause.why} ({pause.by})")]
    if fleet.permission is Permission.OBSERVE:
        at, by = control.mode_at, control.mode_by
        since = f"since {at:%Y-%m-%d %H:%M} UTC ({by})" if at else "as its document says"
        return [("mode", f"OBSERVING {since}")]
    return []


def _group_words(group: GroupStatus) -> str:
    launching = f", {group.launching} launching" if group.launching else ""
    return f"{group.in_service} of {group.desired} in service{launching}  ({group.name})"


def _load_words(fleet: FleetStatus) -> str:
    load, needed = fleet.load, fleet.seen.get("WorkersNeeded")
    age_s = fleet.turn_age_s[Controller.HEALTH] or 0.0
    # Without search logs nothing is known to be needed: the size is held.
    logged = load is not None or (
        fleet.log_age_s is not None and not fleet.seen.get("StaleSearchLogs")
    )
    tail = f"; {needed:.0f} needed ({_ago(age_s)})" if logged and needed is not None else ""
    if load is None:
        return f"unknown: {fleet.unknown['load']}{tail}"
    busy = "" if load.busy is None else f"{100 * load.busy:.0f} % busy; "
    live = f"{load.workers_live} of {load.workers_expected} workers"
    left = f"{load.workers_leaving} of instances that leave"
    served = live if not load.workers_leaving else f"{live}, and {left}"
    return f"{busy}{served} served in the last minute{tail}"


def _wait_words(fleet: FleetStatus) -> str:
    load, waiting = fleet.load, fleet.waiting
    parts: list[str] = []
    if waiting is not None and waiting.requests:
        longest = ""
        if waiting.oldest_at_least_s is not None and waiting.oldest_at is not None:
            longest = f", the oldest for at least {_at_least(waiting.oldest_at_least_s)}"
            longest += f" at {waiting.oldest_at:%H:%M}"
        count = waiting.requests
        waits = "1 request waits" if count == 1 else f"{count} requests wait"
        parts.append(f"{waits} now{longest}")
    elif waiting is not None:
        parts.append("no request waits now")
    if load is not None:
        when = f"last {LOAD_WINDOW_S // 60} min"
        if load.newest_log_age_s > LIVE_S:
            when += f", none for {spoken(load.newest_log_age_s)}"
        parts.append(
            f"95 % of {load.requests} requests started within {load.wait_p95_s:.1f} s ({when})"
        )
    elif waiting is None or waiting.requests:
        parts.append(f"of those served: unknown, {fleet.unknown['load']}")
    if fleet.promised_wait_s is None or fleet.promised_share is None:
        return "; ".join([*parts, "nothing is promised"])
    share = f"{100 * fleet.promised_share:.4g} %"
    late = load is not None and load.wait_p95_s > fleet.promised_wait_s * 1.1
    kept = ", NOT KEPT" if late and share == "95 %" else ""
    return "; ".join([*parts, f"promised: {share} within {fleet.promised_wait_s:g} s{kept}"])


def _at_least(seconds: float) -> str:
    """Say a duration that is not rounded up."""
    step = 1 if seconds < 120 else 60 if seconds < 7200 else 360  # noqa: PLR2004 - units of spoken
    return spoken(seconds - seconds % step)


def _turns(fleet: FleetStatus) -> str:
    ages = [
        f"{controller} {'never' if age_s is None else _ago(age_s)}"
        for controller, age_s in fleet.turn_age_s.items()
    ]
    log = "never" if fleet.log_age_s is None else _ago(fleet.log_age_s)
    return f"{', '.join(ages)}; newest search log {log}"


def _ago(age_s: float) -> str:
    return f"{spoken(max(0.0, age_s))} ago"


# The last change is looked for in this many turns: about two and a half hours of both controllers.
RECORDS_READ = 300
# CloudWatch has the age of the oldest message a minute or two late.
AGE_KNOWN = timedelta(minutes=3)
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


def read_status(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> StackStatus:
    """Read a stack's status; what could not be read is among its troubles.

    Raises `Gone` for an unknown stack and `OperatorError` for an unknown fleet.
    """
    reading = Reading(aws, stack_name, fleet, now)
    statuses = tuple(fleet_status(each, looked, now) for each, looked in reading.looked())
    return StackStatus(
        stack=reading.stack.name,
        region=aws.region,
        at=now,
        fleets=statuses,
        ringing=reading.attempt(CLOUDWATCH, "alarms are not known", reading.ringing) or (),
        troubles=tuple(reading.troubles),
    )


# The services that each fleet is read from.
TABLE, CLOUDWATCH, EC2 = "the table", "CloudWatch", "EC2"


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
        self._load = LoadDigestTable(aws.dynamodb, self.stack.table)
        self._queues = EveryRequestQueue(
            lambda: aws.client("sqs"), lambda: aws.cloudwatch, aws.dynamodb, self.stack.table,
            lambda: now,
        )  # fmt: skip

    def attempt[Found](self, of: str, label: str, read: Callable[[], Found]) -> Found | None:
        """Read something of a service, or note why that failed."""
        try:
            return self._read(of, read)
        except FleetError as error:
            self.troubles.append(f"{label}: {error}")
            return None

    def _read[Found](self, of: str, read: Callable[[], Found]) -> Found:
        if of in self._hung:
            raise TimedOut(f"not read, as {of} did not answer before")
        try:
            return read()
        except TimedOut:
            self._hung.add(of)
            raise

    def looked(self) -> Iterator[tuple[Fleet, Looked]]:
        """Read the fleets, their groups together."""
        names = [n for f in self.fleets for n in (f.spot_group, f.on_demand_group)]
        reader = AutoScalingReader(self._aws.autoscaling, self._aws.ec2)
        groups = self.attempt(
            "Auto Scaling", "groups are not known", lambda: reader.describe(names)
        )
        for fleet in self.fleets:
            mine = (fleet.spot_group, fleet.on_demand_group)
            theirs = None if groups is None else {n: groups[n] for n in mine if n in groups}
            yield fleet, self._fleet(fleet, theirs)

    def _fleet(self, fleet: Fleet, groups: Mapping[str, Group] | None) -> Looked:
        name, stack = fleet.name, self.stack
        since = self._now - timedelta(seconds=LOGS_READ_S)
        queue = self._queue(fleet)
        return Looked(
            groups=groups,
            records=self.records(name, lambda it: it.newest(name, RECORDS_READ)),
            digests=self.attempt(
                TABLE, f"{name}: load is not known", lambda: self._load.since(name, since)
            ),
            queue=queue,
            oldest=None if isinstance(queue, str) or not queue.waiting else self._oldest(fleet),
            control=self.attempt(
                TABLE,
                f"{name}: mode is not known",
                lambda: ControlTable(self._aws.dynamodb, stack.table).of(name),
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

    def _queue(self, fleet: Fleet) -> QueueLength | str:
        """Count what waits; a queue that cannot be read is no trouble of the fleet's alone."""
        url = fleet.request_queue_url
        if url is None:
            return "no request queue is named"
        try:
            return self._read("the request queue", lambda: self._queues.length(url))
        except FleetError as error:
            self.troubles.append(f"{fleet.name}: {error}")
            return str(error)

    def _oldest(self, fleet: Fleet) -> tuple[datetime, float] | None:
        """Read the age of the oldest message of an SQS queue, as CloudWatch last measured it."""
        url = fleet.request_queue_url or ""
        if not url.startswith("https://"):
            return None
        with_age = self.attempt(
            CLOUDWATCH, f"{fleet.name}: oldest request", lambda: self._ages(url)
        )
        return max(with_age, default=None) if with_age else None

    def _ages(self, url: str) -> list[tuple[datetime, float]]:
        with aws_errors("cloudwatch:GetMetricData"):
            answer = self._aws.cloudwatch.get_metric_data(
                MetricDataQueries=[
                    {
                        "Id": "oldest",
                        "MetricStat": {
                            "Metric": {
                                "Namespace": "AWS/SQS",
                                "MetricName": "ApproximateAgeOfOldestMessage",
                                "Dimensions": [
                                    {"Name": "QueueName", "Value": url.rpartition("/")[2]}
                                ],
                            },
                            "Period": 60,
                            "Stat": "Maximum",
                        },
                    }
                ],
                StartTime=self._now - AGE_KNOWN,
                EndTime=self._now,
            )
        return [
            measure
            for found in answer["MetricDataResults"]
            for measure in zip(found["Timestamps"], found["Values"], strict=True)
        ]

    def ringing(self) -> tuple[str, ...]:
        """List the stack's alarms that ring.

        The name of another stack, and so those of its alarms, may begin as this one's does.
        """
        prefix = f"{self.stack.name}-"
        client = self._aws.cloudwatch
        pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix)
        with aws_errors("cloudwatch:DescribeAlarms"):
            found = [alarm for page in pages for alarm in page["MetricAlarms"]]
        states = {one["AlarmName"].removeprefix(prefix): one["StateValue"] for one in found}
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

    Ages are in seconds, costs in USD.
    """

    events: bool
    stack: str
    at: datetime
    fleets: Mapping[str, Sequence[InstanceStatus] | Sequence[Event]]
    troubles: tuple[str, ...]


def read_instances(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> Details:
    """Read every instance of the fleets; raises `Gone` and `OperatorError`."""
    reading = Reading(aws, stack_name, fleet, now)
    reader = AutoScalingReader(aws.autoscaling, aws.ec2)
    fleets: dict[str, Sequence[InstanceStatus]] = {}
    for each, looked in reading.looked():
        named = looked.groups or {}
        groups = [g for g in (each.spot_group, each.on_demand_group) if g in named]
        marks = reading.attempt(
            EC2, f"{each.name}: marks are not known", partial(reader.marked, groups)
        )
        draining = {mark.instance_id: mark.gone_at for mark in marks or ()}
        ids = [i.instance_id for group in groups for i in named[group].instances] + list(draining)
        lives = reading.attempt(
            EC2, f"{each.name}: ages are not known", partial(InstanceLives(aws.ec2).of, ids, now)
        )
        book = reading.attempt(
            "prices",
            f"{each.name}: prices are not known",
            partial(_prices, aws, tuple((lives or {}).values()), now),
        )
        fleets[each.name] = instances_of(each, looked, lives or {}, draining, book, now)
    troubles = tuple(reading.troubles)
    return Details(events=False, stack=reading.stack.name, at=now, fleets=fleets, troubles=troubles)


def _prices(aws: Aws, lives: Sequence[Life], now: datetime) -> PriceBook:
    spot = [life for life in lives if life.option is PurchaseOption.SPOT]
    since = min((life.since for life in spot), default=now)
    types = {life.pool.partition("/")[2] for life in lives}
    return aws.prices({life.pool for life in spot}, types, since, now)


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
    left = [
        (life.option, Instance(instance_id=i, pool=life.pool, phase=Phase.LEAVING, healthy=True))
        for i in sorted(draining.keys() - there)
        if (life := lives.get(i))
    ]
    live, judged = _live(looked, now), _judged(looked.records or ())
    found: list[InstanceStatus] = []
    for market, instance in [*members, *left]:
        name, gone_at = instance.instance_id, draining.get(instance.instance_id)
        workers = None if live is None else len(live.get(name, ()))
        counted, why = _why(instance, workers, gone_at, judged.get(name))
        state: str = instance.phase if instance.healthy else "unhealthy"
        if name not in there and gone_at:
            state, why = "detached", f"it left its group and drains until {gone_at:%H:%M:%S}"
        zone, _, instance_type = instance.pool.partition("/")
        life = lives.get(name)
        found.append(
            InstanceStatus(
                instance_id=name,
                market=market,
                zone=zone,
                instance_type=instance_type,
                state=state,
                age_s=(now - life.since).total_seconds() if life else None,
                workers_live=workers,
                workers_expected=fleet.workers_per_instance,
                counted=counted,
                why=why,
                cost_usd=_cost(fleet, life, book, now) if life and book else None,
            )
        )
    return tuple(found)


def _live(looked: Looked, now: datetime) -> dict[str, list[WorkerLoad]] | None:
    """Find the workers of each instance that finished a request in the last minute."""
    if looked.digests is None:
        return None
    live: dict[str, list[WorkerLoad]] = {}
    for worker in summarise(looked.digests, now, LOAD_WINDOW_S).workers:
        if (now - worker.last_finished).total_seconds() <= LIVE_S:
            live.setdefault(worker.instance_id, []).append(worker)
    return live


def _judged(records: Sequence[DecisionRecord]) -> dict[str, str]:
    """Find what the newest health turn holds against single instances, in its reason."""
    newest = next((r for r in records if r.controller is Controller.HEALTH), None)
    parts = newest.reason.split("; ") if newest else ()
    named = (part.partition(" ") for part in parts if part.startswith("i-"))
    return {instance: why for instance, _, why in named}


def _why(
    instance: Instance, workers: int | None, gone_at: datetime | None, judged: str | None
) -> tuple[bool, str]:
    if instance.phase is Phase.LEAVING:
        return False, "it leaves its group"
    if not instance.healthy:
        return False, "AWS finds it unhealthy and replaces it"
    if gone_at is not None:
        return False, f"it drains until {gone_at:%H:%M:%S}"
    if instance.phase is Phase.LAUNCHING:
        return False, "it launches"
    if judged is not None:
        return False, judged
    if workers is None:
        return True, "in service; its search logs could not be read"
    return True, "it serves" if workers else "in service; no request finished in the last minute"


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
    known = [p for p in found if p.paid > 0 or not p.unpriced_h]
    return sum(p.paid for p in known) if known else None


def read_events(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> Details:
    """Read the last changes and failures; raises `Gone` and `OperatorError`."""
    reading = Reading(aws, stack_name, fleet, now)
    since = now - EVENTS_OF
    fleets: dict[str, Sequence[Event]] = {}
    for each in reading.fleets:
        records = reading.records(
            each.name, partial(DecisionRecords.between, fleet=each.name, since=since, until=now)
        )
        events = list(_of_records(records or ()))
        for group in (each.spot_group, each.on_demand_group):
            activities = reading.attempt(
                "Auto Scaling",
                f"{group}: activities are not known",
                partial(read_activities, aws, group, since, now),
            )
            events += _of_activities(activities or ())
        fleets[each.name] = folded(events)[-EVENTS_AT_MOST:]
    troubles = tuple(reading.troubles)
    return Details(events=True, stack=reading.stack.name, at=now, fleets=fleets, troubles=troubles)


def _of_activities(activities: Iterable[Activity]) -> Iterable[Event]:
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


def _of_records(records: Iterable[DecisionRecord]) -> Iterable[Event]:
    for record in records:
        failed = [f"{o.asked}: {o.error}" for o in record.outcomes if o.error]
        if record.rule == FAILED:
            failed = [record.reason]
            what = f"{record.controller}: {record.reason}"
        elif (done := changed(record)) or failed:
            why = "; ".join([done or record.reason, *failed])
            what = f"{record.controller}: {record.action} [{record.rule}] {why}"
        else:
            continue
        yield Event(at=record.at, last=record.at, what=what, failed=bool(failed))


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
    head = [f"{details.stack}  {details.at:%Y-%m-%d %H:%M:%S} UTC"]
    blocks = [
        [
            f"{name}: {_counted(rows, details.events)}",
            *(line for row in rows for line in _lines(row)),
        ]
        for name, rows in details.fleets.items()
    ] or [["no fleet"]]
    troubles = [line for it in details.troubles for line in labelled("trouble", it, indent=0)]
    return paragraphs([head, *blocks, *([troubles] if troubles else [])])


def _counted(rows: Sequence[InstanceStatus] | Sequence[Event], events: bool) -> str:
    if events:
        what = "no event" if not rows else "1 event" if len(rows) == 1 else f"{len(rows)} events"
        return f"{what} in {spoken(EVENTS_OF.total_seconds())}"
    counted = sum(isinstance(row, InstanceStatus) and row.counted for row in rows)
    return f"{counted} of {len(rows)} instances count" if rows else "no instance"


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
