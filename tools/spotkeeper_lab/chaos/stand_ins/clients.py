"""boto3's clients as the product sees them, over the simulated cloud, without the wire.

Parameters are checked against botocore's own models, lists are paged by botocore's own paginators,
errors are botocore's. A call takes virtual time, and what is wrong with AWS at that moment happens
to it: throttling, faults, refusals, answers that are lost after the call had its effect.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol

from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.model import OperationModel
from botocore.paginate import Paginator
from botocore.session import get_session
from botocore.validate import ParamValidator

from spotkeeper.wiring import NEEDED
from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.wire import Respond

# Between the attempts that a client's configuration allows.
PAUSES_S = (0.0, 0.5, 1.0)


class Trouble(Protocol):
    """What a world does to calls."""

    def spend(self, seconds: float) -> None:
        """Let the calling function wait."""
        ...

    def latency_s(self, service: str, operation: str) -> float:
        """How long the next call takes."""
        ...

    def refusal(self, service: str, operation: str) -> tuple[str, str] | None:
        """AWS's code and message where it refuses the next call."""
        ...

    def loses_answer(self, service: str, operation: str) -> bool:
        """Whether the next answer is lost on its way."""
        ...


class Untroubled:
    """A world in which calls take no time and nothing is wrong."""

    def spend(self, seconds: float) -> None:
        """Let no time pass."""

    def latency_s(self, service: str, operation: str) -> float:
        """Take no time."""
        del service, operation
        return 0.0

    def refusal(self, service: str, operation: str) -> tuple[str, str] | None:
        """Refuse nothing."""
        del service, operation
        return None

    def loses_answer(self, service: str, operation: str) -> bool:
        """Lose nothing."""
        del service, operation
        return False


@cache
def _models(service: str) -> tuple[dict[str, OperationModel], dict[str, Any]]:
    """The operations of a service by their Python names, and how they are paged."""
    session = get_session()
    model = session.get_service_model(service)
    operations = {xform_name(name): model.operation_model(name) for name in model.operation_names}
    pages = session.get_component("data_loader").load_service_model(service, "paginators-1")
    return operations, pages["pagination"]


_checked: set[tuple[str, frozenset[str]]] = set()


class Client:
    """One service; every attribute that is an operation can be called."""

    def __init__(
        self,
        service: str,
        answers: Mapping[str, Respond],
        trouble: Trouble,
        config: Config | None = None,
    ) -> None:
        settings: Any = config or NEEDED
        self._tries: int = settings.retries["total_max_attempts"]
        self._read_s: float = settings.read_timeout
        self._service = service
        self._answers = answers
        self._trouble = trouble
        self._operations, self._pages = _models(service)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The operation of that name; it fails when nobody simulates it."""
        if name.startswith("__") or name not in self._operations:
            raise AttributeError(name)
        if name not in self._answers:
            raise NotImplementedError(f"{self._service}.{name} is not simulated: teach the lab")

        def call(**params: Any) -> Any:
            return self._call(name, params)

        return call

    def get_paginator(self, name: str) -> "Paginator[Any]":
        """botocore's paginator over the operation."""
        operation = self._operations[name]
        return Paginator(getattr(self, name), self._pages[operation.name], operation)

    def _call(self, name: str, params: Mapping[str, Any]) -> Any:
        operation = self._operations[name]
        self._check(operation, params)
        for attempt in range(self._tries):
            if attempt:
                self._trouble.spend(PAUSES_S[attempt])
            last = attempt == self._tries - 1
            latency_s = self._trouble.latency_s(self._service, name)
            self._trouble.spend(min(latency_s, self._read_s) / 2)
            if refusal := self._trouble.refusal(self._service, name):
                self._trouble.spend(latency_s / 2)
                if last or refusal[0] in NOT_RETRIED:
                    raise _error(operation, *refusal)
                continue
            try:
                answer = self._answers[name](params)
            except CloudError as error:
                self._trouble.spend(latency_s / 2)
                raise _error(operation, error.code, error.message) from error
            self._trouble.spend(min(latency_s, self._read_s) / 2)
            if latency_s < self._read_s and not self._trouble.loses_answer(self._service, name):
                return dict(answer)
        raise ReadTimeoutError(endpoint_url=f"https://{self._service}.example")

    def _check(self, operation: OperationModel, params: Mapping[str, Any]) -> None:
        """Hold parameters against botocore's model, once for each set of them."""
        key = (f"{self._service}.{operation.name}", frozenset(params))
        if key not in _checked:
            assert operation.input_shape
            report = ParamValidator().validate(params, operation.input_shape)
            if report.has_errors():
                raise NotImplementedError(f"{key[0]}: {report.generate_report()}")
            _checked.add(key)


NOT_RETRIED = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation"})


def _error(operation: OperationModel, code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation.name)
