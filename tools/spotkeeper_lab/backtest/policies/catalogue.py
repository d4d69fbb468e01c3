"""Every policy that can be tried, by name, with its settings."""

import random
from collections.abc import Sequence
from dataclasses import asdict

from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper_lab.backtest.accounting import RunResult
from spotkeeper_lab.backtest.policies import bounds, peers, ticks
from spotkeeper_lab.backtest.policies.values import (
    OF_THE_WORLD,
    Policy,
    SettingError,
    Settings,
    UnknownNameError,
    Value,
)
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market


def _on_demand(window: Market, world: World, settings: Settings) -> RunResult:
    return ticks.run(peers.OnDemandOnly(world.target), window, world)


def _spot(window: Market, world: World, settings: Settings) -> RunResult:
    return ticks.run(peers.SpotGroup(world.target), window, world)


def _static_split(window: Market, world: World, settings: Settings) -> RunResult:
    share = float(settings["on_demand_share"])
    return ticks.run(peers.SpotGroup(world.target, share), window, world)


def _even_spread(window: Market, world: World, settings: Settings) -> RunResult:
    return ticks.run(peers.EvenSpread(world.target + int(settings["extra"])), window, world)


def _round_robin(window: Market, world: World, settings: Settings) -> RunResult:
    return ticks.run(peers.RoundRobin(world.target + int(settings["extra"])), window, world)


def _two_group_loop(window: Market, world: World, settings: Settings) -> RunResult:
    every = max(1, world.ticks(float(settings["every_s"])))
    return ticks.run(peers.TwoGroupLoop(world.target, every), window, world)


def _spothedge(window: Market, world: World, settings: Settings) -> RunResult:
    rng = random.Random(f"spothedge/{world.seed}")
    extra, pools = int(settings["extra"]), len(window.pools)
    return ticks.run(peers.SpotHedge(world.target, pools, extra, rng), window, world)


def _spotkeeper(window: Market, world: World, settings: Settings) -> RunResult:
    # Only this policy needs what is deployed, with all that it imports.
    from spotkeeper_lab.backtest.policies import spotkeeper_runner

    return spotkeeper_runner.run(window, world, settings)


def _as_deployed(settings: Settings) -> None:
    """Refuse what a fleet document may not say, in its words."""
    from pydantic import ValidationError

    from spotkeeper.border.fleet_document import AvailabilitySection

    try:
        AvailabilitySection.model_validate(dict(settings))
    except ValidationError as error:
        wrong = error.errors()[0]
        name = wrong["loc"][0]
        raise SettingError(f"{name} is {wrong['input']!r}; {wrong['msg']}") from None


def deployed_settings() -> dict[str, Value]:
    """The settings of the deployed policy, by name, with the deployed defaults."""
    settings = {k: v for k, v in asdict(AvailabilityPolicy()).items() if k not in OF_THE_WORLD}
    return settings | {"rebalance": settings["rebalance"].value}


def _optimum(window: Market, world: World, settings: Settings) -> RunResult:
    return bounds.optimum(window, world)


def _limit(window: Market, world: World, settings: Settings) -> RunResult:
    return bounds.limit(window, world)


POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("on-demand", _on_demand, {}),
        Policy("spot", _spot, {}),
        Policy("static-split", _static_split, {"on_demand_share": 0.3}),
        # The published costs of both, 39 % at a price of a third, are those of one more than the
        # target.
        Policy("even-spread", _even_spread, {"extra": 1}),
        Policy("round-robin", _round_robin, {"extra": 1}),
        Policy("two-group-loop", _two_group_loop, {"every_s": 60.0}),
        Policy("spothedge", _spothedge, {"extra": 1}),
        Policy("spotkeeper", _spotkeeper, deployed_settings(), _as_deployed),
        Policy("optimum", _optimum, {}),
        Policy("limit", _limit, {}),
    )
}


def choose(names: Sequence[str]) -> tuple[Policy, ...]:
    """The policies of these names, all where there are none; raises UnknownNameError."""
    for name in names:
        if name not in POLICIES:
            raise UnknownNameError("policy", name, POLICIES)
    return tuple(POLICIES[name] for name in dict.fromkeys(names)) or tuple(POLICIES.values())
