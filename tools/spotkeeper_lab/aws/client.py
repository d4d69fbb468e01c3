"""Clients without the wire, for those who need them often; nothing of moto is read."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import boto3
from botocore import session, xform_name
from botocore.exceptions import ClientError
from botocore.model import OperationModel
from botocore.paginate import Paginator
from botocore.validate import ParamValidator

from spotkeeper_lab.aws.limits import beyond
from spotkeeper_lab.aws.wire import REGION, Respond
from spotkeeper_lab.cloud.values import CloudError, Invalid

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_SESSION_TOKEN": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_REGION": REGION,
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@contextmanager
def in_process(client: Callable[..., "Client"]) -> Iterator[None]:
    """Have boto3 make clients as `client` does, with made-up credentials."""
    with patch.dict(os.environ, CREDENTIALS), patch.object(boto3, "client", client):
        yield


class Client:
    """A client of one service without the wire, which costs a hundredth of boto3's.

    Parameters are checked against botocore's own models, lists are paged by its own paginators, and
    errors are botocore's.
    """

    def __init__(self, service: str, answers: Mapping[str, Respond]) -> None:
        self._service = service
        self._answers = answers
        self.meta = SimpleNamespace(region_name=REGION)
        self._operations, self._pages = _models(service)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The operation of that name; it fails when it is not simulated."""
        if name.startswith("__") or name not in self._operations:
            raise AttributeError(name)
        if name not in self._answers:
            raise NotImplementedError(f"{self._service}.{name} is not simulated: teach the lab")
        operation, respond = self._operations[name], self._answers[name]

        def call(**params: Any) -> Any:
            assert operation.input_shape
            report = ParamValidator().validate(params, operation.input_shape)
            if report.has_errors():
                message = f"{self._service}.{operation.name}: {report.generate_report()}"
                raise NotImplementedError(message)
            try:
                if too_much := beyond(operation, params):
                    raise Invalid(too_much)
                return dict(respond(params))
            except CloudError as refusal:
                error: Any = {"Error": {"Code": refusal.code, "Message": refusal.message}}
                raise ClientError(error, operation.name) from refusal

        return call

    def can_paginate(self, name: str) -> bool:
        """Say whether an operation has pages."""
        return self._operations[name].name in self._pages

    def get_paginator(self, name: str) -> "Paginator[Any]":
        """botocore's paginator over the operation."""
        operation = self._operations[name]
        return Paginator(getattr(self, name), self._pages[operation.name], operation)


@cache
def _models(service: str) -> tuple[dict[str, OperationModel], dict[str, Any]]:
    """The operations of a service by their Python names, and how they are paged."""
    plain = session.get_session()
    model = plain.get_service_model(service)
    operations = {xform_name(name): model.operation_model(name) for name in model.operation_names}
    pages = plain.get_component("data_loader").load_service_model(service, "paginators-1")
    return operations, pages["pagination"]
