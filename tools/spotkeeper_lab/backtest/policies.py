"""Every policy that can be tried, by name, with its settings as the command line changes them."""

import difflib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper_lab.backtest import bounds, peers
from spotkeeper_lab.backtest.world import RunResult, Settings, Value, World
from spotkeeper_lab.traces.market import Market
from spotkeeper_operator.text import parse_duration

type Runner = Callable[[Market, World, Settings], RunResult]
"""Tries a policy over one window."""

OF_THE_WORLD = {"notice_s": "--notice", "on_demand_warm": "--warm-start and --warm-pool"}
"""Deployed settings that a backtest takes from its world, with their options."""


class UnknownNameError(ValueError):
    """A policy or setting that does not exist; offers the nearest names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        offer = f"did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(
            f"no {kind} is called {name!r}; {offer or 'known: ' + (', '.join(known) or 'none')}"
        )


class SettingError(ValueError):
    """A setting whose value cannot be read."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy: how it is tried, and its settings."""

    name: str
    run: Runner
    settings: Settings


def _peer(make: Callable[[World, Settings, int], peers.TickPolicy]) -> Runner:
    """Try a peer, made for a world, its settings and the number of pools."""
    return lambda window, world, settings: peers.run(
        make(world, settings, len(window.pools)), window, world
    )


def _spotkeeper(window: Market, world: World, settings: Settings) -> RunResult:
    # Only this policy needs what is deployed, with all that it imports.
    from spotkeeper_lab.backtest import deployed

    return deployed.run(window, world, settings)


def deployed_settings() -> dict[str, Value]:
    """The settings of the deployed policy, by name, with the deployed defaults."""
    settings = {k: v for k, v in asdict(AvailabilityPolicy()).items() if k not in OF_THE_WORLD}
    return settings | {"rebalance": settings["rebalance"].value}


RUNNERS: dict[str, tuple[Runner, Settings]] = {
    "on-demand": (_peer(lambda w, _, __: peers.TickPolicy(0, w.target)), {}),
    "spot": (_peer(lambda w, _, __: peers.SpotGroup(w.target)), {}),
    "static-split": (
        _peer(lambda w, s, _: peers.SpotGroup(w.target, float(s["on_demand_share"]))),
        {"on_demand_share": 0.3},
    ),
    # The published costs of both, 39 % at a price of a third, are those of one more than the
    # target.
    "even-spread": (
        _peer(lambda w, s, _: peers.TickPolicy(w.target + int(s["extra"]))),
        {"extra": 1},
    ),
    "round-robin": (
        _peer(lambda w, s, _: peers.RoundRobin(w.target + int(s["extra"]))),
        {"extra": 1},
    ),
    "two-group-loop": (
        _peer(lambda w, s, _: peers.TwoGroupLoop(w.target, w.ticks(float(s["every_s"])) or 1)),
        {"every_s": 60.0},
    ),
    "spothedge": (
        _peer(
            lambda w, s, pools: peers.SpotHedge(
                w.target, pools, int(s["extra"]), random.Random(f"spothedge/{w.seed}")
            )
        ),
        {"extra": 1},
    ),
    "spotkeeper": (_spotkeeper, deployed_settings()),
    "optimum": (lambda market, world, _: bounds.optimum(market, world), {}),
    "limit": (lambda market, world, _: bounds.limit(market, world), {}),
}
POLICIES = {name: Policy(name, run, settings) for name, (run, settings) in RUNNERS.items()}


def _regions(window: Market, world: World, settings: Settings) -> RunResult:
    from spotkeeper_lab.backtest import regions

    return regions.run(window, world, settings)


def _even_split(window: Market, world: World, settings: Settings) -> RunResult:
    from spotkeeper_lab.backtest import regions

    return regions.even_split(window, world, settings)


def _failover(window: Market, world: World, settings: Settings) -> RunResult:
    return peers.run(peers.Failover(world.target, window.regions_of_pools), window, world)


REGIONAL = {
    name: Policy(name, run, settings)
    for name, run, settings in (
        ("even-split", _even_split, deployed_settings()),
        ("failover", _failover, {}),
        ("spotkeeper-regions", _regions, deployed_settings() | {"home": ""}),
    )
}
"""Ways to use several regions at once, with the fleet's part in each."""


def choose(names: Sequence[str]) -> tuple[Policy, ...]:
    """The policies of these names, all where there are none; raises UnknownNameError."""
    for name in names:
        if name not in POLICIES:
            raise UnknownNameError("policy", name, POLICIES)
    return tuple(POLICIES[name] for name in dict.fromkeys(names or POLICIES))


def configure(policies: Sequence[Policy], texts: Sequence[str]) -> tuple[Policy, ...]:
    """The policies with settings changed by ``name=value``, in all that have it, or by
    ``policy.name=value``.

    Raises UnknownNameError for a name that none of the policies has, SettingError for a value that
    is not of the setting's kind.
    """
    from pydantic import ValidationError

    from spotkeeper.border.fleet_document import AvailabilitySection

    changed = {policy.name: dict(policy.settings) for policy in policies}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"{text!r} is not a setting; write name=value")
        owner, _, short = name.strip().rpartition(".")
        having = [one for one in policies if short in one.settings and owner in ("", one.name)]
        if short in OF_THE_WORLD and not having:
            raise SettingError(f"{short} is the world's, not a policy's: {OF_THE_WORLD[short]}")
        if not having:
            every = [(policy.name, setting) for policy in policies for setting in policy.settings]
            known = {s for _, s in every} | {f"{policy}.{s}" for policy, s in every}
            raise UnknownNameError("setting", name.strip(), known)
        for policy in having:
            changed[policy.name][short] = _read(short, value.strip(), policy.settings[short])
    if own := changed.get("spotkeeper"):
        # What a fleet document may not say is refused in its words.
        try:
            AvailabilitySection.model_validate(own)
        except ValidationError as error:
            wrong = error.errors()[0]
            problem = f"{wrong['loc'][0]} is {wrong['input']!r}; {wrong['msg']}"
            raise SettingError(problem) from None
    return tuple(replace(policy, settings=changed[policy.name]) for policy in policies)


def _read(name: str, text: str, default: Value) -> Value:
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise SettingError(f"{name} is {text!r}; it must be true or false")
        return text.lower() == "true"
    whole = isinstance(default, int)
    if name.endswith("_s"):
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise SettingError(f"{name}: {error}") from None
        return int(seconds) if whole and seconds.is_integer() else seconds
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} is {text!r}; it must be {kind}") from None
    if not 0 <= number < float("inf"):
        raise SettingError(f"{name} is {text}; it must be 0 or more")
    return number
