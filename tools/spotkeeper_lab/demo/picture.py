"""A finished demo as a table on the terminal and as the picture of `report.html`."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from spotkeeper_lab.end_to_end.day import Day
from spotkeeper_lab.end_to_end.record import Notice
from spotkeeper_lab.end_to_end.results import Results
from spotkeeper_lab.end_to_end.scene import LEAD_S
from spotkeeper_lab.end_to_end.series import (
    fleet_columns,
    load_columns,
    market_columns,
    needed_column,
    per_second,
    wait_columns,
)
from spotkeeper_lab.report import Figure, Moment, Picture, Turn

# Warnings of one spell come within seconds of each other.
TOGETHER_S = 5.0
HEADLINE = {
    "time fully served",
    "cost of all on demand",
    "cost of a fixed fleet",
    "interruptions, losses",
    "requests late",
    "requests lost",
}
IN_SECONDS_BELOW = 120.0


def figures(values: dict[str, Any]) -> list[Figure]:
    """The figures of a day in the order in which they are read."""
    return [
        *_service(values),
        *_money(values),
        *_spot(values),
        *_requests(values),
        *_turns_taken(values),
    ]


def headline(rows: Sequence[Figure]) -> list[Figure]:
    """The figures that stand above the picture."""
    return [row for row in rows if row.label in HEADLINE]


def _service(values: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(
        label="time fully served",
        value=_percent(values["served_share"]),
        meaning="share of time in which at least the instances serve that were asked for a "
        "start-up time ago; a lost one is missed at once",
    )
    yield Figure(
        label="instance time served",
        value=_percent(values["served_instance_share"]),
        meaning="instance hours that served, of those owed in the same sense",
    )


def _money(values: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(
        label="cost of all on demand",
        value=_percent(values["cost_vs_on_demand"], 1),
        meaning=f"at a spot price of {values['settings']['price_ratio']:.2f} of on demand, "
        "start-up time and the warm pool's disks paid: against the same target all on demand",
    )
    yield Figure(
        label="cost of a fixed fleet",
        value=_percent(values["cost_vs_fixed_on_demand"], 1),
        meaning=f"against {values['target_peak']} on-demand instances, the peak, all day",
    )
    yield Figure(
        label="instance hours",
        value=f"{values['spot_hours']:.1f} spot, {values['on_demand_hours']:.1f} on demand",
        meaning=f"{values['target_hours']:.1f} were asked for",
    )


def _spot(values: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(
        label="interruptions, losses",
        value=f"{values['interruptions']}, {values['losses']}",
        meaning="warnings of AWS, and spot instances that it took",
    )
    for label, name, meaning in (
        (
            "replacement asked for",
            "replacement_asked_s",
            "a warning until what serves, comes or was asked for is",
        ),
        ("whole again", "whole_again_s", "the end of a warned instance's work until others are"),
        ("back on spot", "back_on_spot_s", "a warning until spot alone is, and the backfill gone,"),
    ):
        meaning = f"from {meaning} as much as the target"
        yield Figure(label=label, value=_span(values[name]), meaning=meaning)
    yield Figure(
        label="backfills, releases",
        value=f"{values['backfills']}, {values['releases']}",
        meaning=f"turns that asked for on-demand ({values['instances_backfilled']} instances) "
        f"and that gave it back ({values['instances_released']})",
    )


def _requests(values: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(
        label="requests late",
        value=f"{values['late_requests']:,} of {values['requests']:,}",
        meaning=f"started more than {values['settings']['wait_objective_s']:g} s after they came; "
        f"{values['retried_requests']} were served again because their worker was lost",
    )
    yield Figure(
        label="requests lost",
        value=f"{values['lost_requests']:,}",
        meaning="given up after their last try",
    )
    waits = " / ".join(f"{values[f'wait_p{p}_s']:g}" for p in (50, 95, 99))
    yield Figure(label="wait", value=f"{waits} s", meaning="median, 95th and 99th percentile")


def _turns_taken(values: dict[str, Any]) -> Iterator[Figure]:
    yield Figure(
        label="turns",
        value=f"{values['turns']:,}",
        meaning="decisions taken, each with its reason in decisions.jsonl",
    )
    yield from _call_figures(values["aws_calls"])
    yield Figure(
        label="failed invocations, dead letters",
        value=f"{values['failed_invocations']}, {values['dead_letters']}",
        meaning="; ".join(values["errors"][:3]) or "none",
    )


def _call_figures(calls: dict[str, Any]) -> Iterator[Figure]:
    for name, those in calls.items():
        services = (
            f"{service} {counts['mean']:g} (most {counts['max']})"
            for service, counts in those["services"].items()
        )
        yield Figure(
            label=f"AWS calls, {name}",
            value=f"{those['mean']:g} (most {those['max']})",
            meaning=f"{those['invocations']:,} invocations: {', '.join(services)}",
        )


def table(values: dict[str, Any], *, wide: bool) -> Table:
    """The figures for a terminal; what they mean only on a wide one."""
    shown = Table(title="The day", title_justify="left")
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


def picture(day: Day, found: Results) -> Picture:
    """All that the report shows."""
    values, settings, end_s = found.values, day.scene.settings, day.scene.end_s
    ledger, looks = day.force.ledger, day.record.looks
    pools, total = market_columns(day.scene.market)
    rows = figures(values)
    return Picture(
        title=f"{settings.hours:g} hours of Spotkeeper",
        subtitle=f"Spot market {settings.market.name}, requests {settings.requests.name}, "
        f"from hour {settings.start_h:g}. Times are UTC of the virtual clock.",
        footer="Written by `spotkeeper demo`; the decisions are in decisions.jsonl, "
        "the figures in summary.json.",
        length_s=end_s - LEAD_S,
        clock_s=settings.start_h * 3600.0,
        wait_objective_s=settings.wait_objective_s,
        headline=headline(rows),
        figures=rows,
        fleet=fleet_columns(looks),
        market=pools,
        market_total=total,
        load=_load(day, found),
        waits=wait_columns(ledger, end_s),
        losses=[loss - LEAD_S for loss in day.record.losses if loss >= LEAD_S],
        bands=[
            (story["started_s"], story["ended_s"] or end_s - LEAD_S, story["what"])
            for story in values["incidents"]
            if story["started_s"] is not None
        ],
        turns=list(_turns(found)),
        moments=sorted([*_notices(day, found), *_stories(day, values)], key=lambda m: m.at_s),
    )


def _load(day: Day, found: Results) -> dict[str, list[float]]:
    """Busy, serving and needed workers by minute."""
    looks, end_s = day.record.looks, day.scene.end_s
    workers = per_second(looks, lambda look: look.workers, end_s)
    needs = [
        (decision.at_s, record["seen"]["WorkersNeeded"])
        for decision, record in zip(found.decisions, found.records, strict=True)
        if "WorkersNeeded" in record["seen"]
    ]
    times, needed = zip(*needs, strict=True) if needs else ((), ())
    columns = load_columns(day.force.ledger, workers, end_s)
    return {**columns, "needed": needed_column(times, needed, end_s)}


def _turns(found: Results) -> Iterator[Turn]:
    for decision, record in zip(found.decisions, found.records, strict=True):
        asked = [
            outcome["asked"] + (f" (failed: {outcome['error']})" if outcome["error"] else "")
            for outcome in record["outcomes"]
        ]
        yield Turn(
            at_s=round(decision.at_s - LEAD_S, 1),
            half=record["half"],
            rule=f"{record['action']}, {record['rule']}",
            reason=record["reason"] + (f". Asked: {'; '.join(asked)}" if asked else ""),
        )


def _notices(day: Day, found: Results) -> Iterator[Moment]:
    for group in _spells(found.notices):
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


def _spells(notices: Sequence[Notice]) -> list[list[Notice]]:
    """Warnings that came together."""
    spells: list[list[Notice]] = []
    for notice in notices:
        if spells and notice.at_s - spells[-1][-1].at_s <= TOGETHER_S:
            spells[-1].append(notice)
        else:
            spells.append([notice])
    return spells


def _after(group: Sequence[Notice], name: str, since: str = "at_s") -> str:
    """The longest time that one of them took, in words."""
    if any(getattr(notice, name) is None for notice in group):
        return "the end of the day"
    return _time(max(getattr(notice, name) - getattr(notice, since) for notice in group))


def _stories(day: Day, values: dict[str, Any]) -> Iterator[Moment]:
    for story in values["incidents"]:
        if story["started_s"] is not None:
            at_s = story["started_s"] + LEAD_S
            yield _moment(day, at_s, f"Made to fail: {story['what']}", story["outcome"])


def _moment(day: Day, at_s: float, what: str, ended: str) -> Moment:
    clock = f"{day.time.at(at_s):%H:%M:%S}"
    return Moment(at_s=round(at_s - LEAD_S, 1), clock=clock, what=what, ended=ended)


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def _span(seconds: dict[str, float | None]) -> str:
    if seconds["mean"] is None:
        return "-"
    text = f"{_time(seconds['mean'])}, at most {_time(seconds['max'] or 0)}"
    return text + (f", {seconds['never']} not" if seconds["never"] else "")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < IN_SECONDS_BELOW else f"{seconds / 60:.0f} min"
