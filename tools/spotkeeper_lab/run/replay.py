"""All rules on all traces."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from spotkeeper_lab.replay.clairvoyant import clairvoyant
from spotkeeper_lab.replay.engine import Rule, replay
from spotkeeper_lab.replay.rules import (
    AwsBacklog,
    ErlangC,
    FixedRule,
    Hpa,
    KedaQueue,
    Kpa,
    LoadRate,
    SkyServe,
    Spotkeeper,
    SquareRoot,
    fixed_peak,
)
from spotkeeper_lab.replay.values import ReplayError, ReplaySettings, Run
from spotkeeper_lab.traces.requests import LONGEST_S, RequestTrace

RULES: dict[str, Callable[[RequestTrace, ReplaySettings], Rule]] = {
    "fixed-peak": fixed_peak,
    "load-rate": lambda _, settings: LoadRate(settings),
    "aws-backlog": lambda _, settings: AwsBacklog(settings),
    "keda-queue": lambda _, __: KedaQueue(),
    "hpa": lambda _, __: Hpa(),
    "kpa": lambda _, __: Kpa(),
    "skyserve": lambda _, __: SkyServe(),
    "erlang-c": lambda _, settings: ErlangC(settings),
    "square-root": lambda _, settings: SquareRoot(settings),
    "spotkeeper": lambda _, settings: Spotkeeper(settings),
}
RULE_NAMES: tuple[str, ...] = (*RULES, "clairvoyant")
MEMBERS_TRIED = 4


def check(trace: RequestTrace) -> None:
    """Raise ReplayError for a trace without requests or of more than 400 days."""
    if not len(trace):
        raise ReplayError(f"{trace.name}: no request in {trace.end_s:g} s; nothing to replay")
    if trace.end_s > LONGEST_S:
        at = int(trace.arrival_s.searchsorted(LONGEST_S, side="right"))
        raise ReplayError(
            f"{trace.name}: {trace.end_s / 86_400:,.0f} days are too long; "
            f"cut it to 400 days, from request {at + 1} on, and give its times in seconds"
        )


def check_room(trace: RequestTrace, settings: ReplaySettings) -> None:
    """Raise ReplayError where the mean load alone keeps more workers busy than there may be."""
    if trace.offered_load >= settings.max_workers:
        raise ReplayError(
            f"{trace.name}: {trace.offered_load:,.1f} erlangs, more than {settings.max_workers:,} "
            "workers can serve; allow more with --max-workers, or cut or thin the trace"
        )


def run_rule(trace: RequestTrace, rule: str, settings: ReplaySettings) -> Run:
    """Replay one trace with one rule by name; raises ReplayError as `check` does."""
    check(trace)
    if rule == "clairvoyant":
        return clairvoyant(trace, settings)
    ruling = RULES[rule](trace, settings)
    if isinstance(ruling, FixedRule):
        run = replay(trace, ruling, replace(settings, initial_workers=ruling.count))
        return replace(run, row=replace(run.row, settings=settings))
    run = replay(trace, ruling, settings)
    return replace(run, choices=ruling.followed) if isinstance(ruling, Spotkeeper) else run


def best_member(trace: RequestTrace, rule: Spotkeeper, settings: ReplaySettings) -> Run | None:
    """Replay the cheapest member known afterwards that keeps the promise; None where none does.

    The shadows of a run name the candidates, cheapest first. A few are tried.
    """
    for member in rule.known_afterwards()[:MEMBERS_TRIED]:
        run = replay(trace, Spotkeeper(settings, member), settings)
        if run.row.objective_met:
            return replace(run, row=replace(run.row, rule=f"best member: {member}"))
    return None


def iter_runs(
    traces: Iterable[RequestTrace], rules: Sequence[str], settings: ReplaySettings
) -> Iterator[tuple[RequestTrace, Run]]:
    """Yield every trace with every rule, in order, as each is done."""
    for trace in traces:
        for rule in rules:
            yield trace, run_rule(trace, rule, settings)
