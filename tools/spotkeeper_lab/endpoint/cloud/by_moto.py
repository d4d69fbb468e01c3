"""Calls of Auto Scaling and EC2 that the simulated cloud answers, read and written by moto.

The answers are those of the tests and of the demo, where moto's own services ask for them; here
requests come over the wire.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast
from urllib.parse import parse_qsl

from moto.core.exceptions import ServiceException
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import get_serializer_class
from moto.core.utils import camelcase_to_underscores, get_service_model
from werkzeug.datastructures import MultiDict

from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.endpoint.seams.account import Response
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.wire import Answer, Get, WireAction, page

# Calls of EC2 that would make or change instances which no group and no market knows.
NOT_SIMULATED = frozenset({
    "RunInstances", "StartInstances", "StopInstances", "RebootInstances", "CreateFleet",
    "RequestSpotInstances", "CancelSpotInstanceRequests", "RequestSpotFleet",
    "ModifyInstanceAttribute", "DescribeInstanceStatus",
})  # fmt: skip
PROTOCOLS = {"autoscaling": "query", "ec2": "ec2"}


class _Refused(ServiceException):
    """What the cloud refuses, as moto writes errors."""


class ByMoto:
    """Answers the calls that the cloud knows; each is answered as of now."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self, service: str, body: bytes) -> Response | None:
        """Answer a call from its body, or None for an action that is not the cloud's to answer."""
        values = MultiDict(parse_qsl(body.decode(), keep_blank_values=True))
        name = values.get("Action", "")
        action = self._world.actions[service].get(camelcase_to_underscores(name))
        if action is None and (service == "autoscaling" or name in NOT_SIMULATED):
            action = _refused(name)
        return None if action is None else self._answer(service, name, action, values)

    def _answer(
        self, service: str, name: str, action: WireAction, values: "MultiDict[str, str]"
    ) -> Response:
        operation = _model(service).operation_model(name)
        parser = PROTOCOL_PARSERS[PROTOCOLS[service]](operation)
        params: Mapping[str, Any] = parser.parse(
            cast("Any", {"values": values, "headers": {}, "body": b""})
        )
        written = get_serializer_class(service, PROTOCOLS[service])(operation).serialize(
            self._result(action, params)
        )
        return written["status_code"], dict(written["headers"]), str(written["body"]).encode()

    def _result(self, action: WireAction, params: Mapping[str, Any]) -> object:
        with self._world.now():
            try:
                answer = action.answer(params.get)
            except CloudError as refusal:
                return _Refused(refusal.code, refusal.message)
        return page(answer, params.get) if action.paged else answer


def _refused(name: str) -> WireAction:
    """An action that would be accepted and forgotten is refused by its name."""

    def answer(_: Get) -> Answer:
        message = f"{name} is not simulated by the local AWS (docs/lab.md says what is)"
        raise CloudError("ValidationError", message)

    return WireAction(answer)


@cache
def _model(service: str) -> Any:
    return get_service_model(service)
