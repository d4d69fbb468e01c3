"""Scenarios: what goes wrong, when, and what is promised all the same; one YAML file each.

Every field is described in docs/lab.md.
"""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotkeeper_lab.endpoint.faults.values import Fault, Seconds
from spotkeeper_lab.endpoint.settings import LabSettings

FOLDER = Path(__file__).parent / "scenarios"


class ScenarioError(ValueError):
    """A scenario that cannot be read; the message names file and field."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Part):
    """A fault that is ordered `at_s` after the beginning."""

    at_s: Seconds
    fault: Fault


class Promises(_Part):
    """What must hold; a promise without a value is not made.

    `asked_within_s`: on-demand is asked so soon after spot falls short of its need.
    `served_share`: share of the time in which as many serve as the spot group was asked for.
    `released_within_s`: on-demand is back at 0 so soon after the last fault.
    `on_demand_at_most`: instances ever asked for. `failed_invocations`: at most so many.
    """

    asked_within_s: Seconds | None = None
    served_share: Annotated[float, Field(ge=0, le=1)] | None = None
    released_within_s: Seconds | None = None
    on_demand_at_most: int | None = Field(default=None, ge=0)
    failed_invocations: int | None = Field(default=0, ge=0)


class Scenario(_Part):
    """One story: it lasts `for_s` seconds from the first turn on."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    about: str
    for_s: Annotated[float, Field(gt=0, le=7200)]
    lab: LabSettings = LabSettings()
    parameters: dict[str, str | int | float | bool] = {}
    erlangs: Annotated[float, Field(ge=0, le=1000)] = 0.0
    steps: tuple[Step, ...] = ()
    promises: Promises = Promises()


def read_scenario(path: Path) -> Scenario:
    """Read a file; raises ScenarioError with every wrong field."""
    try:
        return Scenario.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        raise ScenarioError(f"{path}:\n{_wrong(error)}") from error


def find_scenario(name: str) -> Path:
    """The file of a scenario by its name, or by its path; raises ScenarioError."""
    known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name in known:
        return FOLDER / f"{name}.yaml"
    if Path(name).is_file():
        return Path(name)
    raise ScenarioError(f"no scenario {name}; there are {', '.join(known)}, or name a file")


def _wrong(error: ValidationError) -> str:
    return "\n".join(
        f"  {'.'.join(str(part) for part in item['loc']) or 'the file'}: {item['msg']}"
        for item in error.errors()
    )
