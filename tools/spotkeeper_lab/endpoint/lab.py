"""The lab's own pages: what it shows, and the faults that can be ordered."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3
from botocore.config import Config
from pydantic import BaseModel, TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.fleet_documents import FleetDocumentStore
from spotkeeper.adapters.stacks import StackReader
from spotkeeper.ports import FleetError, Gone
from spotkeeper_lab.cloud.values import CloudError, GroupView, InstanceView
from spotkeeper_lab.endpoint.faults import (
    ORDERS,
    App,
    Faults,
    Order,
    Receive,
    Send,
    read_body,
    respond,
)
from spotkeeper_lab.endpoint.ministack import permissions
from spotkeeper_lab.endpoint.up import LabSettings
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION
from spotkeeper_operator.watch import DECISIONS_SHOWN, html, picture

PATH = "/_lab/"
STACK = "spotkeeper"
CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5)
SECONDS = TypeAdapter(float)
NOT_THERE = ("fis", "servicequotas")
LIST_USD = 1.006
"""What an hour of on-demand costs in a lab, whatever the type."""

type Look = Callable[[], dict[str, object]]
"""What the page shows of the stack."""


@dataclass(frozen=True, slots=True)
class LabPages:
    """Serves `/_lab/...` and the price list, and leaves every other request to the endpoint."""

    app: App
    faults: Faults
    look: Look

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["path"].startswith(PATH):
            path, body = scope["path"].removeprefix(PATH), await read_body(receive)
            if (scope["method"], path) == ("GET", ""):
                await respond(send, 200, "text/html; charset=utf-8", html().encode())
                return
            status, answer = await asyncio.to_thread(self._answer, scope["method"], path, body)
            await respond(send, status, "application/json", json.dumps(answer).encode())
        elif (b"x-amz-target", b"AWSPriceListService.GetProducts") in scope.get("headers", ()):
            await respond(send, 200, "application/x-amz-json-1.1", price_list())
        elif service := _not_there(scope):
            why = f"{service} is not simulated by the local AWS (docs/lab.md says what is)"
            refusal = {"__type": "ValidationException", "message": why}
            body = json.dumps(refusal).encode()
            await respond(send, 400, "application/x-amz-json-1.1", body)
        else:
            await self.app(scope, receive, send)

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        world = self.faults.world
        try:
            match method, path:
                case "GET", "state.json":
                    return 200, self._picture()
                case "GET", "state":
                    return 200, self._state()
                case "GET", "permissions":
                    return 200, permissions(ACCOUNT)
                case "POST", "faults":
                    return 200, {"done": self.faults.order(_read(Order, body))}
                case "POST", "skip":
                    world.skip(max(0.0, SECONDS.validate_json(body)))
                    return 200, {"now_s": world.seconds()}
                case "POST", "begin":
                    settings = _read(LabSettings, body)
                    world.begin(settings.groups(), settings.pools, settings.made())
                    return 200, {"now_s": world.seconds()}
        except (ValidationError, CloudError) as refusal:
            return 400, {"error": str(refusal)}
        return 404, {"error": f"there is no {method} {PATH}{path}"}

    def _picture(self) -> object:
        """What the page asks for, with the lab's own part."""
        world = self.faults.world
        mine = {"market": world.capacities, "workers": self._workers(), "orders": ORDERS}
        return {"at": world.time.at(world.seconds()).isoformat(), "lab": mine, **self.look()}

    def _state(self) -> object:
        world = self.faults.world
        with world.now() as cloud:
            return {
                "at": world.time.at(cloud.now_s).isoformat(),
                "groups": [_group(cloud.group(name)) for name in cloud.groups()],
                "workers": self._workers(),
            }

    def _workers(self) -> dict[str, object]:
        workers = self.faults.workers
        return {
            "erlangs": workers.erlangs,
            "logging": workers.logging,
            "queued": workers.force.queued,
            "served": workers.served,
            "lost": len(workers.force.lost),
        }


def _read[T: BaseModel](kind: type[T], body: bytes) -> T:
    return kind.model_validate_json(body)


def _group(view: GroupView) -> dict[str, object]:
    return {
        "name": view.name,
        "purchase": view.purchase,
        "desired": view.desired,
        "instances": [_instance(one) for one in view.instances],
    }


def _instance(view: InstanceView) -> dict[str, object]:
    return {
        "id": view.instance_id,
        "state": view.state,
        "draining": view.draining,
        "warned": view.warned_s is not None,
    }


def _not_there(scope: Mapping[str, Any]) -> str | None:
    """Name the service of a request that nothing here answers."""
    signed = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
    return next((s for s in NOT_THERE if f"/{s}/aws4_request" in signed), None)


def price_list() -> bytes:
    """The answer to GetProducts, for whatever type."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": str(LIST_USD)}}
    product = {"terms": {"OnDemand": {"term": {"priceDimensions": {"hour": dimension}}}}}
    return json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)]}).encode()


def watch(url: str) -> Look:
    """Look at the stack in the endpoint at a URL, through the ports as of a real stack."""
    session: Any = boto3.session.Session(
        aws_access_key_id=ACCOUNT, aws_secret_access_key="test", region_name=REGION
    )

    @cache
    def client(service: str) -> Any:
        return session.client(service, endpoint_url=url, config=CONFIG)

    def look() -> dict[str, object]:
        try:
            stack = StackReader(client("cloudformation")).outputs(STACK)
            store = FleetDocumentStore(client("ssm"), stack.documents_path)
            records = DecisionRecords(client("dynamodb"), stack.table)
            groups = AutoScalingReader(client("autoscaling"), client("ec2"))
            return picture(
                store.load().fleets,
                groups,
                lambda fleet: records.newest(fleet, DECISIONS_SHOWN).records,
            )
        except Gone:
            return {"fleets": [], "why": f"no stack {STACK} is deployed yet"}
        except FleetError as error:
            return {"fleets": [], "why": str(error)}

    return look
