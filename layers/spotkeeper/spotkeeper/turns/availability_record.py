"""What a turn of the availability controller leaves behind: its decision record and its figures."""

from datetime import timedelta

from spotkeeper.domain.availability.actions import (
    Backfill,
    CancelBackfill,
    EndBackfill,
    ReplaceEarly,
)
from spotkeeper.domain.availability.decide import Plan, alarms_of
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.turns.act import Asked


def record_of(
    wanted: Plan, woke: Asked, asked: Asked, memory: AvailabilityMemory
) -> DecisionRecord:
    """Record a turn; only what AWS accepted counts as done."""
    seen = wanted.assessment
    failures = (*seen.snapshot.spot_failures, *seen.snapshot.on_demand_failures)
    return DecisionRecord(
        fleet=seen.snapshot.fleet.name,
        controller=Controller.AVAILABILITY,
        at=seen.now,
        action=wanted.action,
        rule=wanted.rule,
        reason=wanted.reason,
        seen=_figures(wanted, asked),
        outcomes=(*woke.outcomes, *asked.outcomes),
        alarms=alarms_of(seen, memory),
        failures=tuple(dict.fromkeys(f"{f.failure_class}: {f.message}" for f in failures)),
        unknown_failures=tuple(dict.fromkeys(f.message for f in failures if not f.known)),
        unread=seen.snapshot.unread,
    )


def _figures(wanted: Plan, asked: Asked) -> dict[str, float]:
    """Count what was seen, and what AWS accepted; a lost answer is counted once it is known."""
    seen, done = wanted.assessment, asked.done()
    spot, on_demand, snapshot = seen.spot, seen.on_demand, seen.snapshot
    failures = (*snapshot.spot_failures, *snapshot.on_demand_failures)
    raised = sum(a.count for a in done if isinstance(a, Backfill))
    lowered = sum(a.count for a in done if isinstance(a, CancelBackfill))
    lowered += sum(isinstance(a, EndBackfill) for a in done)
    used_h = (seen.now - (seen.memory.on_demand_since or seen.now)) / timedelta(hours=1)
    return {
        "SpotDesired": spot.target,
        "SpotSpare": snapshot.seen.spot.desired - spot.target,
        "SpotServing": spot.serving,
        "SpotLaunching": spot.launching,
        "SpotAtRisk": spot.at_risk,
        "Shortfall": seen.shortfall,
        "ShortfallUnfilled": seen.unfilled,
        "OnDemandDesired": on_demand.target + raised - lowered,
        "OnDemandServing": on_demand.serving,
        # Each metric is paid for while it is sent.
        **({"OnDemandHours": used_h} if used_h >= 1 else {}),
        "Backfilled": raised + max(0, seen.found),
        "Released": lowered + max(0, -seen.found),
        "Interruptions": len(seen.newly_risky),
        "EarlyReplacements": sum(isinstance(a, ReplaceEarly) for a in done),
        "LaunchFailures": len(failures),
        "UnknownFailures": sum(not f.known for f in failures),
    }
