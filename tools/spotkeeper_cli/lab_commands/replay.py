"""`spotkeeper replay`: recorded requests through every sizing rule, and through both checkers."""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.errors import told
from spotkeeper_cli.options import ColdStart, JsonFile, MeanRate, ReportFile, duration
from spotkeeper_cli.output import OutputError, check_outputs, counted, give, remark

if TYPE_CHECKING:
    from spotkeeper_lab.replay.values import MarketRow, ReplaySettings, Run
    from spotkeeper_lab.traces.market import Market
    from spotkeeper_lab.traces.requests import RequestTrace


class UnknownRule(ValueError):
    """A rule that does not exist; offers the nearest."""


# Written out, so that help needs nothing of the lab; tests/unit/test_help.py compares.
NAMES = (
    "fixed-peak, load-rate, aws-backlog, keda-queue, hpa, kpa, skyserve, erlang-c, "
    "square-root, spotkeeper, clairvoyant"
)

Requests = Annotated[list[Path], typer.Option(help="Request trace; may be given again.")]
Rules = Annotated[
    list[str] | None, typer.Option(help=f"Rule; may be given again. Default: all of {NAMES}.")
]
Wait = Annotated[float, duration("The wait promised.")]
Share = Annotated[float, typer.Option(help="Share of requests it is promised to.")]
WorkersPerInstance = Annotated[
    int | None,
    typer.Option(help="Workers of an instance. Default: 1, and on a market as many as fit it."),
]
OnPrem = Annotated[int, typer.Option(help="Workers of your own, outside AWS.")]
QueueKnown = Annotated[
    bool, typer.Option("--queue-known", help="Spotkeeper sees the length of the request queue.")
]
MinWorkers = Annotated[int, typer.Option(help="Fewest workers of Spotkeeper; 0 may sleep.")]
MaxWorkers = Annotated[
    int,
    typer.Option(min=1, help="Most workers of any rule; a fleet on a market has its own bound."),
]
Seed = Annotated[int, typer.Option(min=0, help="Of requests drawn from a trace of rates.")]
SpotMarket = Annotated[
    Path | None, typer.Option(help="Spot market: run both checkers on it too, same requests.")
]


def replay(
    requests: Requests,
    rule: Rules = None,
    wait: Wait = 10.0,
    share: Share = 0.95,
    cold_start: ColdStart = 240.0,
    workers_per_instance: WorkersPerInstance = None,
    onprem: OnPrem = 0,
    queue_known: QueueKnown = False,
    min_workers: MinWorkers = 1,
    max_workers: MaxWorkers = 1_000,
    mean_rate: MeanRate = None,
    seed: Seed = 0,
    json: JsonFile = None,
    report: ReportFile = None,
    market: SpotMarket = None,
) -> None:
    """Replay requests with every sizing rule: who keeps the promise, with how many workers."""
    from spotkeeper_lab.replay.run import RULE_NAMES, check_room
    from spotkeeper_lab.replay.values import ReplaySettings
    from spotkeeper_lab.traces.market_file import read_market
    from spotkeeper_lab.traces.requests import read_request_traces

    with told(*_mendable()):
        check_outputs((json, report), (*requests, market))
        rules = _chosen(rule or (), RULE_NAMES)
        settings = ReplaySettings(
            wait_s=wait,
            share=share,
            cold_start_s=cold_start,
            workers_per_instance=1 if workers_per_instance is None else workers_per_instance,
            onprem=onprem,
            queue_known=queue_known,
            min_workers=min_workers,
            max_workers=max_workers,
            seed=seed,
        )
        traces = read_request_traces(requests, seed=seed, mean_rate_per_s=mean_rate)
        remark(trace.note for trace in traces)
        for trace in traces:
            check_room(trace, settings)
        spot = read_market(market) if market else None
        runs = _runs(traces, rules, settings)
        both = _on_market(traces, spot, settings, workers_per_instance) if spot else []
        _show(runs, both, json, report)


def _mendable() -> tuple[type[Exception], ...]:
    """The errors that a user can mend."""
    from spotkeeper_lab.checkout import NotACheckout
    from spotkeeper_lab.replay.values import ReplayError
    from spotkeeper_lab.traces.market import MarketError
    from spotkeeper_lab.traces.requests import RequestTraceError

    return MarketError, NotACheckout, OutputError, ReplayError, RequestTraceError, UnknownRule


def _show(
    runs: "Sequence[tuple[RequestTrace, Run]]",
    both: "Sequence[MarketRow]",
    json: Path | None,
    report: Path | None,
) -> None:
    from spotkeeper_lab.replay.on_market import market_table
    from spotkeeper_lab.replay.output import as_json, table
    from spotkeeper_lab.replay.report import report_html

    names = dict.fromkeys(trace.name for trace, _ in runs)
    tables = [table(name, [run.row for trace, run in runs if trace.name == name]) for name in names]
    if both:
        tables.append(market_table(both))
    rows = as_json([*(run.row for _, run in runs), *both])
    give(tables, rows, json, lambda: report_html(runs), report)


def _runs(
    traces: "Sequence[RequestTrace]", rules: Sequence[str], settings: "ReplaySettings"
) -> "list[tuple[RequestTrace, Run]]":
    from spotkeeper_lab.replay.run import iter_runs

    runs: list[tuple[RequestTrace, Run]] = []
    with counted("replay") as show:
        for trace, run in iter_runs(traces, rules, settings):
            runs.append((trace, run))
            show(len(runs), len(traces) * len(rules), f"{trace.name} {run.row.rule}")
    return runs


def _on_market(
    traces: "Sequence[RequestTrace]", market: "Market", settings: "ReplaySettings", size: int | None
) -> "list[MarketRow]":
    from spotkeeper_lab.replay.on_market import on_market

    with counted("both checkers") as show:
        return [on_market(trace, market, settings, show, size=size) for trace in traces]


def _chosen(names: Sequence[str], known: Sequence[str]) -> Sequence[str]:
    """The rules of these names, all where there are none; raises UnknownRule."""
    for name in names:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
            offer = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {known}"
            raise UnknownRule(f"no rule is called {name!r}; {offer}")
    return tuple(dict.fromkeys(names)) or known
