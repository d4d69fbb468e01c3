"""The figures of a finished demo, and its table on the terminal."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from spotkeeper_charts.page import Figure

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
"""Longer times are told in minutes."""


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
    return [row for row in rows if row.label in HEADLINE or row.label.startswith(PROMISED)]


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
        label="saved",
        value=_percent(1 - values["cost_vs_on_demand"], 1),
        meaning="the rest of it: not paid, against the same target all on demand",
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
        yield Figure(label=label, value=_mean_and_longest(values[name]), meaning=meaning)
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
    promised = values["settings"]["fleet"]["objective"]["share"]
    yield Figure(
        label=f"{PROMISED} {100 * promised:g} %",
        value=f"{_percent(values['in_time_share'], 1)} kept",
        meaning="requests that started in time, of all; those lost are not",
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
    yield Figure(
        label="search-log messages",
        value=f"{values['search_log_messages']:,}",
        meaning=f"{values['messages_per_worker_hour']:g} an hour of a worker that takes requests",
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


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def _mean_and_longest(seconds: dict[str, float | None]) -> str:
    if seconds["mean"] is None:
        return "-"
    text = f"{span(seconds['mean'])}, at most {span(seconds['max'] or 0)}"
    return text + (f", {seconds['never']} not" if seconds["never"] else "")


def span(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.0f} s" if seconds < IN_SECONDS_BELOW else f"{seconds / 60:.0f} min"
