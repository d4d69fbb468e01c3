"""Calls of the functions that fail on order, between the wire and the services."""

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from spotkeeper_lab.endpoint.faults.values import CallAnswer, Calls

type Message = dict[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

# Roles have temporary keys; operators and deployments of this endpoint are never disturbed.
_SIGNED_BY_A_ROLE = re.compile(r"Credential=ASIA[^/]*/\d+/[^/]+/([a-z0-9-]+)/")
UNREACHABLE_S = 5.0
MESSAGE = "ordered by the lab"


@dataclass(frozen=True, slots=True)
class _Call:
    service: str
    action: str


@dataclass(frozen=True, slots=True)
class _Ordered:
    fault: Calls
    until_s: float


class FailingCalls:
    """Fails calls as ordered; `seconds` is the lab's clock, chance decides within a share."""

    def __init__(self, app: App, seconds: Callable[[], float], seed: int = 0) -> None:
        self._app = app
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._ordered: dict[str, _Ordered] = {}
        self._once: dict[str, Callable[[], object]] = {}

    def order(self, fault: Calls) -> None:
        """Let calls fail from now on."""
        self._ordered[fault.action] = _Ordered(fault, self._seconds() + fault.for_s)

    def at_next(self, action: str, then: Callable[[], object]) -> None:
        """Do something once a function has called an action, before it hears the answer."""
        self._once[action] = then

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request, or fail it."""
        if scope["type"] != "http" or not (self._ordered or self._once):
            await self._app(scope, receive, send)
            return
        body, replayed = await _read(receive)
        call = _call(scope, body)
        if call and (then := self._once.pop(call.action, None)):
            await self._app(scope, replayed, _nowhere)
            await asyncio.to_thread(then)
            await respond(send, *refusal(call.service, CallAnswer.LOST))
            return
        how = self._failing(call) if call else None
        if call is None or how is None:
            await self._app(scope, replayed, send)
            return
        if how is CallAnswer.LOST:
            await self._app(scope, replayed, _nowhere)
        if how is CallAnswer.UNREACHABLE:
            await asyncio.sleep(UNREACHABLE_S)
        await respond(send, *refusal(call.service, how))

    def _failing(self, call: _Call) -> CallAnswer | None:
        for name in (call.action, call.service):
            ordered = self._ordered.get(name)
            if ordered and self._seconds() < ordered.until_s:
                return ordered.fault.answer if self._hit(ordered.fault) else None
        return None

    def _hit(self, fault: Calls) -> bool:
        return self._chance.random() < fault.share


def refusal(service: str, how: CallAnswer) -> tuple[int, str, bytes]:
    """Status, content type and body of a failure, in the words and the protocol of a service."""
    status, code = _code(service, how)
    if service == "ec2":
        text = f"<Response><Errors>{_error(code)}</Errors><RequestID>lab</RequestID></Response>"
        return status, "text/xml", text.encode()
    if service == "autoscaling":
        text = f"<ErrorResponse>{_error(code)}<RequestId>lab</RequestId></ErrorResponse>"
        return status, "text/xml", text.encode()
    body = json.dumps({"__type": code, "message": MESSAGE}).encode()
    return status, "application/x-amz-json-1.0", body


def _code(service: str, how: CallAnswer) -> tuple[int, str]:
    query = service in {"ec2", "autoscaling"}
    match how:
        case CallAnswer.THROTTLED if service == "ec2":
            return 503, "RequestLimitExceeded"
        case CallAnswer.THROTTLED:
            return 400, "Throttling" if query else "ThrottlingException"
        case CallAnswer.DENIED if service == "ec2":
            return 403, "UnauthorizedOperation"
        case CallAnswer.DENIED:
            return (403, "AccessDenied") if query else (400, "AccessDeniedException")
        case _:
            return 500, "InternalFailure" if query else "InternalServerError"


def _error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>{escape(MESSAGE)}</Message></Error>"


def _call(scope: Mapping[str, Any], body: bytes) -> _Call | None:
    """The service and action of a request that a function signed."""
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    signed = _SIGNED_BY_A_ROLE.search(headers.get("authorization", ""))
    if signed is None:
        return None
    target = headers.get("x-amz-target", "").rpartition(".")[2]
    named = parse_qs(body.decode(errors="replace")).get("Action", [""])[0]
    return _Call(signed[1], target or named)


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """The body of a request, and a `receive` that gives it once more."""
    parts: list[bytes] = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"".join(parts)
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return given.pop() if given else await receive()

    return body, again


async def _nowhere(_message: Message) -> None:
    return None


async def respond(send: Send, status: int, kind: str, body: bytes) -> None:
    """Answer a request."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
