"""Fleet documents in SSM Parameter Store, through Powertools' cached parameters.

The table has a copy of those that were read last, for a process that begins while Parameter Store
does not answer: pk documents, sk copy.
"""

import contextlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_lambda_powertools.utilities.parameters import SSMProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError

from spotkeeper.adapters.table import Items
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


class DocumentCopy(Items):
    """The copy in the table."""

    _kept: Mapping[str, str] | None = None

    def keep(self, texts: Mapping[str, str]) -> None:
        """Copy the documents, where they are not those that this process copied before.

        A copy that fails is made by the next read.
        """
        if texts != self._kept:
            with contextlib.suppress(FleetError):
                copy = json.dumps(dict(texts))
                self._put("copying the fleet documents", "documents", "copy", texts=copy)
                self._kept = dict(texts)

    def read(self) -> dict[str, str]:
        """Return the documents that were copied last; none where there is no copy to be read."""
        with contextlib.suppress(FleetError, ValueError):
            item = self._get("reading the documents' copy", "documents", "copy")
            texts = json.loads(item["texts"]["S"]) if item else {}
            return {str(name): str(text) for name, text in texts.items()}
        return {}


class FleetDocumentStore:
    """Reads all documents below one path."""

    def __init__(self, ssm: "SSMClient", path: str, copy: DocumentCopy | None = None) -> None:
        """Take a typed client and the path; nothing is called yet."""
        self._provider = SSMProvider(boto3_client=ssm)
        self._path = path
        self._copy = copy
        self._last: dict[str, str] = {}

    def load(self, *, copies: bool = False) -> FleetDocuments:
        """Read and validate every document; a wrong one becomes an error of its own.

        When they cannot be read, those that were read last are in force, by this process or as the
        table has them, and an error says so. Raises `Unavailable` where there are none.
        """
        fleets: list[Fleet] = []
        errors: list[FleetError] = []
        try:
            self._last = self._read()
            if self._copy and copies:
                self._copy.keep(self._last)
        except Unavailable as error:
            if self._copy and not self._last:
                self._last = self._copy.read()
            if not self._last:
                raise
            errors.append(Unavailable(f"{error}; those that were read last stay in force"))
        texts = {name: t for name, t in self._last.items() if not name.endswith(OVERRIDES)}
        overrides = {
            name.removesuffix(OVERRIDES): text
            for name, text in self._last.items()
            if name.endswith(OVERRIDES)
        }
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
    shared = {group: names for group, names in sorted(owners.items()) if len(names) > 1}
    refused = {name for names in shared.values() for name in names}
    errors = [
        WrongFleetDocument(
            f"fleet documents {' and '.join(names)}: both name the group {group}; no turn runs for "
            "them until only one does"
        )
        for group, names in shared.items()
    ]
    return tuple([fleet for fleet in fleets if fleet.name not in refused]), tuple(errors)
