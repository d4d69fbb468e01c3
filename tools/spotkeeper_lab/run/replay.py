"""All rules on all traces."""

from collections.abc import Iterable, Iterator, Sequence

from spotkeeper_lab.replay.clairvoyant import clairvoyant
from spotkeeper_lab.replay.deployed import Spotkeeper
from spotkeeper_lab.replay.engine import Rule, replay
from spotkeeper_lab.replay.rules import (
    AwsBacklog,
    ErlangC,
    FixedPeak,
    Hpa,
    KedaQueue,
    Kpa,
    LoadRate,
    SkyServe,
    SquareRoot,
)
from spotkeeper_lab.replay.values import ReplayError, ReplaySettings, Run
from spotkeeper_lab.traces.requests import LONGEST_S, RequestTrace

LOOKING = (
    LoadRate, AwsBacklog, KedaQueue, Hpa, Kpa, SkyServe, ErlangC, SquareRoot, Spotkeeper,
)  # fmt: skip
"""The rules that do not know the trace."""
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in LOOKING}
RULE_NAMES: tuple[str, ...] = (FixedPeak.name, *RULES, "clairvoyant")
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
    ruling = FixedPeak(settings, trace) if rule == FixedPeak.name else RULES[rule](settings)
    return replay(trace, ruling, settings)


def best_member(trace: RequestTrace, rule: Spotkeeper, settings: ReplaySettings) -> Run | None:
    """Replay the cheapest member known afterwards that keeps the promise; None where none does.

    The shadows of a run name the candidates, cheapest first. A few are tried.
    """
    for member in rule.known_afterwards()[:MEMBERS_TRIED]:
        run = replay(trace, Spotkeeper(settings, member), settings)
        if run.row.objective_met:
            return run
    return None


def iter_runs(
    traces: Iterable[RequestTrace], rules: Sequence[str], settings: ReplaySettings
) -> Iterator[tuple[RequestTrace, Run]]:
    """Yield every trace with every rule, in order, as each is done."""
    for trace in traces:
        for rule in rules:
            yield trace, run_rule(trace, rule, settings)
