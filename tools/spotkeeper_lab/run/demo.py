"""The demo: a virtual day of spot capacity and requests through the deployed functions.

What is real: the functions, their handlers, settings and adapters. What is simulated: AWS, the spot
market, the workers, and the clock.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from spotkeeper_charts.page import (
    Chart,
    Figure,
    Marks,
    Notes,
    Page,
    Row,
    Series,
    Spans,
    Table,
    Tiles,
    Timeline,
    page_html,
)
from spotkeeper_lab.files import write_whole
from spotkeeper_lab.run.day import LEAD_S, Day, DemoSettings, Look, Notice, running, scene
from spotkeeper_lab.run.results import (
    Results,
    fleet_columns,
    load_columns,
    market_total,
    needed_column,
    per_second,
    results,
    wait_columns,
)

HEADLINE = {
    "time fully served",
    "saved",
    "cost of all on demand",
    "interruptions, losses",
    "requests late",
    "requests lost",
}
PROMISED = "in time, promised"
IN_SECONDS_BELOW = 120.0
"""Longer times are shown in minutes."""


def figures(values: dict[str, Any]) -> list[Figure]:
    """The figures of a day in the order in which they are read."""
    v, settings = values, values["settings"]
    promised = settings["fleet"]["objective"]["share"]
    waits = " / ".join(f"{v[f'wait_p{p}_s']:g}" for p in (50, 95, 99))
    rows = [
        (
            "time fully served",
            _percent(v["served_share"]),
            "share of time in which at least the instances serve that were requested a "
            "start-up time ago; a lost one is missed at once",
        ),
        (
            "instance time served",
            _percent(v["served_instance_share"]),
            "instance hours that served, of those owed in the same sense",
        ),
        (
            "cost of all on demand",
            _percent(v["cost_vs_on_demand"], 1),
            f"at a spot price of {settings['price_ratio']:.2f} of on demand, start-up time and "
            "the warm pool's disks paid: against the same target all on demand",
        ),
        (
            "saved",
            _percent(1 - v["cost_vs_on_demand"], 1),
            "the rest of it: not paid, against the same target all on demand",
        ),
        (
            "cost of a fixed fleet",
            _percent(v["cost_vs_fixed_on_demand"], 1),
            f"against {v['target_peak']} on-demand instances, the peak, all day",
        ),
        (
            "instance hours",
            f"{v['spot_hours']:.1f} spot, {v['on_demand_hours']:.1f} on demand",
            f"{v['target_hours']:.1f} were requested",
        ),
        (
            "interruptions, losses",
            f"{v['interruptions']}, {v['losses']}",
            "warnings of AWS, and spot instances that it took",
        ),
        (
            "replacement requested",
            _mean_and_longest(v["replacement_asked_s"]),
            "from a warning until what serves, launches or was requested is as much as the target",
        ),
        (
            "whole again",
            _mean_and_longest(v["whole_again_s"]),
            "from the end of a warned instance's work until others are as much as the target",
        ),
        (
            "back on spot",
            _mean_and_longest(v["back_on_spot_s"]),
            "from a warning until spot alone is as much as the target, and the backfill gone",
        ),
        (
            "backfills, releases",
            f"{v['backfills']}, {v['releases']}",
            f"turns that requested on-demand ({v['instances_backfilled']} instances) "
            f"and that released it ({v['instances_released']})",
        ),
        (
            "requests late",
            f"{v['late_requests']:,} of {v['requests']:,}",
            f"started over {settings['wait_objective_s']:g} s after their arrival; "
            f"{v['retried_requests']} were served again because their worker was lost",
        ),
        (
            f"{PROMISED} {100 * promised:g} %",
            f"{_percent(v['in_time_share'], 1)} kept",
            "requests that started in time, of all; those lost are not",
        ),
        ("requests lost", f"{v['lost_requests']:,}", "given up after their last try"),
        ("wait", f"{waits} s", "median, 95th and 99th percentile"),
        ("turns", f"{v['turns']:,}", "decisions taken, each with its reason in decisions.jsonl"),
        (
            "search-log messages",
            f"{v['search_log_messages']:,}",
            f"{v['messages_per_worker_hour']:g} an hour of a worker that takes requests",
        ),
        *_call_rows(v["aws_calls"]),
        (
            "failed invocations, dead letters",
            f"{v['failed_invocations']}, {v['dead_letters']}",
            "; ".join(v["errors"][:3]) or "none",
        ),
    ]
    return [Figure(label=label, value=value, meaning=meaning) for label, value, meaning in rows]


def _call_rows(calls: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, those in calls.items():
        services = ", ".join(
            f"{service} {counts['mean']:g} (most {counts['max']})"
            for service, counts in those["services"].items()
        )
        counted = f"{those['mean']:g} (most {those['max']})"
        yield f"AWS calls, {name}", counted, f"{those['invocations']:,} invocations: {services}"


def headline(rows: Sequence[Figure]) -> list[Figure]:
    """The figures that stand above the picture."""
    return [row for row in rows if row.label in HEADLINE or row.label.startswith(PROMISED)]


def table(values: dict[str, Any], *, wide: bool) -> Grid:
    """The figures for a terminal; what they mean only on a wide one."""
    shown = Grid(title="The day", title_justify="left")
    shown.add_column("figure")
    shown.add_column("value", justify="right")
    if wide:
        shown.add_column("what it is", style="dim", overflow="fold")
    for figure in figures(values):
        shown.add_row(figure.label, figure.value, *([figure.meaning] if wide else []))
    for story in values["incidents"]:
        outcome = f"[{'green' if story['ended_well'] else 'red'}]{story['outcome']}[/]"
        shown.add_row(f"made to fail: {story['name']}", outcome, *([story["what"]] if wide else []))
    return shown


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def _mean_and_longest(seconds: dict[str, float | None]) -> str:
    if seconds["mean"] is None:
        return "-"
    text = f"{span(seconds['mean'])}, at most {span(seconds['max'] or 0)}"
    return text + (f", {seconds['never']} not" if seconds["never"] else "")


def span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < IN_SECONDS_BELOW else f"{seconds / 60:.0f} min"


def line(day: Day, look: Look) -> str:
    return (
        f"{day.time.at(look.at_s):%a %H:%M}  target {look.target}  spot {look.spot}  "
        f"on-demand {look.on_demand}  busy {day.force.busy} of {look.workers}  "
        f"queue {day.force.queued}  warnings {len(day.record.notices)}"
    )


# Warnings of one burst arrive within seconds of each other.
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
    asked = "target (desired capacity of the spot group)"
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
    turns = [
        (round(decision.at_s - LEAD_S, 1), _words(record))
        for decision, record in zip(found.decisions, found.records, strict=True)
        if record["controller"] == controller
    ]
    turns.sort(key=lambda turn: turn[0])
    return Notes(name=controller, t=[at for at, _ in turns], texts=[text for _, text in turns])


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
            f"replacement requested after {_after(group, 'asked_s')}, "
            f"whole again {_after(group, 'served_s', 'stopped_s')} after it was gone, "
            f"back on spot alone after {_after(group, 'back_s')}",
        )


def _bursts(notices: Sequence[Notice]) -> list[list[Notice]]:
    """Warnings that arrived together."""
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


# Narrower terminals show the figures without what they mean.
WIDE = 120


class DemoError(Exception):
    """The demo cannot write where it was asked to."""


def run_demo(
    settings: DemoSettings,
    out: Path,
    console: Console,
    show: Callable[[int, int, str], object] = lambda *_: None,
) -> dict[str, Any]:
    """Run a demo, write its files to `out`, show its figures; answers those of summary.json.

    Raises MarketError when the market is too short, DemoError when `out` cannot be written.
    """
    stage = scene(settings)
    _make(out)
    with running(stage) as day:
        day.run(lambda look: show(int(look.at_s), int(stage.end_s), line(day, look)))
        found = results(day)
        drawn = page(day, found)
    _write(out, found, drawn)
    console.print(table(found.values, wide=console.width >= WIDE))
    for name in ("report.html", "summary.json", "decisions.jsonl"):
        console.print(f"{out / name}", highlight=False, soft_wrap=True)
    return found.values


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"{out}: cannot be made: {error.strerror}; give another --out") from error


def _write(out: Path, found: Results, drawn: Page) -> None:
    lines = (f"{decision.text}\n" for decision in found.decisions)
    _put(out / "decisions.jsonl", "".join(lines))
    _put(out / "report.html", page_html(drawn))
    _put(out / "summary.json", json.dumps(found.values, indent=1) + "\n")


def _put(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise DemoError(f"{path}: cannot be written: {error.strerror}; name another") from error
