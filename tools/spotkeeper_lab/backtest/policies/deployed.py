"""The deployed policy's world in a backtest: its fleet, the simulated cloud, and the events."""

import math
from dataclasses import replace
from typing import Any

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.interruption import Interruption, InterruptionKind
from spotkeeper.domain.settings.availability import AvailabilityPolicy, RebalanceMeaning
from spotkeeper.domain.settings.sizing import Bounds
from spotkeeper_lab.backtest.policies.values import Settings
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudEvent,
    EventKind,
    GroupSpec,
    Physics,
    Purchase,
)
from spotkeeper_lab.fakes.virtual_time import instant
from spotkeeper_lab.traces.market import Market

SPOT, ON_DEMAND = "spot", "on-demand"


# What the template's rules let through.
_KINDS = {
    EventKind.LAUNCH_SUCCESSFUL: InterruptionKind.LAUNCH_SUCCESSFUL,
    EventKind.LAUNCH_UNSUCCESSFUL: InterruptionKind.LAUNCH_UNSUCCESSFUL,
    EventKind.WARNING: InterruptionKind.INTERRUPTION_WARNING,
    EventKind.TERMINATED: InterruptionKind.TERMINATE_SUCCESSFUL,
}


# Only these say their group; the others name an instance, and the turn looks it up.
_OF_GROUPS = frozenset(
    {EventKind.LAUNCH_SUCCESSFUL, EventKind.LAUNCH_UNSUCCESSFUL, EventKind.TERMINATED}
)


def fleet_of(world: World, settings: Settings) -> Fleet:
    """The fleet of a world: its target on spot, as much again on demand at most.

    Its operator knows whether on-demand is warm and how long before a loss warnings come.
    """
    warm = world.warm_pool > 0 and (world.warm_start_s or 0.0) < world.cold_start_s
    told = {"on_demand_warm": warm, "notice_s": round(world.notice_s)}
    chosen: dict[str, Any] = {**settings, **told}
    if "rebalance" in chosen:
        chosen["rebalance"] = RebalanceMeaning(str(chosen["rebalance"]))
    return Fleet(
        name="backtest",
        spot_group=SPOT,
        on_demand_group=ON_DEMAND,
        bounds=Bounds(spot_min=0, spot_max=2 * world.target, on_demand_max=world.target),
        availability=replace(AvailabilityPolicy(), **chosen),
    )


def cloud_of(window: Market, world: World) -> Cloud:
    """The cloud of a world: one group each way, the spot group asked for the target."""
    groups = [
        GroupSpec(
            name=SPOT,
            purchase=Purchase.SPOT,
            minimum=0,
            maximum=2 * world.target,
            desired=world.target,
            pools=window.pools,
        ),
        GroupSpec(
            name=ON_DEMAND,
            purchase=Purchase.ON_DEMAND,
            minimum=0,
            maximum=2 * world.target,
            pools=window.pools,
        ),
    ]
    physics = Physics(
        cold_start_s=world.cold_start_s,
        warm_start_s=world.warm_start_s,
        warm_pool=world.warm_pool,
        notice_s=world.notice_s,
        notice_lost=world.notice_lost,
        event_delay_s=world.event_delay_s,
        on_demand_failure=world.on_demand_failure,
    )
    return Cloud(window, groups, physics, world.seed)


def interruption_of(event: CloudEvent) -> Interruption:
    """An event as the function's border parses it; AWS writes whole seconds."""
    return Interruption(
        kind=_KINDS[event.kind],
        at=instant(math.floor(event.at_s)),
        instance_ids=(event.instance_id,) if event.instance_id else (),
        group=event.group if event.kind in _OF_GROUPS else "",
    )
