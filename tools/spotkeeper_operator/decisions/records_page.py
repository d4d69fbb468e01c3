"""Decision records as a page: the fleet over time, the load, the waits, and every reason."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from spotkeeper.domain.decision import FAILED, Controller, DecisionRecord
from spotkeeper_charts.page import Block, Heading, Page, Row, Table, Text
from spotkeeper_charts.timeline import Chart, Marks, Notes, Series, Timeline
from spotkeeper_operator.decisions.explain import Entry, answered, known, seen_words, timeline
from spotkeeper_operator.durations import STALE_TURN_S

type Value = float | None
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
    column = _columns(first)
    return Timeline(
        length_s=max(1.0, (last - first).total_seconds()),
        clock_s=first.hour * 3600.0 + first.minute * 60.0 + first.second,
        date=f"{first:%Y-%m-%d}",
        start_at=_seconds(records[-1].at, first) if records else 0.0,
        intro=INTRO,
        notes=[_notes(of, first) for of in notes if of],
        charts=[
            _fleet(availability, first, column),
            *([_load(health, column), _waits(health, column)] if health else []),
        ],
    )


type Column = Callable[[Sequence[DecisionRecord], str], tuple[list[float], list[Value]]]


def _columns(first: datetime) -> Column:
    def column(records: Sequence[DecisionRecord], name: str) -> tuple[list[float], list[Value]]:
        found: list[tuple[float, Value]] = []
        for record in records:
            at = _seconds(record.at, first)
            # What was seen holds until the next turn, but not through a time without a turn.
            if found and at - found[-1][0] > STALE_TURN_S:
                found.append((found[-1][0] + STALE_TURN_S, None))
            found.append((at, known(record.seen).get(name)))
        return [at for at, _ in found], [value for _, value in found]

    return column


def _fleet(records: Sequence[DecisionRecord], first: datetime, column: Column) -> Chart:
    t, spot = column(records, "SpotServing")
    _, on_demand = column(records, "OnDemandServing")
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
            Series(
                label="spot wanted", colour="target", t=t, values=column(records, "SpotDesired")[1]
            ),
        ],
    )


def _load(records: Sequence[DecisionRecord], column: Column) -> Chart:
    t, load = column(records, "OfferedLoad")
    _, live = column(records, "WorkersLive")
    _, needed = column(records, "WorkersNeeded")
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


def _waits(records: Sequence[DecisionRecord], column: Column) -> Chart:
    t, p95 = column(records, "WaitP95")
    return Chart(
        title="Wait",
        unit="seconds from arrival to start; 95 % waited no longer",
        height=130,
        series=[Series(label="95th percentile", colour="wait", t=t, values=p95, crowded="highest")],
    )


def _notes(records: Sequence[DecisionRecord], first: datetime) -> Notes:
    return Notes(
        name=records[0].controller,
        t=[_seconds(r.at, first) for r in records],
        texts=[_words(r) for r in records],
    )


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
