"""Decision records as a timeline: what was seen, which rule bound, what was asked and answered."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.decision import Action, Controller, DecisionRecord, Outcome

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


def timeline(records: Iterable[DecisionRecord], rule: str | None = None) -> tuple[Entry, ...]:
    """Order records by time, oldest first, and fold holds of one rule that follow each other."""
    entries: list[Entry] = []
    latest: dict[tuple[str, Controller], int] = {}
    for record in sorted(records, key=lambda r: r.at):
        if rule is not None and record.rule != rule:
            continue
        key = (record.fleet, record.controller)
        entry = _entry(record)
        before = latest.get(key)
        if before is not None and _same(entries[before], entry):
            entries[before] = _folded(entries[before], entry)
        else:
            latest[key] = len(entries)
            entries.append(entry)
    return tuple(entries)


def seen_words(entry: Entry) -> str:
    """Say what a turn saw, in a line; what was none is left out, but for the first."""
    shown = [
        (entry.seen[name], words) for name, words in _SHOWN[entry.controller] if name in entry.seen
    ]
    return ", ".join(
        f"{value:.3g} {words}" for place, (value, words) in enumerate(shown) if value or not place
    )


def answered(outcomes: Sequence[Outcome]) -> list[str]:
    """Say what was asked of AWS and what it answered, a line each."""
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
    """Say whether a later hold adds nothing but time and numbers."""
    return (
        before.action is after.action is Action.HOLD
        and before.rule == after.rule
        and not before.outcomes
        and not after.outcomes
        and before.failures == after.failures
    )


def _folded(before: Entry, after: Entry) -> Entry:
    return Entry(
        fleet=after.fleet,
        controller=after.controller,
        first=before.first,
        last=after.last,
        turns=before.turns + 1,
        action=after.action,
        rule=after.rule,
        reason=after.reason,
        seen=after.seen,
        outcomes=(),
        failures=after.failures,
    )
