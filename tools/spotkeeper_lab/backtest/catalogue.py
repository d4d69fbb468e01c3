"""Every policy that can be tried, by name, with its settings."""

import difflib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from spotkeeper.domain.fleet import AvailabilityPolicy
from spotkeeper_lab.backtest import bounds, peers, ticks
from spotkeeper_lab.backtest.accounting import RunResult
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market

type Value = bool | int | float | str
type Settings = Mapping[str, Value]
type Runner = Callable[[Market, World, Settings], RunResult]
"""Tries a policy over one window; a function of a module, since other processes import it."""


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
    """One policy: how it is tried, its settings, and what refuses those that cannot be."""

    name: str
    run: Runner
    settings: Settings
    check: Callable[[Settings], None] | None = None


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
    from spotkeeper_lab.backtest import spotkeeper_runner

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
    """The settings of the deployed policy, by name, with the deployed defaults.

    Whether on-demand is warm and how long the notice is are the world's.
    """
    settings = asdict(AvailabilityPolicy())
    del settings["on_demand_warm"], settings["notice_s"]
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


def configure(policies: Sequence[Policy], texts: Sequence[str]) -> tuple[Policy, ...]:
    """The policies with settings changed by ``name=value``, in all that have it, or by
    ``policy.name=value``.

    Raises UnknownNameError for a name that none of the policies has, SettingError for a value that
    is not of the setting's kind.
    """
    changed: dict[str, dict[str, Value]] = {
        policy.name: dict(policy.settings) for policy in policies
    }
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"{text!r} is not a setting; write name=value")
        owner, _, short = name.strip().rpartition(".")
        having = [one for one in policies if short in one.settings and owner in ("", one.name)]
        if not having:
            raise UnknownNameError("setting", name.strip(), _setting_names(policies))
        for policy in having:
            changed[policy.name][short] = _read(short, value.strip(), policy.settings[short])
    configured = tuple(replace(policy, settings=changed[policy.name]) for policy in policies)
    for policy in configured:
        if policy.check:
            policy.check(policy.settings)
    return configured


def _setting_names(policies: Sequence[Policy]) -> set[str]:
    return {
        name
        for policy in policies
        for setting in policy.settings
        for name in (setting, f"{policy.name}.{setting}")
    }


def _read(name: str, text: str, default: Value) -> Value:
    match default:
        case bool():
            return _flag(name, text)
        case int() | float():
            return _number(name, text, whole=isinstance(default, int))
        case str():
            return text


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise SettingError(f"{name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _number(name: str, text: str, *, whole: bool) -> float:
    if name.endswith("_s"):
        seconds = duration(text)
        return int(seconds) if whole and seconds.is_integer() else seconds
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} is {text!r}; it must be {kind}") from None
    if not 0 <= number < float("inf"):
        raise SettingError(f"{name} is {text}; it must be 0 or more")
    return number


def duration(text: str) -> float:
    """Seconds from ``120``, ``120s``, ``2m``, ``1.5h`` or ``1d``; raises SettingError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    bare = text.strip()
    unit = units.get(bare[-1:].lower())
    try:
        seconds = float(bare if unit is None else bare[:-1]) * (unit or 1.0)
    except ValueError:
        raise SettingError(f"{text!r} is not a duration; write 120, 120s, 2m, 1.5h or 1d") from None
    if not 0 <= seconds < float("inf"):
        raise SettingError(f"{text!r} is not a duration; it must be 0 or more")
    return seconds
