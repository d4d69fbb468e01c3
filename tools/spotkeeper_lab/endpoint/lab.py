"""A lab's own part of the endpoint: what the page shows, and the faults that it takes orders of."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from spotkeeper_lab.cloud.values import CloudError, GroupView, InstanceView
from spotkeeper_lab.endpoint.faults.buttons import ORDERS
from spotkeeper_lab.endpoint.faults.calls import App, Receive, Send, respond
from spotkeeper_lab.endpoint.faults.inject import Faults
from spotkeeper_lab.endpoint.faults.values import FAULT, Seconds
from spotkeeper_lab.endpoint.machines import Workers
from spotkeeper_lab.endpoint.seams import permissions as seams
from spotkeeper_lab.endpoint.settings import LabSettings
from spotkeeper_lab.endpoint.world import World
from spotkeeper_lab.local_aws.wire import ACCOUNT
from spotkeeper_operator.status.page import html

PATH = "/_lab/"
SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)

type Look = Callable[[], dict[str, object]]
"""What the page shows of the stack."""


@dataclass(frozen=True, slots=True)
class LabPages:
    """Serves `/_lab/...` and leaves every other request to the endpoint."""

    app: App
    world: World
    workers: Workers
    faults: Faults
    look: Look

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not scope["path"].startswith(PATH):
            await self.app(scope, receive, send)
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        path = scope["path"].removeprefix(PATH)
        if (scope["method"], path) == ("GET", ""):
            await respond(send, 200, "text/html; charset=utf-8", html().encode())
            return
        status, answer = await asyncio.to_thread(self._answer, scope["method"], path, body)
        await respond(send, status, "application/json", json.dumps(answer).encode())

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        match method, path:
            case "GET", "state.json":
                return 200, self._picture()
            case "GET", "state":
                return 200, self._state()
            case "GET", "permissions":
                return 200, permissions()
            case "POST", "faults":
                return self._order(body)
            case "POST", "skip":
                return self._skip(body)
            case "POST", "begin":
                return self._begin(body)
            case _:
                return 404, {"error": f"there is no {method} {PATH}{path}"}

    def _picture(self) -> object:
        """What the page asks for, with the lab's own part."""
        with self.world.now() as cloud:
            at = self.world.time.at(cloud.now_s)
        mine = {"market": self.world.capacities, "workers": self._workers(), "orders": ORDERS}
        return {"at": at.isoformat(), "lab": mine, **self.look()}

    def _order(self, body: bytes) -> tuple[int, object]:
        try:
            fault = FAULT.validate_json(body)
        except ValidationError as error:
            return 400, {"error": str(error)}
        try:
            return 200, {"done": self.faults.order(fault)}
        except CloudError as refusal:
            return 400, {"error": str(refusal)}

    def _skip(self, body: bytes) -> tuple[int, object]:
        """Let seconds be over at once; no deployed function takes part in that."""
        try:
            seconds = SECONDS.validate_json(body)
        except ValidationError as error:
            return 400, {"error": str(error)}
        self.world.skip(seconds)
        return 200, {"now_s": self.world.seconds()}

    def _begin(self, body: bytes) -> tuple[int, object]:
        """Begin anew with other settings."""
        try:
            settings = LabSettings.model_validate_json(body)
        except ValidationError as error:
            return 400, {"error": str(error)}
        self.world.begin(settings.groups(), settings.pools, settings.made())
        return 200, {"now_s": self.world.seconds()}

    def _state(self) -> object:
        with self.world.now() as cloud:
            groups = [_group(cloud.group(name)) for name in cloud.groups()]
            outside = [_instance(one) for one in cloud.instances() if not one.group]
            now_s = cloud.now_s
        return {
            "at": self.world.time.at(now_s).isoformat(),
            "now_s": round(now_s, 3),
            "groups": groups,
            "outside": outside,
            "capacities": self.world.capacities,
            "workers": self._workers(),
        }

    def _workers(self) -> dict[str, object]:
        return {
            "erlangs": self.workers.erlangs,
            "logging": not self.workers.stopped,
            "queued": self.workers.queued,
            "served": self.workers.served,
            "lost": self.workers.lost,
        }


def permissions() -> dict[str, object]:
    """What each principal used and was refused so far, and what a role has and never used."""
    return {who: _permissions(who) for who in sorted({who for who, _ in seams.seen()})}


def _permissions(who: str) -> dict[str, object]:
    used = {action for one, action in seams.used if one == who}
    role = who.removeprefix("role/")
    unused = seams.allowed(role, ACCOUNT) - used if role != who else set()
    return {
        "used": sorted(used),
        "refused": sorted(action for one, action in seams.refused if one == who),
        "unused": sorted(unused),
    }


def _group(view: GroupView) -> dict[str, object]:
    return {
        "name": view.name,
        "purchase": view.purchase,
        "desired": view.desired,
        "suspended": sorted(view.suspensions),
        "instances": [_instance(one) for one in view.instances],
    }


def _instance(view: InstanceView) -> dict[str, object]:
    return {
        "id": view.instance_id,
        "pool": view.pool,
        "purchase": view.purchase,
        "state": view.state,
        "draining": view.draining,
        "warned": view.warned_s is not None,
        "launched_s": view.launched_s,
    }
