"""The result of a demo: series over time, and the figures of `summary.json` with their meaning."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from spotkeeper_lab.backtest.world import WARM_DISK_RATIO
from spotkeeper_lab.run.day import LEAD_S, Day, Decision, Look, Notice
from spotkeeper_lab.traces.market import Market
from spotkeeper_lab.workers import ServiceLedger
from spotkeeper_lab.world import Invocation

type Floats = NDArray[np.float64]
type Ints = NDArray[np.int64]


def per_second(looks: Sequence[Look], value: Callable[[Look], int], end_s: float) -> Ints:
    """A value of the fleet at every second from the start of the lead to its end."""
    times = np.array([look.at_s for look in looks])
    values = np.array([value(look) for look in looks], dtype=np.int64)
    seconds = np.arange(0.0, end_s)
    return values[np.maximum(np.searchsorted(times, seconds, side="right") - 1, 0)]


def due(target: Ints, start_s: float) -> Ints:
    """What should serve at every second: the least target since a start-up time ago.

    An instance that is requested now cannot serve before it has started; one that was lost is
    owed at once.
    """
    window = int(start_s) + 1
    padded = np.concatenate([np.full(window - 1, target[0]), target])
    least: Ints = sliding_window_view(padded, window).min(axis=1)
    return least


def fleet_columns(looks: Sequence[Look]) -> dict[str, list[float]]:
    """The fleet at every change, from the start of the day on."""
    before = [look for look in looks if look.at_s <= LEAD_S][-1:]
    shown = [*before, *(look for look in looks if look.at_s > LEAD_S)]
    return {
        "t": [max(0.0, round(look.at_s - LEAD_S, 1)) for look in shown],
        "target": [look.target for look in shown],
        "spot": [look.spot for look in shown],
        "on_demand": [look.on_demand for look in shown],
    }


def market_total(market: Market) -> tuple[list[float], list[float]]:
    """The capacity of all pools together: when it changes, and to what."""
    times = sorted({0.0, *(change.at_s for change in market.changes())})
    totals = [float(sum(market.capacity(pool, at_s) for pool in market.pools)) for at_s in times]
    return [max(0.0, time - LEAD_S) for time in times], totals


def load_columns(ledger: ServiceLedger, workers: Ints, end_s: float) -> dict[str, list[float]]:
    """Busy workers on average of every minute, and the workers that took requests."""
    edges = np.arange(LEAD_S, end_s + 60.0, 60.0)
    busy = np.diff(_busy_time(ledger, edges)) / 60.0
    minutes = [workers[int(edge) : int(edge) + 60] for edge in edges[:-1]]
    return {
        "t": (edges[:-1] - LEAD_S).tolist(),
        "busy": [round(float(value), 2) for value in busy],
        "workers": [round(float(some.mean()), 2) if some.size else 0.0 for some in minutes],
    }


def needed_column(times: Sequence[float], needed: Sequence[float], end_s: float) -> list[float]:
    """The workers that the last health turn before each minute's end found to be needed."""
    edges = np.arange(LEAD_S, end_s, 60.0) + 60.0
    before = np.searchsorted(np.array(times), edges, side="right") - 1
    return [float(needed[turn]) if turn >= 0 else 0.0 for turn in before]


def _busy_time(ledger: ServiceLedger, at_s: Floats) -> Floats:
    """Seconds served by all workers together up to each moment."""
    done = ~np.isnan(ledger.finished_s)
    starts, ends = np.sort(ledger.started_s[done]), np.sort(ledger.finished_s[done])
    started, ended = np.searchsorted(starts, at_s), np.searchsorted(ends, at_s)
    sum_starts = np.concatenate([[0.0], np.cumsum(starts)])[started]
    sum_ends = np.concatenate([[0.0], np.cumsum(ends)])[ended]
    busy: Floats = sum_ends - sum_starts + at_s * (started - ended)
    return busy


def wait_columns(
    ledger: ServiceLedger, end_s: float
) -> tuple[list[float], dict[str, list[float | None]]]:
    """The waits of the requests of every minute of arrival, None in one without any."""
    waits = ledger.waits(end_s)
    edges = np.arange(LEAD_S, end_s + 60.0, 60.0)
    bounds = np.searchsorted(ledger.arrival_s, edges)
    minutes = [waits[first:stop] for first, stop in pairwise(bounds)]
    return (edges[:-1] - LEAD_S).tolist(), {
        "p95": [
            round(float(np.quantile(some, 0.95)), 2) if some.size else None for some in minutes
        ],
        "worst": [round(float(some.max()), 2) if some.size else None for some in minutes],
    }


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
