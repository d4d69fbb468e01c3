"""Calls of boto3 that are answered before they become requests.

botocore checks a call's parameters against AWS's own models, and then asks whether somebody has an
answer; what it is given here has the shape that it would have read off the wire.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from botocore import handlers, xform_name
from botocore.model import OperationModel

from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.wire import Respond

_PARAMS = "spotkeeper_lab.params"

type _Answered = tuple[SimpleNamespace, dict[str, Any]]


@contextmanager
def answering(answers: Mapping[str, Mapping[str, Respond]]) -> Iterator[None]:
    """Answer these operations of some services, for every session that is made meanwhile."""

    def keep(params: object, model: OperationModel, context: dict[str, Any], **_: object) -> None:
        if known(model):
            context[_PARAMS] = params

    def answer(model: OperationModel, context: dict[str, Any], **_: object) -> _Answered | None:
        respond = known(model)
        return _answered(respond, model, context[_PARAMS]) if respond else None

    def known(model: OperationModel) -> Respond | None:
        return answers.get(model.service_model.service_name, {}).get(xform_name(model.name))

    ours = [
        ("before-parameter-build", keep, handlers.REGISTER_LAST),
        # The last who is asked: before, calls are counted.
        ("before-call", answer, handlers.REGISTER_LAST),
    ]
    with patch.object(handlers, "BUILTIN_HANDLERS", [*handlers.BUILTIN_HANDLERS, *ours]):
        yield


def _answered(respond: Respond, model: OperationModel, params: Mapping[str, Any]) -> _Answered:
    """The answer and its status; what is refused is an error of the service."""
    status, parsed = 200, dict[str, Any]()
    try:
        answer = respond(params)
        parsed = _read(model.output_shape, answer) if model.output_shape else {}
    except CloudError as refusal:
        status, parsed = 400, {"Error": {"Code": refusal.code, "Message": refusal.message}}
    told = {"HTTPStatusCode": status, "RetryAttempts": 0}
    return SimpleNamespace(status_code=status), {**parsed, "ResponseMetadata": told}


def _read(shape: Any, value: Any) -> Any:
    """A value as botocore reads it: without what is None; KeyError for what AWS does not have."""
    match shape.type_name:
        case "structure":
            members = shape.members
            return {n: _read(members[n], one) for n, one in value.items() if one is not None}
        case "list":
            return [_read(shape.member, one) for one in value]
        case "map":
            return {key: _read(shape.value, one) for key, one in value.items()}
    return value
