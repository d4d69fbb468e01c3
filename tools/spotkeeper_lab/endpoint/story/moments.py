"""What happened in a lab: what was seen of it, moment by moment, and what was promised of that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spotkeeper_lab.endpoint.story.scenario import Scenario

IN_SERVICE = "InService"
SPOT, ON_DEMAND = "spot", "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look at a lab; what is warned or drains does not count as serving."""

    at_s: float
    spot_desired: int
    spot_serving: int
    spot_launching: int
    on_demand_desired: int
    on_demand_serving: int
    spot_running: int
    on_demand_running: int
    queued: int
    served: int

    @property
    def short(self) -> int:
        """How many of the spot group's need neither serve nor come."""
        return max(0, self.spot_desired - self.spot_serving - self.spot_launching)

    @property
    def serving(self) -> int:
        """All that serve."""
        return self.spot_serving + self.on_demand_serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A promise, what was promised, what was seen, and whether it held."""

    promise: str
    promised: str
    seen: str
    held: bool


def moment(state: Mapping[str, Any], at_s: float) -> Moment:
    """What a look at the lab's state says."""
    groups = {group["purchase"]: group for group in state["groups"]}
    running = [one for group in state["groups"] for one in group["instances"]] + state["outside"]
    spot, on_demand = groups[SPOT], groups[ON_DEMAND]
    return Moment(
        at_s=at_s,
        spot_desired=spot["desired"],
        spot_serving=_serving(spot),
        spot_launching=sum(one["state"].startswith("Pending") for one in spot["instances"]),
        on_demand_desired=on_demand["desired"],
        on_demand_serving=_serving(on_demand),
        spot_running=sum(one["purchase"] == SPOT for one in running),
        on_demand_running=sum(one["purchase"] == ON_DEMAND for one in running),
        queued=state["workers"]["queued"],
        served=state["workers"]["served"],
    )


def _serving(group: Mapping[str, Any]) -> int:
    return sum(
        one["state"] == IN_SERVICE and not one["draining"] and not one["warned"]
        for one in group["instances"]
    )


def longest_unasked_s(moments: Sequence[Moment]) -> float:
    """The longest time in which on-demand was asked for less than spot was short of."""
    longest_s, began_s = 0.0, None
    for one in moments:
        if one.on_demand_desired >= one.short:
            began_s = None
            continue
        began_s = one.at_s if began_s is None else began_s
        longest_s = max(longest_s, one.at_s - began_s)
    return longest_s


def served_share(moments: Sequence[Moment]) -> float:
    """Share of the looks at which as many served as the spot group was asked for."""
    return sum(one.serving >= one.spot_desired for one in moments) / max(1, len(moments))


def released_s(moments: Sequence[Moment], after_s: float) -> float | None:
    """How long after a moment on-demand was given back for good; None if it never was."""
    if not moments or moments[-1].on_demand_desired:
        return None
    last = max((one.at_s for one in moments if one.on_demand_desired), default=after_s)
    return max(0.0, last - after_s)


def verdicts(scenario: Scenario, moments: Sequence[Moment], failed: int) -> list[Verdict]:
    """Every promise that the scenario makes, held against what was seen."""
    promises = scenario.promises
    last_s = max((step.at_s for step in scenario.steps), default=0.0)
    released = released_s(moments, last_s)
    most = max((one.on_demand_desired for one in moments), default=0)
    unasked, share = longest_unasked_s(moments), served_share(moments)
    found: list[Verdict | None] = [
        _at_most("a shortfall is asked of on-demand within", promises.asked_within_s, unasked, "s"),
        _at_least("time in which the need is served", promises.served_share, share),
        _at_most("on-demand is given back within", promises.released_within_s, released, "s"),
        _at_most("on-demand asked for", promises.on_demand_at_most, most, "instances"),
        _at_most("invocations that failed", promises.failed_invocations, failed, ""),
    ]
    return [verdict for verdict in found if verdict]


def _at_most(promise: str, promised: float | None, seen: float | None, unit: str) -> Verdict | None:
    if promised is None:
        return None
    told = "never" if seen is None else f"{seen:.3g} {unit}".strip()
    held = seen is not None and seen <= promised
    return Verdict(
        promise=promise, promised=f"at most {promised:g} {unit}".strip(), seen=told, held=held
    )


def _at_least(promise: str, promised: float | None, seen: float) -> Verdict | None:
    if promised is None:
        return None
    return Verdict(
        promise=promise,
        promised=f"at least {promised:.0%}",
        seen=f"{seen:.1%}",
        held=seen >= promised,
    )
