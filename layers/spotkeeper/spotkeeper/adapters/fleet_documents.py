"""Fleet documents in SSM Parameter Store, through Powertools' cached parameters."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_lambda_powertools.utilities.parameters import SSMProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError

from spotkeeper.border.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import FleetError, Unavailable

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

# A document of this name beside a fleet's own is laid over it: no deployment overwrites it.
OVERRIDES = ".overrides"
# A changed document is in force within this; each minute would be a call a minute and function.
CACHE_S = 60


class WrongFleetDocument(FleetError):
    """A fleet document that does not validate; the other fleets go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDocuments:
    """The fleets that can be run, an error for each document that cannot, and all their names."""

    fleets: tuple[Fleet, ...]
    errors: tuple[FleetError, ...]
    names: frozenset[str] = frozenset()


class FleetDocumentStore:
    """Reads all documents below one path."""

    def __init__(self, ssm: "SSMClient", path: str) -> None:
        """Take a typed client and the path; nothing is called yet."""
        self._provider = SSMProvider(boto3_client=ssm)
        self._path = path
        self._last: dict[str, str] = {}

    def load(self) -> FleetDocuments:
        """Read and validate every document; a wrong one becomes an error of its own.

        When they cannot be read, those that were read last are in force, and an error says so.
        Raises `Unavailable` where none were.
        """
        fleets: list[Fleet] = []
        errors: list[FleetError] = []
        try:
            self._last = self._read()
        except Unavailable as error:
            if not self._last:
                raise
            errors.append(Unavailable(f"{error}; those that were read last stay in force"))
        texts = dict(self._last)
        overrides = _taken(texts, OVERRIDES)
        for name, text in sorted(texts.items()):
            try:
                fleets.append(parse_fleet(name, text, overrides.pop(name, None)))
            except FleetDocumentError as error:
                errors.append(WrongFleetDocument(str(error)))
        errors += [
            WrongFleetDocument(f"{name}{OVERRIDES} overrides no document: there is no {name}")
            for name in sorted(overrides)
        ]
        if not texts:
            message = f"no fleet document under {self._path}: create one (docs/settings.md)"
            errors.append(WrongFleetDocument(message))
        alone, shared = _apart(fleets)
        return FleetDocuments(fleets=alone, errors=(*errors, *shared), names=frozenset(texts))

    def _read(self) -> dict[str, str]:
        try:
            values = self._provider.get_multiple(self._path, max_age=CACHE_S, recursive=True)
        except GetParameterError as error:
            raise Unavailable(f"reading the fleet documents under {self._path}: {error}") from error
        return {name: str(value) for name, value in values.items()}


def _apart(fleets: Sequence[Fleet]) -> tuple[tuple[Fleet, ...], tuple[FleetError, ...]]:
    """Refuse fleets that have a group in common: each would undo what the other asks for."""
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for fleet in fleets:
        for group in (fleet.spot_group, fleet.on_demand_group):
            owners[group].append(fleet.name)
    shared = {group: names for group, names in owners.items() if len(names) > 1}
    refused = {name for names in shared.values() for name in names}
    errors = [
        WrongFleetDocument(
            f"fleet documents {' and '.join(names)}: both name the group {group}; no turn runs for "
            "them until only one does"
        )
        for group, names in sorted(shared.items())
    ]
    return tuple([fleet for fleet in fleets if fleet.name not in refused]), tuple(errors)


def _taken(texts: dict[str, str], ending: str) -> dict[str, str]:
    """Take the documents whose names end so out of the others; answer them by what they are of."""
    names = [name for name in texts if name.endswith(ending)]
    return {name.removesuffix(ending): texts.pop(name) for name in names}
