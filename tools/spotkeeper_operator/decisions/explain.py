"""Why did it do that? Decision records as a timeline, with the turns that failed or are missing."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import pairwise

from spotkeeper.domain.decision import FAILED, Action, Controller, DecisionRecord, Outcome
from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import FleetError
from spotkeeper_operator.activities import Activity, read_activities
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.durations import STALE_TURN_S, spoken
from spotkeeper_operator.text import as_json, labelled, paragraphs

# Search logs of this age tell of the time of a turn; `STALE` counts turns that missed logs.
LOGS_TELL_S, STALE = 120.0, "StaleSearchLogs"
# What tells most of a turn, in the order in which a person asks.
_SHOWN = {
    Controller.AVAILABILITY: (
        ("SpotDesired", "spot wanted"),
        ("SpotServing", "serving"),
        ("SpotLaunching", "launching"),
        ("SpotAtRisk", "at risk"),
        ("Shortfall", "short"),
        ("OnDemandDesired", "on-demand"),
        ("OnDemandServing", "of it serving"),
    ),
    Controller.HEALTH: (
        ("OfferedLoad", "erlangs"),
        ("LoadRate", "% busy"),
        ("WorkersNeeded", "workers needed"),
        ("WorkersLive", "live"),
        ("WaitP95", "s waited (p95)"),
        ("SearchLogAge", "s since the newest log"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One or more turns of one controller that did the same; only holds are folded.

    `rule`, `reason` and `seen` are those of the last of them.
    """

    fleet: str
    controller: Controller
    first: datetime
    last: datetime
    turns: int
    action: Action
    rule: str
    reason: str
    seen: dict[str, float]
    outcomes: tuple[Outcome, ...]
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A time in which no turn of a controller left a record.

    `lost` names the spot instances that AWS took in it, with the cause that AWS gave; `unread` says
    why they are not known.
    """

    fleet: str
    controller: Controller
    first: datetime
    last: datetime
    lost: tuple[str, ...] = ()
    unread: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """A timeline, its holes and its records; `unreadable` ones were written by another release."""

    entries: tuple[Entry, ...]
    unreadable: int = 0
    records: tuple[DecisionRecord, ...] = ()
    holes: tuple[Hole, ...] = ()


def read_timeline(
    aws: Aws, stack_name: str, fleet: str | None, first: datetime, last: datetime, rule: str | None
) -> Decisions:
    """Read what was decided between two instants; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    records: list[DecisionRecord] = []
    missing: list[Hole] = []
    unreadable = 0
    for each in chosen(aws.documents(stack), fleet):
        found = aws.records(stack).between(each.name, first, last)
        records += found.records
        unreadable += found.unreadable
        if rule is None:
            turned_before = aws.records(stack).any_before(each.name, first)
            empty = holes(found.records, first if turned_before else None, last)
            missing += (_with_losses(aws, each, hole) for hole in empty)
    entries = timeline(records, rule)
    return Decisions(
        entries=entries, unreadable=unreadable, records=tuple(records), holes=tuple(missing)
    )


def _with_losses(aws: Aws, fleet: Fleet, hole: Hole) -> Hole:
    """Add the spot instances that AWS took while no availability turn worked."""
    if hole.controller is not Controller.AVAILABILITY:
        return hole
    try:
        activities = read_activities(aws, fleet.spot_group, hole.first, hole.last)
    except FleetError as error:
        return replace(hole, unread=str(error))
    return replace(hole, lost=tuple(_lost(one) for one in activities if one.taken))


def _lost(activity: Activity) -> str:
    return f"{activity.at:%H:%M:%S} {', '.join(activity.instances)}: {activity.cause}"


def holes(
    records: Iterable[DecisionRecord], first: datetime | None, last: datetime
) -> tuple[Hole, ...]:
    """Find the times without a turn since an instant; a turn that failed fills none.

    A fleet that is new, whose `first` is None, has none before its first turn.

    Nothing is known of a controller without any record: its function may not be deployed.
    """
    times: defaultdict[tuple[str, Controller], list[datetime]] = defaultdict(list)
    begins = [first] if first else []
    for record in records:
        if record.rule != FAILED:
            times[record.fleet, record.controller].append(record.at)
    return tuple(
        Hole(fleet=fleet, controller=controller, first=before, last=after)
        for (fleet, controller), at in sorted(times.items())
        for before, after in pairwise(sorted([*begins, *at, last]))
        if (after - before).total_seconds() > STALE_TURN_S
    )


def timeline(records: Iterable[DecisionRecord], rule: str | None = None) -> tuple[Entry, ...]:
    """Order records by time, oldest first, and fold turns that follow each other and are alike.

    Turns with a hole, a failure or another decision between them are not folded.
    """
    entries: list[Entry] = []
    latest: dict[tuple[str, Controller], int] = {}
    for record in sorted(records, key=lambda r: r.at):
        key = (record.fleet, record.controller)
        entry = _entry(record)
        before = latest.get(key)
        if before is not None and _same(entries[before], entry):
            entries[before] = _folded(entries[before], entry)
        else:
            latest[key] = len(entries)
            entries.append(entry)
    return tuple(entry for entry in entries if rule is None or entry.rule == rule)


def known(seen: Mapping[str, float]) -> Mapping[str, float]:
    """Leave out what a turn saw of logs that were too old to tell of its own time."""
    never = "SearchLogAge" not in seen and not seen.get("WorkersLive")
    if not never and seen.get("SearchLogAge", 0.0) <= LOGS_TELL_S:
        return seen
    # Without missing logs it is quiet: the load is known, and nobody waited.
    load = ("OfferedLoad", "LoadRate", "WorkersLive") if never or seen.get(STALE) else ()
    old = {"WaitP95", *load, *(("WorkersNeeded",) if never else ())}
    return {name: value for name, value in seen.items() if name not in old}


def seen_words(entry: Entry) -> str:
    """Say what a turn saw, in a line; what was none is left out, but for the first."""
    seen = known(entry.seen)
    # The clock of a worker may be ahead: no log is younger than now.
    shown = [
        (max(0.0, seen[name]), words) for name, words in _SHOWN[entry.controller] if name in seen
    ]
    return ", ".join(
        f"{value:.3g} {words}" for place, (value, words) in enumerate(shown) if value or not place
    )


def answered(outcomes: Sequence[Outcome]) -> list[str]:
    """Say what was asked of AWS and what it answered, a line each."""
    return [f"{o.asked} -> {'only observed' if o.would else o.error or 'done'}" for o in outcomes]


def _entry(record: DecisionRecord) -> Entry:
    return Entry(
        fleet=record.fleet,
        controller=record.controller,
        first=record.at,
        last=record.at,
        turns=1,
        action=record.action,
        rule=record.rule,
        reason=record.reason,
        seen=dict(record.seen),
        outcomes=record.outcomes,
        failures=record.failures,
    )


def _same(before: Entry, after: Entry) -> bool:
    """Say whether a later turn adds nothing but time and numbers."""
    return (
        before.action is after.action is Action.HOLD
        and before.rule == after.rule
        and all(outcome.would for outcome in before.outcomes)
        and before.outcomes == after.outcomes
        and before.failures == after.failures
        and (before.rule != FAILED or before.reason == after.reason)
        and (after.first - before.last).total_seconds() <= STALE_TURN_S
    )


def _folded(before: Entry, after: Entry) -> Entry:
    return Entry(
        fleet=after.fleet,
        controller=after.controller,
        first=before.first,
        last=after.last,
        turns=before.turns + 1,
        action=after.action,
        rule=after.rule,
        reason=after.reason,
        seen=after.seen,
        outcomes=after.outcomes,
        failures=after.failures,
    )


def explain_text(entries: Sequence[Entry], unreadable: int = 0, holes: Sequence[Hole] = ()) -> str:
    """Write what was decided and why, oldest first; times are UTC."""
    parts = [(entry.first, _block(entry)) for entry in entries]
    parts += [(hole.first, _hole(hole)) for hole in holes]
    blocks = [block for _, block in sorted(parts, key=lambda part: part[0])]
    blocks = blocks or [["no decision in this time"]]
    if unreadable:
        blocks.append([f"{unreadable} records of another release are left out"])
    return paragraphs(blocks)


def explain_json(entries: Sequence[Entry], unreadable: int = 0, holes: Sequence[Hole] = ()) -> str:
    """Write the same for programs."""
    whole = {
        "entries": [asdict(entry) for entry in entries],
        "unreadable": unreadable,
        "holes": [asdict(hole) for hole in holes],
    }
    return as_json(whole)


def _block(entry: Entry) -> list[str]:
    lines = labelled(_when(entry.first, entry.last, entry.turns), "", indent=0)
    if entry.rule == FAILED:
        lines += labelled(entry.fleet, f"{entry.controller}: FAILED")
        return lines + labelled("why", entry.reason)
    lines += labelled(entry.fleet, f"{entry.controller}: {entry.action} [{entry.rule}]")
    lines += labelled("seen", seen_words(entry) or "nothing")
    lines += labelled("why", entry.reason)
    for failure in entry.failures:
        lines += labelled("failure", failure)
    for line in answered(entry.outcomes):
        lines += labelled("asked", line)
    return lines


def _hole(hole: Hole) -> list[str]:
    lasting = spoken((hole.last - hole.first).total_seconds())
    lines = labelled(_when(hole.first, hole.last), "", indent=0)
    lines += labelled(hole.fleet, f"{hole.controller}: NO TURN WORKED for {lasting}")
    for lost in hole.lost:
        lines += labelled("AWS took", lost)
    return lines + (labelled("AWS took", f"unknown: {hole.unread}") if hole.unread else [])


def _when(first: datetime, last: datetime, turns: int | None = None) -> str:
    text = f"{first:%Y-%m-%d %H:%M:%S}"
    if turns == 1:
        return text
    day = "" if first.date() == last.date() else f"{last:%Y-%m-%d} "
    return f"{text} to {day}{last:%H:%M:%S}" + (f", {turns} turns" if turns else "")
