"""Fleet documents in SSM Parameter Store, through Powertools' cached parameters."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_lambda_powertools.utilities.parameters import SSMProvider
from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError

from spotkeeper.domain.fleet import Fleet
from spotkeeper.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.ports import FleetError, Unavailable

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

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

    def load(self) -> FleetDocuments:
        """Read and validate every document; a wrong one becomes an error of its own."""
        fleets: list[Fleet] = []
        errors: list[FleetError] = []
        texts = self._texts()
        for name, text in sorted(texts.items()):
            try:
                fleets.append(parse_fleet(name, text))
            except FleetDocumentError as error:
                errors.append(WrongFleetDocument(str(error)))
        if not fleets and not errors:
            message = f"no fleet document under {self._path}: create one (docs/operations.md)"
            errors.append(WrongFleetDocument(message))
        return FleetDocuments(fleets=tuple(fleets), errors=tuple(errors), names=frozenset(texts))

    def _texts(self) -> dict[str, str]:
        try:
            values = self._provider.get_multiple(self._path, max_age=CACHE_S)
        except GetParameterError as error:
            raise Unavailable(f"reading the fleet documents under {self._path}: {error}") from error
        return {name: str(value) for name, value in values.items()}
