"""Why? What turns saw and did, and what groups did by themselves: as text, as JSON, as a page."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from spotkeeper.domain.decision import FAILED, Action, Controller, DecisionRecord, Outcome
from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import FleetError
from spotkeeper_charts.page import (
    Block,
    Chart,
    Heading,
    Marks,
    Notes,
    Page,
    Row,
    Series,
    Table,
    Text,
    Timeline,
    Value,
)
from spotkeeper_operator.aws import Aws, chosen, read_activities
from spotkeeper_operator.text import STALE_TURN_S, as_json, labelled, paragraphs, spoken

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
    table = aws.records(stack)
    for each in chosen(aws.documents(stack), fleet):
        found = table.between(each.name, first, last)
        records += found.records
        unreadable += found.unreadable
        if rule is None:
            begin = first if table.any_before(each.name, first) else None
            empty = holes(found.records, begin, last)
            missing += (_with_losses(aws, each, hole) for hole in empty)
    return Decisions(
        entries=timeline(records, rule),
        unreadable=unreadable,
        records=tuple(records),
        holes=tuple(missing),
    )


def _with_losses(aws: Aws, fleet: Fleet, hole: Hole) -> Hole:
    """Add the spot instances that AWS took while no availability turn worked."""
    if hole.controller is not Controller.AVAILABILITY:
        return hole
    try:
        activities = read_activities(aws, fleet.spot_group, hole.first, hole.last)
    except FleetError as error:
        return replace(hole, unread=str(error))
    taken = (one for one in activities if one.taken)
    return replace(
        hole, lost=tuple(f"{it.at:%H:%M:%S} {', '.join(it.instances)}: {it.cause}" for it in taken)
    )


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
        if before is not None and _same(earlier := entries[before], entry):
            entries[before] = replace(entry, first=earlier.first, turns=earlier.turns + 1)
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
    """List the calls and what AWS answered, a line each."""
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
    return as_json({"entries": entries, "unreadable": unreadable, "holes": holes})


def _block(entry: Entry) -> list[str]:
    lines = labelled(_when(entry.first, entry.last, entry.turns), "", indent=0)
    if entry.rule == FAILED:
        lines += labelled(entry.fleet, f"{entry.controller}: FAILED")
    else:
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


INTRO = (
    "Point at, or tap, a moment to see both controllers' last decision and its reason below. "
    "Arrow keys go from turn to turn."
)


def explain_page(
    records: Sequence[DecisionRecord], first: datetime, last: datetime, rule: str | None = None
) -> Page:
    """What was decided between two instants, fleet by fleet; times are UTC."""
    blocks: list[Block] = []
    fleets = sorted({record.fleet for record in records})
    for fleet in fleets:
        mine = sorted((r for r in records if r.fleet == fleet), key=lambda r: r.at)
        blocks += [Heading(fleet)] * (len(fleets) > 1)
        blocks.append(records_timeline(mine, first, last))
        blocks.append(decided(timeline(mine, rule), first))
    return Page(
        title="What was decided, and why",
        subtitle=f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC",
        footer="Written by spotkeeper explain from the decision records.",
        blocks=blocks or [Text("No decision was recorded in this time.")],
    )


def records_timeline(
    records: Sequence[DecisionRecord], first: datetime, last: datetime
) -> Timeline:
    """One fleet's records, in the order of time, as charts over one axis."""
    notes = [[r for r in records if r.controller is each] for each in Controller]
    availability, health = ([r for r in of if r.rule != FAILED] for of in notes)
    return Timeline(
        length_s=max(1.0, (last - first).total_seconds()),
        clock_s=first.hour * 3600.0 + first.minute * 60.0 + first.second,
        date=f"{first:%Y-%m-%d}",
        start_at=_seconds(records[-1].at, first) if records else 0.0,
        intro=INTRO,
        notes=[_notes(of, first) for of in notes if of],
        charts=[
            _fleet(availability, first),
            *([_load(health, first), _waits(health, first)] if health else []),
        ],
    )


def _column(
    records: Sequence[DecisionRecord], name: str, first: datetime
) -> tuple[list[float], list[Value]]:
    found: list[tuple[float, Value]] = []
    for record in records:
        at = _seconds(record.at, first)
        # What was seen holds until the next turn, but not through a time without a turn.
        if found and at - found[-1][0] > STALE_TURN_S:
            found.append((found[-1][0] + STALE_TURN_S, None))
        found.append((at, known(record.seen).get(name)))
    return [at for at, _ in found], [value for _, value in found]


def _fleet(records: Sequence[DecisionRecord], first: datetime) -> Chart:
    t, spot = _column(records, "SpotServing", first)
    _, on_demand = _column(records, "OnDemandServing", first)
    _, wanted = _column(records, "SpotDesired", first)
    pairs = zip(spot, on_demand, strict=True)
    both: list[Value] = [None if a is None else a + (b or 0.0) for a, b in pairs]
    held = [value or 0.0 for value in spot]
    warned = [_seconds(r.at, first) for r in records if r.seen.get("Interruptions")]
    return Chart(
        title="Fleet",
        unit="instances serving",
        height=260,
        whole=True,
        marks=Marks(label="spot instances warned or lost", colour="loss", at=warned),
        series=[
            Series(label="spot", colour="spot", kind="area", t=t, values=spot),
            Series(label="on-demand", colour="on-demand", kind="area", t=t, values=both, base=held),
            Series(label="spot wanted", colour="target", t=t, values=wanted),
        ],
    )


def _load(records: Sequence[DecisionRecord], first: datetime) -> Chart:
    t, load = _column(records, "OfferedLoad", first)
    _, live = _column(records, "WorkersLive", first)
    _, needed = _column(records, "WorkersNeeded", first)
    return Chart(
        title="Load",
        unit="workers",
        series=[
            Series(
                label="offered load", colour="load", kind="area", t=t, values=load, crowded="mean"
            ),
            Series(label="live", colour="target", t=t, values=live, width=1.5),
            Series(label="needed", colour="wait", t=t, values=needed, width=1),
        ],
    )


def _waits(records: Sequence[DecisionRecord], first: datetime) -> Chart:
    t, p95 = _column(records, "WaitP95", first)
    return Chart(
        title="Wait",
        unit="seconds from arrival to start; 95 % waited no longer",
        height=130,
        series=[Series(label="95th percentile", colour="wait", t=t, values=p95, crowded="highest")],
    )


def _notes(records: Sequence[DecisionRecord], first: datetime) -> Notes:
    times = [_seconds(r.at, first) for r in records]
    return Notes(name=records[0].controller, t=times, texts=[*map(_words, records)])


def _words(record: DecisionRecord) -> str:
    asked = "; ".join(answered(record.outcomes))
    told = f"{record.action}, {record.rule}: {record.reason}"
    return f"{told}. Asked: {asked}" if asked else told


def decided(entries: Sequence[Entry], first: datetime) -> Table:
    """The decisions as rows that lead to their instants; `first` is where the timeline begins."""
    return Table(
        caption="What was decided",
        intro="Holds that repeat are one row. Press a row to see it in the picture.",
        columns=("time", "controller", "decision", "why", "requests to AWS"),
        rows=[
            Row(cells=tuple(_cells(entry)), at_s=_seconds(entry.first, first)) for entry in entries
        ],
    )


def _cells(entry: Entry) -> Iterator[str]:
    yield f"{entry.first:%m-%d %H:%M:%S}" + (f", {entry.turns} turns" if entry.turns > 1 else "")
    yield entry.controller
    yield f"{entry.action} [{entry.rule}]"
    yield "; ".join([entry.reason, *entry.failures, f"seen: {seen_words(entry) or 'nothing'}"])
    yield "; ".join(answered(entry.outcomes))


def _seconds(at: datetime, first: datetime) -> float:
    return round((at - first).total_seconds(), 1)
