"""Scenarios as files: what broke once is run again for ever."""

from pathlib import Path

from pydantic import TypeAdapter

from spotkeeper_lab.chaos.story.scenario import Scenario

_SCENARIO = TypeAdapter(Scenario)


def read(path: Path) -> Scenario:
    """Read a scenario; pydantic's `ValidationError` names every wrong field."""
    return _SCENARIO.validate_json(path.read_bytes())


def write(scenario: Scenario, path: Path) -> None:
    """Write a scenario, in the place of the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_SCENARIO.dump_json(scenario, indent=2) + b"\n")
