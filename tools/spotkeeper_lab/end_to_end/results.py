"""What a demo comes to: the figures of `summary.json`, each with what it means."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from spotkeeper_lab.backtest.world import WARM_DISK_RATIO
from spotkeeper_lab.end_to_end.day import Day
from spotkeeper_lab.end_to_end.record import Decision, Notice
from spotkeeper_lab.end_to_end.scene import LEAD_S
from spotkeeper_lab.end_to_end.series import due, per_second
from spotkeeper_lab.world import Invocation

SHOWN_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Results:
    """The figures of a day as JSON values, and its decisions and notices after the lead."""

    values: dict[str, Any]
    decisions: Sequence[Decision]
    notices: Sequence[Notice]
    records: Sequence[Mapping[str, Any]] = field(default=())


def results(day: Day) -> Results:
    """Work the figures of a finished day out."""
    decisions = [decision for decision in day.record.decisions if decision.at_s >= LEAD_S]
    notices = [notice for notice in day.record.notices if notice.at_s >= LEAD_S]
    records = [decision.values for decision in decisions]
    values = {
        **_fleet(day),
        "interruptions": len(notices),
        **_decisions(records),
        **_requests(day),
        **_messages(day),
        "turns": len(decisions),
        "replacement_asked_s": _seconds(n.asked_s and n.asked_s - n.at_s for n in notices),
        "whole_again_s": _seconds(n.whole_after_s for n in notices),
        "back_on_spot_s": _seconds(n.back_s and n.back_s - n.at_s for n in notices),
        "incidents": [_story(asdict(incident.story)) for incident in day.incidents],
        "aws_calls": _calls(day.ended),
        **_failures(day),
        "settings": _settings(day),
    }
    return Results(values, decisions, notices, records)


def _fleet(day: Day) -> dict[str, Any]:
    """Served share and cost; `served` counts an instance from when it can have started."""
    looks, end_s, first = day.record.looks, day.scene.end_s, int(LEAD_S)
    target = per_second(looks, lambda look: look.target, end_s)
    serving = per_second(looks, lambda look: look.spot + look.on_demand, end_s)[first:]
    owed = due(target, day.cloud.physics.cold_start_s)[first:]
    target = target[first:]
    assert day.lead_bill is not None
    bill, before = day.cloud.bill(), day.lead_bill
    spot_h = (bill.spot_s - before.spot_s) / 3600.0
    on_demand_h = (bill.on_demand_s - before.on_demand_s) / 3600.0
    ratio = day.scene.settings.price_ratio
    disks_h = day.scene.physics.warm_pool * day.scene.settings.hours
    cost = ratio * spot_h + on_demand_h + WARM_DISK_RATIO * disks_h
    asked_h = float(target.sum()) / 3600.0
    fixed_h = float(target.max()) * day.scene.settings.hours
    return {
        "served_share": _share(float((serving >= owed).mean())),
        "served_share_at_once": _share(float((serving >= target).mean())),
        "served_instance_share": _share(
            float(np.minimum(serving, owed).sum() / max(owed.sum(), 1))
        ),
        "cost_vs_on_demand": _share(cost / asked_h) if asked_h else 0.0,
        "cost_vs_fixed_on_demand": _share(cost / fixed_h) if fixed_h else 0.0,
        "spot_hours": round(spot_h, 2),
        "on_demand_hours": round(on_demand_h, 2),
        "target_hours": round(asked_h, 2),
        "target_peak": int(target.max()),
        "losses": bill.losses - before.losses,
    }


def _decisions(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How often the availability controller backfilled and released, and how many instances."""
    actions = Counter(str(record["action"]) for record in records)
    seen = [record["seen"] for record in records]
    return {
        "backfills": actions["backfill"],
        "releases": actions["release"],
        "resizes": actions["resize"],
        "instances_backfilled": round(sum(values.get("Backfilled", 0) for values in seen)),
        "instances_released": round(sum(values.get("Released", 0) for values in seen)),
        "workers_replaced": round(sum(values.get("WorkersReplaced", 0) for values in seen)),
    }


def _requests(day: Day) -> dict[str, Any]:
    ledger, end_s = day.force.ledger, day.scene.end_s
    objective_s = day.scene.settings.wait_objective_s
    mine = ledger.arrival_s >= LEAD_S
    waits = ledger.waits(end_s)[mine]
    count, lost = int(mine.sum()), sum(bool(mine[request]) for request in ledger.lost)
    late = int((waits > objective_s).sum()) - lost
    points = np.quantile(waits, (0.5, 0.95, 0.99)) if count else np.zeros(3)
    return {
        "requests": count,
        "late_requests": late,
        "lost_requests": lost,
        "in_time_share": _share(1 - (late + lost) / count) if count else 1.0,
        "retried_requests": int((ledger.receives[mine] > 1).sum()),
        **{f"wait_p{p}_s": round(float(w), 2) for p, w in zip((50, 95, 99), points, strict=True)},
    }


def _messages(day: Day) -> dict[str, Any]:
    """Search-log messages, the lead's included: what the bill of their queue follows."""
    looks, end_s = day.record.looks, day.scene.end_s
    worker_h = float(per_second(looks, lambda look: look.workers, end_s).sum()) / 3600.0
    sent = day.logs.messages
    return {
        "search_log_messages": sent,
        "messages_per_worker_hour": round(sent / worker_h, 1) if worker_h else 0.0,
    }


def _seconds(values: Any) -> dict[str, float | int | None]:
    """Mean and longest of those that happened, and how many did not."""
    every = list(values)
    known = [value for value in every if value is not None]
    return {
        "mean": round(sum(known) / len(known), 1) if known else None,
        "max": round(max(known), 1) if known else None,
        "never": len(every) - len(known),
    }


def _story(story: dict[str, Any]) -> dict[str, Any]:
    """An incident with its times from the start of the day."""
    times = ("at_s", "started_s", "ended_s")
    moved = {name: None if story[name] is None else story[name] - LEAD_S for name in times}
    return story | moved


def _calls(invocations: Sequence[Invocation]) -> dict[str, Any]:
    """AWS calls of an invocation, per function and service."""
    by_function: dict[str, list[Invocation]] = defaultdict(list)
    for invocation in invocations:
        by_function[invocation.function].append(invocation)
    return {name: _calls_of(those) for name, those in sorted(by_function.items())}


def _calls_of(invocations: Sequence[Invocation]) -> dict[str, Any]:
    services: dict[str, list[int]] = defaultdict(lambda: [0] * len(invocations))
    for number, invocation in enumerate(invocations):
        for call, count in invocation.calls.items():
            services[call.partition(".")[0]][number] += count
    totals = [sum(invocation.calls.values()) for invocation in invocations]
    return {
        "invocations": len(invocations),
        "mean": round(sum(totals) / len(totals), 2),
        "max": max(totals),
        "services": {
            service: {"mean": round(sum(counts) / len(counts), 2), "max": max(counts)}
            for service, counts in sorted(services.items())
        },
    }


def _failures(day: Day) -> dict[str, Any]:
    failed = [i for i in day.ended if i.failed]
    return {
        "failed_invocations": len(failed),
        "errors": [f"{i.function}: {i.failed}" for i in failed[:SHOWN_ERRORS]],
        "dead_letters": len(day.queue.dead_letters),
    }


def _settings(day: Day) -> dict[str, Any]:
    settings, scene = day.scene.settings, day.scene
    return {
        "market": settings.market.name,
        "requests": settings.requests.name,
        "hours": settings.hours,
        "start_h": settings.start_h,
        "seed": settings.seed,
        "price_ratio": settings.price_ratio,
        "wait_objective_s": settings.wait_objective_s,
        "fleet": scene.fleet_document,
        "physics": asdict(scene.physics),
    }


def _share(value: float) -> float:
    return round(value, 5)
