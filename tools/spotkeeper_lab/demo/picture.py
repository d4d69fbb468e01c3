"""A finished demo as a page: its figures, its charts, and what happened in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spotkeeper_charts.page import Figure, Page, Row, Table, Tiles
from spotkeeper_charts.timeline import Chart, Marks, Notes, Series, Spans, Timeline
from spotkeeper_lab.demo.figures import figures, headline, span
from spotkeeper_lab.end_to_end.day import Day
from spotkeeper_lab.end_to_end.record import Notice
from spotkeeper_lab.end_to_end.results import Results
from spotkeeper_lab.end_to_end.scene import LEAD_S
from spotkeeper_lab.end_to_end.series import (
    fleet_columns,
    load_columns,
    market_total,
    needed_column,
    per_second,
    wait_columns,
)

# Warnings of one burst come within seconds of each other.
TOGETHER_S = 5.0
LEAST_WAIT_S = 0.1
"""Where the logarithmic axis of waits begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that went wrong at `at_s`, and how it ended."""

    at_s: float
    clock: str
    what: str
    ended: str


def page(day: Day, found: Results) -> Page:
    """All that the demo's page shows."""
    settings, rows = day.scene.settings, figures(found.values)
    moments = sorted([*_notices(day, found), *_stories(day, found.values)], key=lambda m: m.at_s)
    return Page(
        title=f"{settings.hours:g} hours of Spotkeeper",
        subtitle=f"Spot market {settings.market.name}, requests {settings.requests.name}, "
        f"from hour {settings.start_h:g}. Times are UTC of the virtual clock.",
        footer="Written by spotkeeper demo; the decisions are in decisions.jsonl, "
        "the figures in summary.json.",
        blocks=[
            Tiles(headline(rows)),
            _timeline(day, found),
            *([_happened(moments)] if moments else []),
            _all_figures(rows),
        ],
    )


def _timeline(day: Day, found: Results) -> Timeline:
    losses = [loss - LEAD_S for loss in day.record.losses if loss >= LEAD_S]
    notes = [_notes(found, controller) for controller in ("availability", "health")]
    first_turn = next(iter(notes[0].t), 0.0)
    return Timeline(
        length_s=day.scene.end_s - LEAD_S,
        clock_s=day.scene.settings.start_h * 3600.0,
        start_at=losses[0] if losses else first_turn,
        intro="Point at, or tap, a moment: both checkers' last decision and its reason appear "
        "below. Arrow keys go from turn to turn.",
        bands=_made_to_fail(day, found.values),
        notes=notes,
        charts=[
            _fleet(day, losses),
            _market(day),
            _load(day, found),
            _waits(day),
        ],
    )


def _fleet(day: Day, losses: Sequence[float]) -> Chart:
    columns = fleet_columns(day.record.looks)
    t, spot = columns["t"], columns["spot"]
    both = [held + more for held, more in zip(spot, columns["on_demand"], strict=True)]
    asked = "target (asked of the spot group)"
    return Chart(
        title="Fleet",
        unit="instances serving",
        height=260,
        whole=True,
        marks=Marks(label="spot taken away", colour="loss", at=losses),
        series=[
            Series(label="spot", colour="spot", kind="area", t=t, values=spot),
            Series(label="on-demand", colour="on-demand", kind="area", t=t, values=both, base=spot),
            Series(label=asked, colour="target", t=t, values=columns["target"]),
        ],
    )


def _market(day: Day) -> Chart:
    t, capacity = market_total(day.scene.market)
    end_s = day.scene.end_s - LEAD_S
    dry = [
        (at, t[n + 1] if n + 1 < len(t) else end_s, "no spot anywhere")
        for n, at in enumerate(t)
        if not capacity[n]
    ]
    return Chart(
        title="Spot market",
        unit="instances that AWS had to give, all zones",
        height=130,
        whole=True,
        series=[Series(label="capacity", colour="spot", kind="area", t=t, values=capacity)],
        spans=[Spans(label="none anywhere", colour="dry", spans=dry)],
    )


def _load(day: Day, found: Results) -> Chart:
    looks, end_s = day.record.looks, day.scene.end_s
    workers = per_second(looks, lambda look: look.workers, end_s)
    needs = [
        (decision.at_s, record["seen"]["WorkersNeeded"])
        for decision, record in zip(found.decisions, found.records, strict=True)
        if "WorkersNeeded" in record["seen"]
    ]
    times, needed = zip(*needs, strict=True) if needs else ((), ())
    columns = load_columns(day.force.ledger, workers, end_s)
    t = columns["t"]
    return Chart(
        title="Load",
        unit="workers",
        series=[
            Series(
                label="busy, on average of a minute",
                colour="load",
                kind="area",
                t=t,
                values=columns["busy"],
                crowded="mean",
            ),
            Series(
                label="taking requests", colour="target", t=t, values=columns["workers"], width=1.5
            ),
            Series(
                label="needed to keep the promise",
                colour="wait",
                t=t,
                values=needed_column(times, needed, end_s),
                width=1,
            ),
        ],
    )


def _waits(day: Day) -> Chart:
    t, columns = wait_columns(day.force.ledger, day.scene.end_s)
    promised_s = day.scene.settings.wait_objective_s
    return Chart(
        title="Wait",
        unit="seconds from arrival to start, per minute of arrival, logarithmic",
        height=160,
        log_from=LEAST_WAIT_S,
        series=[
            Series(
                label="longest",
                colour="worst",
                kind="area",
                t=t,
                values=columns["worst"],
                crowded="highest",
            ),
            Series(
                label="95th percentile",
                colour="wait",
                t=t,
                values=columns["p95"],
                crowded="mean",
                width=1.5,
            ),
            Series(label="promised", colour="loss", t=[0.0], values=[promised_s], width=1),
        ],
    )


def _made_to_fail(day: Day, values: dict[str, Any]) -> Spans:
    length_s = day.scene.end_s - LEAD_S
    return Spans(
        label="made to fail",
        colour="band",
        spans=[
            (story["started_s"], story["ended_s"] or length_s, story["what"])
            for story in values["incidents"]
            if story["started_s"] is not None
        ],
    )


def _notes(found: Results, controller: str) -> Notes:
    told = [
        (round(decision.at_s - LEAD_S, 1), _words(record))
        for decision, record in zip(found.decisions, found.records, strict=True)
        if record["controller"] == controller
    ]
    told.sort(key=lambda turn: turn[0])
    return Notes(name=controller, t=[at for at, _ in told], texts=[text for _, text in told])


def _words(record: Any) -> str:
    asked = [
        outcome["asked"] + (f" (failed: {outcome['error']})" if outcome["error"] else "")
        for outcome in record["outcomes"]
    ]
    reason = record["reason"] + (f". Asked: {'; '.join(asked)}" if asked else "")
    return f"{record['action']}, {record['rule']}: {reason}"


def _happened(moments: Sequence[Moment]) -> Table:
    return Table(
        caption="What happened",
        intro="Each row is one moment at which spot was taken away or something was made to go "
        "wrong. Press it to see it in the picture.",
        columns=("time", "what", "how it ended"),
        rows=[Row(cells=(one.clock, one.what, one.ended), at_s=one.at_s) for one in moments],
    )


def _all_figures(rows: Sequence[Figure]) -> Table:
    return Table(
        caption="All figures",
        columns=("figure", "value", "what it is"),
        numbers=("value",),
        rows=[Row(cells=(row.label, row.value, row.meaning)) for row in rows],
    )


def _notices(day: Day, found: Results) -> Iterator[Moment]:
    for group in _bursts(found.notices):
        first = group[0]
        zones = sorted({notice.pool.partition("/")[0] for notice in group})
        count = f"{len(group)} spot instances" if len(group) > 1 else first.instance_id
        yield _moment(
            day,
            first.at_s,
            f"AWS warns that it takes {count} ({', '.join(zones)})",
            f"replacement asked for after {_after(group, 'asked_s')}, "
            f"whole again {_after(group, 'served_s', 'stopped_s')} after it was gone, "
            f"back on spot alone after {_after(group, 'back_s')}",
        )


def _bursts(notices: Sequence[Notice]) -> list[list[Notice]]:
    """Warnings that came together."""
    bursts: list[list[Notice]] = []
    for notice in notices:
        if bursts and notice.at_s - bursts[-1][-1].at_s <= TOGETHER_S:
            bursts[-1].append(notice)
        else:
            bursts.append([notice])
    return bursts


def _after(group: Sequence[Notice], name: str, since: str = "at_s") -> str:
    """The longest time that one of them took, in words."""
    if any(getattr(notice, name) is None for notice in group):
        return "the end of the day"
    return span(max(getattr(notice, name) - getattr(notice, since) for notice in group))


def _stories(day: Day, values: dict[str, Any]) -> Iterator[Moment]:
    for story in values["incidents"]:
        if story["started_s"] is not None:
            at_s = story["started_s"] + LEAD_S
            yield _moment(day, at_s, f"Made to fail: {story['what']}", story["outcome"])


def _moment(day: Day, at_s: float, what: str, ended: str) -> Moment:
    clock = f"{day.time.at(at_s):%H:%M:%S}"
    return Moment(at_s=round(at_s - LEAD_S, 1), clock=clock, what=what, ended=ended)
