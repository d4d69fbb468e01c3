"""What a policy in the catalogue is: how it is tried, its settings, and what refuses them."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from spotkeeper_lab.backtest.accounting import RunResult
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.market import Market

type Value = bool | int | float | str


type Settings = Mapping[str, Value]


type Runner = Callable[[Market, World, Settings], RunResult]
"""Tries a policy over one window; a function of a module, since other processes import it."""


OF_THE_WORLD = {"notice_s": "--notice", "on_demand_warm": "--warm-start and --warm-pool"}
"""Deployed settings that a backtest takes from its world, with the options that say them."""


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
