"""Each instance of a fleet and why it counts, and its last changes and failures in one list."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.domain.decision import FAILED, Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet, Instance, Phase
from spotkeeper.domain.load.load import WorkerLoad
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.money.ledger import LedgerItem, Life
from spotkeeper.domain.money.prices import PriceBook, priced
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper_operator.activities import Activity, read_activities
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.durations import spoken
from spotkeeper_operator.status.read_status import Reading
from spotkeeper_operator.status.status import LIVE_S, LOAD_WINDOW_S, Looked, changed
from spotkeeper_operator.text import as_json, labelled, paragraphs

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
    """A list of each fleet, of `events` or of instances, and what could not be read."""

    events: bool
    stack: str
    at: datetime
    fleets: Mapping[str, Sequence[InstanceStatus] | Sequence[Event]]
    troubles: tuple[str, ...]


def read_instances(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> Details:
    """Read every instance of the fleets; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    reading = Reading(aws, stack, now, [str(error) for error in documents.errors])
    reader = AutoScalingReader(aws.autoscaling, aws.ec2)
    fleets: dict[str, Sequence[InstanceStatus]] = {}
    for each, looked in reading.fleets(chosen(documents, fleet)):
        named = looked.groups or {}
        groups = [g for g in (each.spot_group, each.on_demand_group) if g in named]
        marks = reading.attempt(f"{each.name}: marks are not known", partial(reader.marked, groups))
        draining = {mark.instance_id: mark.gone_at for mark in marks or ()}
        ids = [i.instance_id for group in groups for i in named[group].instances] + list(draining)
        lives = reading.attempt(
            f"{each.name}: ages are not known", partial(InstanceLives(aws.ec2).of, ids, now)
        )
        book = reading.attempt(
            f"{each.name}: prices are not known",
            partial(_prices, aws, tuple((lives or {}).values()), now),
        )
        fleets[each.name] = instances_of(each, looked, lives or {}, draining, book, now)
    return Details(
        events=False,
        stack=stack.name,
        at=now,
        fleets=fleets,
        troubles=tuple(reading.troubles),
    )


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
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    reading = Reading(aws, stack, now, [str(error) for error in documents.errors])
    since = now - EVENTS_OF
    fleets: dict[str, Sequence[Event]] = {}
    for each in chosen(documents, fleet):
        records = reading.attempt(
            f"{each.name}: decisions are not known",
            partial(aws.records(stack).between, each.name, since, now),
        )
        events = list(_of_records(records.records if records else ()))
        for group in (each.spot_group, each.on_demand_group):
            activities = reading.attempt(
                f"{group}: activities are not known",
                partial(read_activities, aws, group, since, now),
            )
            events += _of_activities(activities or ())
        fleets[each.name] = folded(events)[-EVENTS_AT_MOST:]
    return Details(
        events=True, stack=stack.name, at=now, fleets=fleets, troubles=tuple(reading.troubles)
    )


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
            yield Event(
                at=record.at,
                last=record.at,
                what=f"{record.controller}: {record.reason}",
                failed=True,
            )
        elif (what := changed(record)) or failed:
            why = "; ".join([what or record.reason, *failed])
            yield Event(
                at=record.at,
                last=record.at,
                what=f"{record.controller}: {record.action} [{record.rule}] {why}",
                failed=bool(failed),
            )


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


def details_json(details: Details) -> str:
    """Write it for programs: times in RFC 3339, ages in seconds, costs in USD."""
    return as_json(asdict(details))


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
