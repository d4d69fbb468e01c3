"""What goes wrong in a lab: the kinds of fault of a scenario, in real time and over the wire."""

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from botocore import xform_name
from pydantic import BaseModel, ConfigDict, Field

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import ON_DEMAND_DRY, SPOT_DRY, CloudError
from spotkeeper_lab.endpoint.aws import World
from spotkeeper_lab.endpoint.machines import Workers
from spotkeeper_lab.endpoint.ministack import kill_workers
from spotkeeper_lab.endpoint.up import LabSettings
from spotkeeper_lab.faults import LAUNCH_TEXTS, REFUSALS, Fault, Kind, hanging


class Change(StrEnum):
    """What else can be ordered."""

    LOAD = "load"
    CAPACITY = "capacity"
    KILL = "kill-function"


class Order(BaseModel):
    """A fault of `value` for `length_s`, as in a scenario; or a change.

    A loss takes `instances` where it names some. `load` offers `value` erlangs; `capacity` lets
    each pool hold `value` instances, a drop with the lab's notice; `kill-function` ends the
    processes of the functions whose names contain `function`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    do: Kind | Change
    length_s: float = Field(default=60.0, ge=0, le=86_400)
    value: float = Field(default=0.0, ge=0, le=10_000)
    instances: tuple[str, ...] = ()
    function: str = ""


_BUTTONS = (
    ("Warn one instance", Kind.LOSS, 0, 0),
    ("Warn half of them", Kind.LOSS, 0, 0.5),
    ("Lose one at once", Kind.UNWARNED_LOSS, 0, 0),
    ("Recommend to rebalance one", Kind.REBALANCE, 0, 0),
    ("Spot runs dry", Change.CAPACITY, 0, 0),
    ("Spot is back", Change.CAPACITY, 0, 4),
    ("On-demand is dry, 3 min", Kind.ON_DEMAND_DRY, 180, 0),
    ("Launches are misconfigured, 3 min", Kind.LAUNCH_REFUSED, 180, 0.6),
    ("Quota is used up, 3 min", Kind.LAUNCH_REFUSED, 180, 0.5),
    ("Instances never serve, 3 min", Kind.BAD_SPOT_IMAGE, 180, 0),
    ("Throttle, 1 min", Kind.THROTTLED, 60, 0.5),
    ("Server errors, 1 min", Kind.FAULTY, 60, 0.5),
    ("Lose answers, 1 min", Kind.ANSWERS_LOST, 60, 0.5),
    ("Table unreachable, 1 min", Kind.TABLE_DOWN, 60, 0),
    ("EC2 does not answer, 1 min", Kind.HANGING, 60, 0),
    ("Take detaching away, 3 min", Kind.FORBIDDEN, 180, 0.3),
    ("Workers hang", Kind.HANG, 0, 0.5),
    ("No search logs, 5 min", Kind.LOGS_STOP, 300, 0),
    ("Load 2 erlangs", Change.LOAD, 0, 2),
    ("Load 6 erlangs", Change.LOAD, 0, 6),
    ("No load", Change.LOAD, 0, 0),
)
ORDERS: list[dict[str, object]] = [
    {"label": label, "fault": {"do": do, "length_s": length_s, "value": value}}
    for label, do, length_s, value in _BUTTONS
]
"""The buttons of the page."""
NOT_HERE = "not simulated by the local AWS: use a scenario (spotkeeper lab run)"
BY_CALL = frozenset({*REFUSALS, Kind.HANGING}) - {Kind.SLOW, Kind.KILLED, Kind.NO_TURNS}


class Faults:
    """Carries out orders; `active` are those that still last."""

    def __init__(self, settings: LabSettings, world: World, workers: Workers) -> None:
        self.world = world
        self.workers = workers
        self.rng = random.Random(0)
        self._settings = settings
        self._until_s: dict[Kind, tuple[Fault, float]] = {}

    def active(self) -> list[Fault]:
        now_s = self.world.seconds()
        return [fault for fault, until_s in self._until_s.values() if now_s < until_s]

    def order(self, order: Order) -> str:
        """Do it now; return what was done. Raises CloudError for what cannot be done here."""
        match order.do:
            case Change.LOAD:
                self.workers.offer(order.value)
                return f"{order.value:g} erlangs"
            case Change.KILL:
                return f"{kill_workers(order.function)} processes killed"
            case Change.CAPACITY:
                notice_s = self._settings.notice_s if order.value == 0 else 0.0
                self.world.set_capacity(list(self.world.capacities), int(order.value), notice_s)
                return f"each pool holds {order.value:g}"
            case kind:
                return self._begin(kind, order)

    def _begin(self, kind: Kind, order: Order) -> str:
        with self.world.now() as cloud:
            now_s = cloud.now_s
            fault = Fault(kind=kind, at_s=now_s, length_s=order.length_s, value=order.value)
            done = self._in_cloud(cloud, fault, order.instances)
            self._until_s[kind] = fault, fault.end_s
            return done

    def _in_cloud(self, cloud: Cloud, fault: Fault, instances: tuple[str, ...]) -> str:
        """Change the cloud as the fault does; return what it took, or its text."""
        spot, on_demand = self._settings.spot_group, self._settings.on_demand_group
        zone, _, kind = next(iter(self._settings.pools)).partition("/")
        standing = [one.instance_id for one in cloud.group(spot).instances if not one.warned_s]
        count = max(1, round(fault.value * len(standing)))
        taken = instances or tuple(standing[-count:])
        text = LAUNCH_TEXTS[int(fault.value * len(LAUNCH_TEXTS)) % len(LAUNCH_TEXTS)]
        match fault.kind:
            case Kind.LOSS:
                cloud.reclaim(taken, cloud.now_s + self._settings.notice_s)
            case Kind.UNWARNED_LOSS:
                cloud.reclaim(taken, cloud.now_s)
            case Kind.REBALANCE:
                cloud.recommend(taken)
            case Kind.HANG:
                for instance_id in taken:
                    self.workers.force.hang(instance_id)
            case Kind.LAUNCH_REFUSED:
                cloud.fail_launches(spot, fault.at_s, fault.end_s, text)
                return text
            case Kind.SPOT_DRY:
                cloud.fail_launches(spot, fault.at_s, fault.end_s, SPOT_DRY)
                cloud.reclaim(taken, cloud.now_s + self._settings.notice_s)
            case Kind.ON_DEMAND_DRY:
                text = ON_DEMAND_DRY.format(type=kind, zone=zone)
                cloud.fail_launches(on_demand, fault.at_s, fault.end_s, text)
                return text
            case Kind.BAD_SPOT_IMAGE:
                cloud.break_image(spot, fault.at_s, fault.end_s)
                return "ordered"
            case Kind.BAD_ON_DEMAND_IMAGE:
                cloud.break_image(on_demand, fault.at_s, fault.end_s)
                return "ordered"
            case Kind.LOGS_STOP:
                self.workers.stop(fault.end_s)
                return "ordered"
            case by_call if by_call in BY_CALL:
                return "ordered"
            case other:
                raise CloudError("NotSimulated", f"{other}: {NOT_HERE}")
        return ", ".join(taken) or "no instance is left"


# --- calls that fail ------------------------------------------------------------------------------

type Message = dict[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

# Roles have temporary keys; operators and deployments of this endpoint are never disturbed.
_SIGNED_BY_A_ROLE = re.compile(r"Credential=ASIA[^/]*/\d+/[^/]+/([a-z0-9-]+)/")
HANGS_S = 5.0
# As EC2, Auto Scaling and the services that speak JSON say the same.
_CODES: Mapping[str, tuple[tuple[int, str], tuple[int, str], tuple[int, str]]] = {
    "Throttling": (
        (503, "RequestLimitExceeded"),
        (400, "Throttling"),
        (400, "ThrottlingException"),
    ),
    "AccessDenied": (
        (403, "UnauthorizedOperation"),
        (403, "AccessDenied"),
        (400, "AccessDeniedException"),
    ),
    "InternalFailure": (
        (500, "InternalError"),
        (500, "InternalFailure"),
        (500, "InternalServerError"),
    ),
}


class FailingCalls:
    """Lets calls of the functions fail while a fault lasts that refuses, loses or hangs them."""

    def __init__(self, app: App, faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve a request, or fail it."""
        faults = self._faults.active() if scope["type"] == "http" else []
        if not faults:
            await self._app(scope, receive, send)
            return
        body, replayed = await _read(receive)
        service, operation = _call(scope, body)
        for fault in faults:
            if not service:
                break
            if refused := self._refusal(fault, service, operation):
                await respond(send, *refusal(service, *refused))
                return
            if fault.kind is Kind.HANGING and hanging(fault) == service:
                await asyncio.sleep(HANGS_S)
                await respond(send, *refusal(service, "InternalFailure", "no answer"))
                return
            if fault.kind is Kind.ANSWERS_LOST and self._faults.rng.random() < fault.value:
                await self._app(scope, replayed, _nowhere)
                await respond(send, *refusal(service, "InternalFailure", "the answer is lost"))
                return
        await self._app(scope, replayed, send)

    def _refusal(self, fault: Fault, service: str, operation: str) -> tuple[str, str] | None:
        refuse = REFUSALS.get(fault.kind)
        return refuse(fault, service, operation, self._faults.rng) if refuse else None


def refusal(service: str, code: str, message: str) -> tuple[int, str, bytes]:
    """Status, content type and body of a refusal, in the words and the protocol of a service."""
    index = {"ec2": 0, "autoscaling": 1}.get(service, 2)
    status, code = _CODES.get(code, ((500, code),) * 3)[index]
    error = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    if service == "ec2":
        text = f"<Response><Errors>{error}</Errors><RequestID>lab</RequestID></Response>"
    elif service == "autoscaling":
        text = f"<ErrorResponse>{error}<RequestId>lab</RequestId></ErrorResponse>"
    else:
        body = json.dumps({"__type": code, "message": message}).encode()
        return status, "application/x-amz-json-1.0", body
    return status, "text/xml", text.encode()


def _call(scope: Mapping[str, Any], body: bytes) -> tuple[str, str]:
    """The service and operation of a request that a function signed, or nothing."""
    headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
    signed = _SIGNED_BY_A_ROLE.search(headers.get("authorization", ""))
    if signed is None:
        return "", ""
    target = headers.get("x-amz-target", "").rpartition(".")[2]
    named = parse_qs(body.decode(errors="replace")).get("Action", [""])[0]
    return signed[1], xform_name(target or named)


async def _read(receive: Receive) -> tuple[bytes, Receive]:
    """Return the body of a request, and a `receive` that returns it again."""
    body = await read_body(receive)
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return given.pop() if given else await receive()

    return body, again


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _nowhere(_message: Message) -> None:
    return None


async def respond(send: Send, status: int, kind: str, body: bytes) -> None:
    """Answer a request."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
