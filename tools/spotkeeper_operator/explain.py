"""Why? What turns saw and did, and what groups did by themselves: as text, as JSON, as a page."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

from spotkeeper.adapters.dynamodb.decision_records import Records
from spotkeeper.domain.decision import (
    FAILED,
    Answer,
    Controller,
    DecisionRecord,
    HealthFigures,
    Outcome,
    Request,
)
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.ports import FleetError
from spotkeeper_charts import page
from spotkeeper_operator.aws import Aws, chosen, read_activities
from spotkeeper_operator.text import STALE_TURN_S, as_json, extended, labelled, paragraphs, spoken

# Search logs of this age tell of the time of a turn.
LOGS_TELL_S = 120.0
_ID = re.compile(r"\bi-[0-9a-f]+\b")
# EC2 adds hundreds of letters to a refusal; and ids of single calls, which differ each time.
_ENCODED = re.compile(
    r"\s*Encoded authorization failure message: \S+|\s*\(?Request ?ID: [\w-]+\)?", re.IGNORECASE
)
# This many instances of equal refusals are named.
AT_MOST_NAMED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One or more turns of one controller that did the same, with the record of the last.

    Only holds are folded, and turns of which AWS refused all.
    """

    last: DecisionRecord
    first: datetime
    turns: int = 1


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
        read = table.between(each.name, first, last)
        records += read.records
        unreadable += read.unreadable
        begin = first if rule is None and table.any_before(each.name, first) else None
        for hole in holes(read.records, begin, last) if rule is None else ():
            lost, unread = [], ""
            if hole.controller is Controller.AVAILABILITY:
                # The spot instances that AWS took while no availability turn worked.
                try:
                    activities = read_activities(aws, each.spot_group, hole.first, hole.last)
                    lost = [
                        f"{activity.at:%H:%M:%S} {', '.join(activity.instances)}: {activity.cause}"
                        for activity in activities
                        if activity.taken
                    ]
                except FleetError as error:
                    unread = str(error)
            missing.append(replace(hole, lost=tuple(lost), unread=unread))
    return Decisions(
        entries=timeline(records, rule),
        unreadable=unreadable,
        records=tuple(records),
        holes=tuple(missing),
    )


def decisions(records: Records) -> Decisions:
    """Return a timeline of records without a look for holes: a job leaves none while it waits."""
    return Decisions(entries=timeline(records.records), unreadable=records.unreadable)


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
        place = latest.get((record.fleet, record.controller))
        if place is not None and _adds_nothing(entries[place].last, record):
            before = entries[place]
            entries[place] = replace(before, last=record, turns=before.turns + 1)
        else:
            latest[record.fleet, record.controller] = len(entries)
            entries.append(Entry(last=record, first=record.at))
    return tuple(entry for entry in entries if rule is None or entry.last.rule == rule)


def _adds_nothing(before: DecisionRecord, after: DecisionRecord) -> bool:
    """Say whether a later turn adds nothing but time and numbers."""
    return (
        before.action is after.action
        and before.rule == after.rule
        and not before.done
        and {*map(_kind_of, before.outcomes)} == {*map(_kind_of, after.outcomes)}
        and {*map(_words_of, before.failures)} == {*map(_words_of, after.failures)}
        and (before.rule != FAILED or _readable(before.failure) == _readable(after.failure))
        and (after.at - before.at).total_seconds() <= STALE_TURN_S
    )


def known(turn: DecisionRecord) -> HealthFigures | None:
    """Leave out what a turn saw of logs that were too old to tell of its own time."""
    figures = turn.health
    if figures is None:
        return None
    never = figures.search_log_age_s is None and not figures.workers_live
    if not never and (figures.search_log_age_s or 0.0) <= LOGS_TELL_S:
        return figures
    if never:
        figures = replace(figures, workers_needed=None)
    if never or turn.stale:
        figures = replace(figures, offered_load=None, load_rate=None, workers_live=None)
    # Without missing logs it is quiet: the load is known, and nobody waited.
    return replace(figures, wait_p95_s=None)


def seen_words(turn: DecisionRecord) -> str:
    """Say what a turn saw, in a line; what was none is left out, but for the first."""
    pairs: list[tuple[float | None, str]] = []
    if figures := turn.availability:
        pairs = [
            (figures.spot_desired, "spot wanted"),
            (figures.spot_serving, "serving"),
            (figures.spot_launching, "launching"),
            (figures.spot_at_risk, "at risk"),
            (figures.shortfall, "short"),
            (figures.on_demand_desired, "on-demand"),
            (figures.on_demand_serving, "of these serving"),
        ]
    if load := known(turn):
        pairs = [
            (load.offered_load, "erlangs"),
            (load.load_rate, "% busy"),
            (load.workers_needed, "workers needed"),
            (load.workers_live, "live"),
            (load.wait_p95_s, "s waited (p95)"),
            (load.search_log_age_s, "s since the newest log"),
        ]
    # The clock of a worker may be ahead: no log is younger than now.
    shown = [(max(0.0, value), words) for value, words in pairs if value is not None]
    parts = [f"{value:.3g} {words}" for n, (value, words) in enumerate(shown) if value or not n]
    return ", ".join(parts) or "nothing"


type Kind = tuple[Request, Answer, str]


def answered(outcomes: Sequence[Outcome]) -> list[str]:
    """List the calls and what AWS answered, a line each; equal refusals share one."""
    alike: dict[Kind, list[Outcome]] = {}
    for outcome in outcomes:
        alike.setdefault(_kind_of(outcome), []).append(outcome)
    return [f"{_together(some)} -> {_answer(some[0])}" for some in alike.values()]


def _answer(outcome: Outcome) -> str:
    if outcome.error:
        return _readable(str(outcome.error))
    return "only observed" if outcome.answer is Answer.OBSERVED else "done"


def _kind_of(outcome: Outcome) -> Kind:
    """Return what equal refusals have in common; only these are equal without their instances."""
    if outcome.error is None:
        return outcome.request, outcome.answer, ""
    error = _ID.sub("", _readable(str(outcome.error)))
    return replace(outcome.request, instances=(), why=""), outcome.answer, error


def _together(alike: Sequence[Outcome]) -> str:
    """Name the instances of requests that differ in nothing else."""
    first, *others = [one.request for one in alike]
    if not others:
        return first.text()
    named = [i for one in (first, *others[:AT_MOST_NAMED]) for i in one.instances]
    rest = f" and {len(others) - AT_MOST_NAMED} more" if len(others) > AT_MOST_NAMED else ""
    return first.text(", ".join(named) + rest)


def _words_of(failure: LaunchFailure) -> str:
    return f"{failure.failure_class}: {failure.text}"


def _readable(error: str) -> str:
    """Leave out of an error what no person reads, and what differs each time."""
    return _ENCODED.sub("", error)


def explain_text(timeline: Decisions) -> str:
    """Write what was decided and why, oldest first; times are UTC."""
    parts: list[tuple[datetime, list[str]]] = []
    for entry in timeline.entries:
        turn, when = entry.last, f"{entry.first:%Y-%m-%d %H:%M:%S}"
        if entry.turns > 1:
            when = f"{_span(entry.first, turn.at)}, {entry.turns} turns"
        if turn.rule == FAILED:
            rows = [(turn.fleet, f"{turn.controller}: FAILED")]
        else:
            rows = [(turn.fleet, f"{turn.controller}: {turn.action} [{turn.rule}]")]
            if turn.controller is not Controller.JOBS:
                rows.append(("seen", seen_words(turn)))
        rows += [("why", turn.reason)] if turn.reason else []
        rows += (("not read", each) for each in turn.unread)
        new = (one for one in turn.failures if one.text not in turn.reason)
        rows += (("failure", _words_of(failure)) for failure in new)
        rows += (("requested", line) for line in answered(turn.outcomes))
        parts.append((entry.first, [when, *(line for row in rows for line in labelled(*row))]))
    for hole in timeline.holes:
        lasting = spoken((hole.last - hole.first).total_seconds())
        rows = [(hole.fleet, f"{hole.controller}: NO TURN SUCCEEDED for {lasting}")]
        rows += (("AWS took", lost) for lost in hole.lost)
        rows += [("AWS took", f"unknown: {hole.unread}")] if hole.unread else []
        lines = [line for row in rows for line in labelled(*row)]
        parts.append((hole.first, [_span(hole.first, hole.last), *lines]))
    blocks = [block for _, block in sorted(parts, key=lambda part: part[0])]
    blocks = blocks or [["no decision in this time"]]
    if timeline.unreadable:
        blocks.append([f"{timeline.unreadable} records of another release are left out"])
    return paragraphs(blocks)


def _span(first: datetime, last: datetime) -> str:
    day = "" if first.date() == last.date() else f"{last:%Y-%m-%d} "
    return f"{first:%Y-%m-%d %H:%M:%S} to {day}{last:%H:%M:%S}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAnswer(DecisionRecord):
    """Turns that did the same, with the record of the last of them."""

    first: datetime
    last: datetime
    turns: int


def explain_json(timeline: Decisions) -> str:
    """Write the same for programs."""
    return as_json(
        entries=[
            extended(EntryAnswer, each.last, first=each.first, last=each.last.at, turns=each.turns)
            for each in timeline.entries
        ],
        unreadable=timeline.unreadable,
        holes=timeline.holes,
    )


INTRO = (
    "Point at, or tap, a moment to see both controllers' last decision and its reason below. "
    "Arrow keys go from turn to turn."
)


def explain_page(
    records: Sequence[DecisionRecord], first: datetime, last: datetime, rule: str | None = None
) -> page.Page:
    """What was decided between two instants, fleet by fleet; times are UTC."""
    blocks: list[page.Block] = []
    fleets = sorted({record.fleet for record in records})
    for fleet in fleets:
        mine = sorted((r for r in records if r.fleet == fleet), key=lambda r: r.at)
        blocks += [page.Heading(fleet)] * (len(fleets) > 1)
        blocks.append(records_timeline(mine, first, last))
        blocks.append(decided(timeline(mine, rule), first))
    return page.Page(
        title="What was decided, and why",
        subtitle=f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC",
        footer="Written by spotkeeper explain from the decision records.",
        blocks=blocks or [page.Text("No decision was recorded in this time.")],
    )


def records_timeline(
    records: Sequence[DecisionRecord], first: datetime, last: datetime
) -> page.Timeline:
    """One fleet's records, in the order of time, as charts over one axis."""
    by = {each: [r for r in records if r.controller is each] for each in Controller}
    notes = [
        page.Notes(name=each, t=[_seconds(r.at, first) for r in mine], texts=[*map(_words, mine)])
        for each, mine in by.items()
        if mine
    ]

    def drawn[Seen](
        looks: Iterable[tuple[datetime, Seen]],
        of: Callable[[Seen], float | None],
        label: str,
        colour: page.Colour,
        **more: Any,
    ) -> page.Series:
        """What was seen holds until the next turn, but not through a time without a turn."""
        points: list[tuple[float, page.Value]] = []
        for at, figures in looks:
            at_s = _seconds(at, first)
            if points and at_s - points[-1][0] > STALE_TURN_S:
                points.append((points[-1][0] + STALE_TURN_S, None))
            points.append((at_s, of(figures)))
        t, values = [at_s for at_s, _ in points], [value for _, value in points]
        return page.Series(label=label, colour=colour, t=t, values=values, **more)

    fleet = [(r.at, r.availability) for r in records if r.availability]
    load = [(r.at, figures) for r in records if (figures := known(r))]
    warned = [_seconds(at, first) for at, figures in fleet if figures.interruptions]
    spot = drawn(fleet, lambda figures: figures.spot_serving, "spot", "spot", kind="area")
    beside = drawn(
        fleet, lambda figures: figures.on_demand_serving, "on-demand", "on-demand", kind="area"
    )
    pairs = zip(spot.values, beside.values, strict=True)
    both = [None if a is None else a + (b or 0.0) for a, b in pairs]
    charts = [
        page.Chart(
            title="Fleet",
            unit="instances serving",
            height=260,
            whole=True,
            marks=page.Marks(label="spot instances warned or lost", colour="loss", at=warned),
            series=[
                spot,
                replace(beside, values=both, base=[value or 0.0 for value in spot.values]),
                drawn(fleet, lambda figures: figures.spot_desired, "spot wanted", "target"),
            ],
        ),
        page.Chart(
            title="Load",
            unit="workers",
            series=[
                drawn(
                    load,
                    lambda figures: figures.offered_load,
                    "offered load",
                    "load",
                    kind="area",
                    crowded="mean",
                ),
                drawn(load, lambda figures: figures.workers_live, "live", "target", width=1.5),
                drawn(load, lambda figures: figures.workers_needed, "needed", "wait", width=1),
            ],
        ),
        page.Chart(
            title="Wait",
            unit="seconds from arrival to start; 95 % waited no longer",
            height=130,
            series=[
                drawn(
                    load,
                    lambda figures: figures.wait_p95_s,
                    "95th percentile",
                    "wait",
                    crowded="highest",
                )
            ],
        ),
    ]
    return page.Timeline(
        length_s=max(1.0, (last - first).total_seconds()),
        clock_s=first.hour * 3600.0 + first.minute * 60.0 + first.second,
        date=f"{first:%Y-%m-%d}",
        start_at=_seconds(records[-1].at, first) if records else 0.0,
        intro=INTRO,
        notes=notes,
        charts=charts if charts[1].series[0].t else charts[:1],
    )


def _words(record: DecisionRecord) -> str:
    requests = "; ".join(answered(record.outcomes))
    decision = f"{record.action}, {record.rule}: {record.reason}"
    return f"{decision}. Requested: {requests}" if requests else decision


def decided(entries: Sequence[Entry], first: datetime) -> page.Table:
    """The decisions as rows that lead to their instants; `first` is where the timeline begins."""
    rows: list[page.Row] = []
    for entry in entries:
        turn, seen = entry.last, f"seen: {seen_words(entry.last)}"
        cells = (
            f"{entry.first:%m-%d %H:%M:%S}" + (f", {entry.turns} turns" * (entry.turns > 1)),
            turn.controller,
            f"{turn.action} [{turn.rule}]",
            "; ".join([turn.reason.removesuffix("."), *map(_words_of, turn.failures), seen]),
            "; ".join(answered(turn.outcomes)),
        )
        rows.append(page.Row(cells=cells, at_s=_seconds(entry.first, first)))
    return page.Table(
        caption="What was decided",
        intro="Equal turns in a row are one row. Press a row to see it in the picture.",
        columns=("time", "controller", "decision", "why", "requests to AWS"),
        rows=rows,
    )


def _seconds(at: datetime, first: datetime) -> float:
    return round((at - first).total_seconds(), 1)
