"""The process of the local AWS: ministack with the simulated cloud in it, workers, faults, pages.

Requests arrive at random at a steady rate. The worker distribution's own rules decide which worker
takes requests and until when, what a search log is, when it is sent, and which hooks are completed.
"""

import argparse
import asyncio
import base64
import ctypes
import gzip
import importlib
import json
import logging
import os
import random
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import boto3
from botocore import xform_name
from botocore.config import Config
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.fleet_documents import FleetDocumentStore
from spotkeeper.adapters.stacks import StackReader
from spotkeeper.ports import FleetError, Gone
from spotkeeper_lab.alarms import MINUTE_S, Alarm, Metrics
from spotkeeper_lab.aws import ministack
from spotkeeper_lab.aws.answers import LAUNCH_TEMPLATE
from spotkeeper_lab.aws.ministack import kill_workers, permissions
from spotkeeper_lab.aws.over_http import ByMoto, Groups, LiveWorld, WarmPools, instance_tags
from spotkeeper_lab.aws.wire import ACCOUNT, REGION, VirtualTime
from spotkeeper_lab.cloud.api import Cloud, Held
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    ON_DEMAND_DRY,
    PENDING_WAIT,
    SPOT_DRY,
    TERMINATING,
    WARMED,
    CloudError,
    InstanceView,
    Result,
    Transition,
)
from spotkeeper_lab.faults import LAUNCH_TEXTS, OF_AWS, SERVICES, Fault, Kind, refusal_of
from spotkeeper_lab.run.job_machines import JOB, JobMachines
from spotkeeper_lab.run.up import ELSEWHERE, INSTALLING, TEMPLATE, LabSettings
from spotkeeper_lab.workers import Machines, SearchLogs, Served, Workforce
from spotkeeper_operator.watch import DECISIONS_SHOWN, html, picture
from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy, after, calls, watch_target
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.states import Hook

SERVICE_S = 2.0
NOTICE_S = 120.0
# Five times as often as by default, because times are shorter in the lab.
POLL_S = 1.0
_RUNS = frozenset({IN_SERVICE, TERMINATING})


class Workers:
    """The requests of the lab, its workers, and their search logs."""

    def __init__(self, time: VirtualTime) -> None:
        self.erlangs = 0.0
        self.served = 0
        self.force = Workforce((), self._serve)
        self._silent_until_s = 0.0
        self._next_s = float("inf")
        self._due: list[str] = []
        self._chance = random.Random(0)
        self._machines = Machines(self.force, NOTICE_S, POLL_S)
        self._logs = SearchLogs(time)

    @property
    def logging(self) -> bool:
        """Whether search logs are sent."""
        return self.force.now_s >= self._silent_until_s

    def offer(self, erlangs: float) -> None:
        """Change the load."""
        self.erlangs, self._next_s = erlangs, float("inf")
        if erlangs:
            self._next_s = self.force.now_s + self._wait_s()

    def stop(self, until_s: float) -> None:
        """Log nothing until a moment; what was not sent is lost."""
        self._silent_until_s = until_s
        self._due.clear()
        for instance_id in self.force.instances:
            self._logs.lose(instance_id)

    def advance(
        self, to_s: float, instances: Iterable[InstanceView], notice_s: float = NOTICE_S
    ) -> None:
        """Serve until a moment on the instances that there are."""
        there = [one for one in instances if one.state in _RUNS and JOB not in one.tags]
        for gone in self.force.instances - {one.instance_id for one in there}:
            self._due += self._logs.dismiss(gone, self.force, self.force.now_s)
        self._machines.notice_s = notice_s
        self._machines.update(there, to_s)
        while self._next_s <= to_s:
            self.force.offer(self._next_s, self._chance.expovariate(1 / SERVICE_S))
            self._next_s += self._wait_s()
        self.force.advance(to_s)

    def ship(self) -> list[str]:
        """The messages to send now."""
        bodies, self._due = self._due + self._logs.due(self.force.now_s), []
        return bodies

    def _serve(self, served: Served) -> None:
        self.served += 1
        self._machines.served(served)
        if self.logging:
            self._logs.write(served)
            self._due += self._logs.completed(served)

    def _wait_s(self) -> float:
        return self._chance.expovariate(self.erlangs / SERVICE_S)


_DOCUMENT = re.compile(r"/spotkeeper/([^/]+)/fleets/([^/.]+)")


def addressed(
    body: str, groups: Mapping[str, str], parameters: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, str, str]]:
    """Give each stack whose fleet has a message's instance the message, with the fleet's name.

    The first two are the stack's region and name.

    `groups` has the group that each instance is in or was in last.
    """
    lines = gzip.decompress(base64.b64decode(body)).decode().splitlines()
    logs = [json.loads(line) for line in lines]
    group = groups.get(logs[0].get("instance_id", ""), "")
    for (region, name), value in parameters.items():
        if not (named := _DOCUMENT.fullmatch(name)):
            continue
        stack, fleet = named.groups()
        document: object = None
        with suppress(ValueError):
            document = json.loads(value)
        if isinstance(document, dict) and group in (
            document.get("spot_group"),
            document.get("on_demand_group"),
        ):
            theirs = tuple(json.dumps(log | {"fleet": fleet}) for log in logs)
            yield region, stack, Segment(None, theirs).body()


class Agents:
    """The hooks of each agent, for the instances that a hook holds."""

    def __init__(self) -> None:
        self._policy = HookPolicy()
        self._memories: dict[str, HookMemory] = {}

    def look(self, cloud: Cloud, busy: Collection[str]) -> None:
        """Make the calls that each agent makes now."""
        held = sorted(cloud.held(), key=lambda one: one.instance.instance_id)
        before, self._memories = self._memories, {}
        for name, hooks in groupby(held, lambda one: one.instance.instance_id):
            mine, now_s = list(hooks), cloud.now_s
            instance = mine[0].instance
            memory = watch_target(before.get(name, HookMemory()), _target(instance), now_s)
            # An instance for the warm pool is held until its worker can serve.
            serves_s = now_s if instance.state.startswith(WARMED) else instance.serves_s
            ready = serves_s is not None and serves_s <= now_s
            for call in calls(memory, self._policy, now_s, ready=ready, idle=name not in busy):
                accepted = _answered(cloud, call, mine)
                memory = after(memory, self._policy, call, accepted, now_s)
            self._memories[name] = memory


def _answered(cloud: Cloud, call: Call, held: Iterable[Held]) -> bool:
    """Whether a hook that holds the instance took the call."""
    transitions = {Hook.READY: Transition.LAUNCHING, Hook.DRAIN: Transition.TERMINATING}
    answered = False
    for one in held:
        kinds = {hook.name: hook.transition for hook in cloud.hooks(one.group)}
        if kinds[one.hook] is transitions[call.hook]:
            answered = True
            if call.heartbeat:
                cloud.beat(one.group, one.hook, one.instance.instance_id)
            else:
                cloud.complete(one.group, one.hook, one.instance.instance_id, Result.CONTINUE)
    return answered


def _target(instance: InstanceView) -> str:
    """Return the target state of an instance that a hook holds."""
    states = {PENDING_WAIT: "InService", TERMINATING: "Terminated"}
    leaves = instance.state.startswith(f"{WARMED}Terminating")
    return states.get(instance.state, "Warmed:Terminated" if leaves else "Warmed:Stopped")


class Change(StrEnum):
    """The other orders."""

    LOAD = "load"
    CAPACITY = "capacity"
    JOB = "job-machine"
    KILL = "kill-function"
    PARTITION = "partition"


class Order(BaseModel):
    """A fault of `value` for `length_s`, as in a scenario; or a change.

    A loss takes `instances` where it names some. `load` offers `value` erlangs; `capacity` lets
    each pool hold `value` instances, in one `region` where it names one, a drop with the lab's
    notice; `job-machine` takes the newest machine of a job, with the lab's notice or, with a
    `value` of 0, at once; `kill-function` ends the processes of the functions whose names contain
    `function`; while a `partition` lasts, functions of a region reach no other.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    do: Kind | Change
    length_s: float = Field(default=60.0, ge=0, le=86_400)
    value: float = Field(default=0.0, ge=0, le=10_000)
    instances: tuple[str, ...] = ()
    function: str = ""
    region: str = ""


_BUTTONS = (
    ("Warn one instance", Kind.LOSS, 0, 0),
    ("Warn half of them", Kind.LOSS, 0, 0.5),
    ("Lose one at once", Kind.UNWARNED_LOSS, 0, 0),
    ("Recommend to rebalance one", Kind.REBALANCE, 0, 0),
    ("Warn a job's machine", Change.JOB, 0, 1),
    ("Lose a job's machine at once", Change.JOB, 0, 0),
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
    ("Regions do not reach each other, 3 min", Change.PARTITION, 180, 0),
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
BY_CALL = frozenset({*OF_AWS, Kind.HANGING}) - {Kind.SLOW, Kind.KILLED, Kind.NO_TURNS}


class Faults:
    """Carries out orders; `active` are those that still last."""

    def __init__(self, settings: LabSettings, world: LiveWorld, workers: Workers) -> None:
        self.world = world
        self.workers = workers
        self.rng = random.Random(0)
        self._settings = settings
        self._ordered: dict[Kind, Fault] = {}
        self.parted_until_s = 0.0

    def active(self) -> list[Fault]:
        now_s = self.world.seconds()
        return [fault for fault in self._ordered.values() if now_s < fault.end_s]

    def order(self, order: Order) -> str:
        """Carry an order out; return a text. Raises CloudError if it is not possible here."""
        match order.do:
            case Change.LOAD:
                self.workers.offer(order.value)
                return f"{order.value:g} erlangs"
            case Change.KILL:
                return f"{kill_workers(order.function)} processes killed"
            case Change.CAPACITY:
                notice_s = self._settings.physics.notice_s if order.value == 0 else 0.0
                pools = [one for one in self.world.capacities if one.startswith(order.region)]
                self.world.set_capacity(pools, int(order.value), notice_s)
                return f"each pool holds {order.value:g}"
            case Change.JOB:
                with self.world.now() as cloud:
                    running = [one for one in cloud.instances() if JOB in one.tags]
                    taken = [one.instance_id for one in running if one.warned_s is None][-1:]
                    notice_s = self._settings.physics.notice_s if order.value else 0.0
                    cloud.reclaim(taken, cloud.now_s + notice_s)
                return ", ".join(taken) or "no job has a machine"
            case Change.PARTITION:
                self.parted_until_s = self.world.seconds() + order.length_s
                return f"no function reaches another region for {order.length_s:g} s"
            case kind:
                with self.world.now() as cloud:
                    fault = Fault(
                        kind=kind, at_s=cloud.now_s, length_s=order.length_s, value=order.value
                    )
                    done = self._in_cloud(cloud, fault, order.instances)
                    self._ordered[kind] = fault
                    return done

    def _in_cloud(self, cloud: Cloud, fault: Fault, instances: tuple[str, ...]) -> str:
        """Apply a fault to the cloud; return what it took, or its text."""
        spot, on_demand = self._settings.spot_group, self._settings.on_demand_group
        zone, _, kind = next(iter(self._settings.pools)).partition("/")
        standing = [one.instance_id for one in cloud.group(spot).instances if not one.warned_s]
        count = max(1, round(fault.value * len(standing)))
        taken = instances or tuple(standing[-count:])
        text = fault.chosen(LAUNCH_TEXTS)
        match fault.kind:
            case Kind.LOSS:
                cloud.reclaim(taken, cloud.now_s + self._settings.physics.notice_s)
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
                cloud.reclaim(taken, cloud.now_s + self._settings.physics.notice_s)
            case Kind.ON_DEMAND_DRY:
                text = ON_DEMAND_DRY.format(type=kind, zone=zone)
                cloud.fail_launches(on_demand, fault.at_s, fault.end_s, text)
                return text
            case Kind.BAD_SPOT_IMAGE | Kind.BAD_ON_DEMAND_IMAGE:
                group = spot if fault.kind is Kind.BAD_SPOT_IMAGE else on_demand
                cloud.break_image(group, fault.at_s, fault.end_s)
                return "ordered"
            case Kind.LOGS_STOP:
                self.workers.stop(fault.end_s)
                return "ordered"
            case by_call if by_call in BY_CALL:
                return "ordered"
            case other:
                raise CloudError("NotSimulated", f"{other}: {NOT_HERE}")
        return ", ".join(taken) or "no instance is left"


# --- requests -------------------------------------------------------------------------------------

type Message = dict[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]
type Answer = tuple[int, str, bytes]
"""Status, content type and body."""

# Roles have temporary keys; operators and deployments of this endpoint are never disturbed.
_SIGNED_BY_A_ROLE = re.compile(r"Credential=ASIA[^/]*/\d+/([^/]+)/([a-z0-9-]+)/")
# Functions name their region in what says who calls.
_OF_A_REGION = re.compile(r"\bapp/([a-z0-9-]+)")
HANGS_S = 5.0
# As EC2, Auto Scaling and the services that speak JSON say the same.
_CODES: Mapping[str, tuple[tuple[int, str], tuple[int, str], tuple[int, str]]] = {
    "Throttling":
        ((503, "RequestLimitExceeded"), (400, "Throttling"), (400, "ThrottlingException")),
    "AccessDenied":
        ((403, "UnauthorizedOperation"), (403, "AccessDenied"), (400, "AccessDeniedException")),
    "InternalFailure":
        ((500, "InternalError"), (500, "InternalFailure"), (500, "InternalServerError")),
}  # fmt: skip
PATH = "/_lab/"
STACK = "spotkeeper"
CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5)
SECONDS = TypeAdapter(float)
NOT_THERE = ("fis", "servicequotas")
LIST_USD = 1.006
"""The price of an hour on demand in the lab, for every type."""

type Look = Callable[[], dict[str, object]]
"""The outputs of the stack that the page shows."""


@dataclass(frozen=True, slots=True)
class Front:
    """Handles a request first: pages, the price list, and faults; then the endpoint does."""

    app: App
    faults: Faults
    look: Look

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, more = list[bytes](), True
        while more:
            message = await receive()
            read.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = b"".join(read)
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return parts.pop() if parts else await receive()

        answer = await self._own(scope, body) or await self._failed(scope, body, again)
        if answer is None:
            await self.app(scope, again, send)
            return
        status, kind, content = answer
        headers = [
            (b"content-type", kind.encode()),
            (b"content-length", str(len(content)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _own(self, scope: Mapping[str, Any], body: bytes) -> Answer | None:
        """The answer of a page, of the price list, or of a service that is not there."""
        headers, method = dict(scope.get("headers", ())), scope["method"]
        if scope["path"].startswith(PATH):
            path = scope["path"].removeprefix(PATH)
            if (method, path) == ("GET", ""):
                return 200, "text/html; charset=utf-8", html().encode()
            status, answer = await asyncio.to_thread(self._page, method, path, body)
            return status, "application/json", json.dumps(answer).encode()
        if headers.get(b"x-amz-target") == b"AWSPriceListService.GetProducts":
            return 200, "application/x-amz-json-1.1", price_list()
        signed = headers.get(b"authorization", b"").decode()
        for service in NOT_THERE:
            if f"/{service}/aws4_request" in signed:
                why = f"{service} is not simulated by the local AWS (docs/lab.md says what is)"
                return refusal(service, "ValidationException", why, 400)
        return None

    async def _failed(
        self, scope: Mapping[str, Any], body: bytes, receive: Receive
    ) -> Answer | None:
        """The failure of a function's call, while a fault lasts that refuses, loses or hangs it."""
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        signed = _SIGNED_BY_A_ROLE.search(headers.get("authorization", ""))
        if signed is None:
            return None
        caller = _OF_A_REGION.search(headers.get("user-agent", ""))
        away = caller is not None and caller[1] != signed[1]
        if away and self.faults.world.seconds() < self.faults.parted_until_s:
            await asyncio.sleep(HANGS_S)
            return refusal(signed[2], "InternalFailure", "no answer")
        service, target = signed[2], headers.get("x-amz-target", "").rpartition(".")[2]
        named = parse_qs(body.decode(errors="replace")).get("Action", [""])[0]
        rng = self.faults.rng
        for fault in self.faults.active():
            if refused := refusal_of(fault, service, xform_name(target or named), rng):
                return refusal(service, *refused)
            if fault.kind is Kind.HANGING and fault.chosen(SERVICES) == service:
                await asyncio.sleep(HANGS_S)
                return refusal(service, "InternalFailure", "no answer")
            if fault.kind is Kind.ANSWERS_LOST and rng.random() < fault.value:
                await self.app(scope, receive, _nowhere)
                return refusal(service, "InternalFailure", "the answer is lost")
        return None

    def _page(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        world = self.faults.world
        try:
            match method, path:
                case "GET", "state.json":
                    market, at = world.capacities, world.time.at(world.seconds()).isoformat()
                    lab = {"market": market, "workers": self._workers(), "orders": ORDERS}
                    return 200, {"at": at, "lab": lab, **self.look()}
                case "GET", "state":
                    return 200, self._state()
                case "GET", "mails":
                    return 200, [*ministack.mails]
                case "GET", "permissions":
                    return 200, permissions(ACCOUNT)
                case "POST", "faults":
                    return 200, {"done": self.faults.order(Order.model_validate_json(body))}
                case "POST", "skip":
                    world.skip(max(0.0, SECONDS.validate_json(body)))
                    return 200, {"now_s": world.seconds()}
                case "POST", "begin":
                    settings = LabSettings.model_validate_json(body)
                    pools = settings.pools | settings.elsewhere
                    world.begin(settings.groups(), pools, settings.physics)
                    return 200, {"now_s": world.seconds()}
        except (ValidationError, CloudError) as refused:
            return 400, {"error": str(refused)}
        return 404, {"error": f"there is no {method} {PATH}{path}"}

    def _state(self) -> object:
        world = self.faults.world
        with world.now() as cloud:
            groups = [
                {
                    "name": view.name,
                    "purchase": view.purchase,
                    "desired": view.desired,
                    "instances": [
                        {
                            "id": one.instance_id,
                            "state": one.state,
                            "draining": one.draining,
                            "warned": one.warned_s is not None,
                        }
                        for one in view.instances
                    ],
                }
                for view in map(cloud.group, cloud.groups())
            ]
            at = world.time.at(cloud.now_s).isoformat()
            return {"at": at, "groups": groups, "workers": self._workers()}

    def _workers(self) -> dict[str, object]:
        workers = self.faults.workers
        return {
            "erlangs": workers.erlangs,
            "logging": workers.logging,
            "queued": workers.force.queued,
            "served": workers.served,
            "lost": len(workers.force.lost),
        }


def refusal(service: str, code: str, message: str, otherwise: int = 500) -> Answer:
    """A refusal in the words and the protocol of a service."""
    index = {"ec2": 0, "autoscaling": 1}.get(service, 2)
    status, code = _CODES.get(code, ((otherwise, code),) * 3)[index]
    error = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    if service == "ec2":
        text = f"<Response><Errors>{error}</Errors><RequestID>lab</RequestID></Response>"
    elif service == "autoscaling":
        text = f"<ErrorResponse>{error}<RequestId>lab</RequestId></ErrorResponse>"
    else:
        body = json.dumps({"__type": code, "message": message}).encode()
        return status, "application/x-amz-json-1.0", body
    return status, "text/xml", text.encode()


async def _nowhere(_message: Message) -> None:
    return None


def price_list() -> bytes:
    """The answer to GetProducts, for any type."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": str(LIST_USD)}}
    product = {"terms": {"OnDemand": {"term": {"priceDimensions": {"hour": dimension}}}}}
    return json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)]}).encode()


def watch(url: str) -> Look:
    """Read the stack in the endpoint at a URL, through the ports, as for a real stack."""
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


HOST = "127.0.0.1"
TICK_S = 0.25
QUEUE = "SearchLogQueue"
# Where AWS says which of its images is the newest: those of docs/workers.md.
IMAGES = {
    f"/aws/service/{name}": image
    for name, image in (
        ("ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id", "ami-0c2023a1b2c3d4e5f"),
        (
            "deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
            "ami-0123456789abcdef0",
        ),
    )
}
PR_SET_PDEATHSIG = 1
log = logging.getLogger("spotkeeper.lab")


def main() -> None:
    """Serve until a signal; every process of a function ends with this one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path, help="JSON file of LabSettings")
    settings = LabSettings.model_validate_json(parser.parse_args().settings.read_text())
    _end_with_parent()
    # Functions inherit the environment; the checkout is not theirs.
    os.environ.pop("PYTHONPATH", None)
    try:
        ministack.check_release()
    except ministack.SeamError as error:
        sys.exit(str(error))
    os.environ.update(environment(settings))
    world = make_world(settings, time.time, time.monotonic)
    metrics = defaultdict[str, Metrics](Metrics)
    machines = join(world, settings, metrics)
    workers = Workers(world.time)
    faults = Faults(settings, world, workers)
    endpoint = ministack.module("app").app
    front = Front(endpoint, faults, watch(f"http://{HOST}:{settings.port}"))
    stop = threading.Event()
    there = frozenset(spec.name for spec in settings.groups()[2:])
    threading.Thread(target=_live, args=(world, workers, stop, there), daemon=True).start()
    threading.Thread(target=_ring, args=(world, metrics, stop), daemon=True).start()
    running = threading.Thread(target=machines.run, args=(stop, TICK_S), daemon=True)
    running.start()
    try:
        asyncio.run(_serve(front, settings.port))
    finally:
        stop.set()
        running.join()
        ministack.end()


def _end_with_parent() -> None:
    """Have Linux send SIGTERM when the parent process ends, in any way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(settings: LabSettings) -> dict[str, str]:
    """What ministack reads from its environment; its default is to serve on every interface."""
    return {
        "AUTH": "true" if settings.auth else "false",
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(settings.port),
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "MINISTACK_IMDS_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        # Layers are read-only, so byte code of one process is not there in the next.
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOG_LEVEL": "INFO",
    }


def make_world(
    settings: LabSettings, clock: Callable[[], float], monotonic: Callable[[], float]
) -> LiveWorld:
    began = monotonic()
    return LiveWorld(
        groups=settings.groups(),
        capacities=settings.pools | settings.elsewhere,
        physics=settings.physics,
        time=VirtualTime(datetime.fromtimestamp(clock(), UTC)),
        seconds=lambda: monotonic() - began,
    )


def join(world: LiveWorld, settings: LabSettings, metrics: Mapping[str, Metrics]) -> JobMachines:
    """Put the world in the place of ministack's own capacity and mend what differs from AWS.

    Return the machines of jobs, which are to run.
    """
    of_aws = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{settings.port}",
        **{name: text for name, text in os.environ.items() if name.startswith(INSTALLING)},
    }
    capacity = max(settings.pools.values(), default=0)
    machines = JobMachines(world, Path("jobs").absolute(), of_aws, ministack.zone_of, capacity)
    by_moto = ByMoto(world, machines.ec2())
    for service in ("autoscaling", "ec2"):
        ministack.answer_instead(service, by_moto)
    groups = Groups(world, ministack.zone_of, capacity)
    ministack.provision("AWS::AutoScaling::AutoScalingGroup", groups)
    ministack.provision("AWS::AutoScaling::WarmPool", WarmPools(world))
    ministack.keep_parameters(IMAGES)
    image = f"resolve:ssm:{next(iter(IMAGES))}"
    for region in (REGION, ELSEWHERE):
        with ministack.in_region(region):
            ministack.keep_launch_template(LAUNCH_TEMPLATE, image, "gpu-worker", int(TEMPLATE) + 1)
    world.region = ministack.module("core.responses").get_region
    world.lacks = partial(ministack.lacking, LAUNCH_TEMPLATE)
    ministack.missing_versions_are_refused()
    ministack.service_linked_roles()
    ministack.alarms_ring(metrics, world.seconds)
    ministack.mails_are_kept()
    ministack.conditions_on_lists()
    ministack.functions_have_only_their_layers()
    ministack.archives_are_unpacked_once()
    ministack.invocations_are_lambda_s()
    ministack.exceptions_have_their_type()
    ministack.processes_start_in_turn()
    ministack.logs_end_with_their_function()
    ministack.conditional_writes_are_seen()
    ministack.loopback_is_secure()
    ministack.functions_say_their_region()
    ministack.names_have_their_region()
    ministack.authorize_as_aws(partial(instance_tags, world))
    return machines


def _live(
    world: LiveWorld, workers: Workers, stop: threading.Event, there: Collection[str]
) -> None:
    """Deliver events, let workers serve, and send their logs to the stacks with their groups.

    The groups `there` are the other region's.
    """
    agents = Agents()
    groups: dict[str, str] = {}
    while not stop.wait(TICK_S):
        for event in world.due():
            log.info("%s %s", event["detail-type"], json.dumps(event["detail"])[:160])
            detail: Any = event["detail"]
            group = groups.get(str(detail.get("EC2InstanceId") or detail.get("instance-id")), "")
            group = str(detail.get("AutoScalingGroupName", group))
            with ministack.in_region(ELSEWHERE if group in there else REGION):
                ministack.put_event(event)
        with world.now() as cloud:
            views = cloud.instances()
            groups |= {view.instance_id: view.group for view in views if view.group}
            workers.advance(cloud.now_s, views, cloud.physics.notice_s)
            agents.look(cloud, workers.force.busy_instances)
        for body in workers.ship():
            for region, stack, message in addressed(body, groups, ministack.parameters()):
                with ministack.in_region(region):
                    ministack.send_message(f"{stack}-{QUEUE}", message)


def _ring(world: LiveWorld, metrics: Mapping[str, Metrics], stop: threading.Event) -> None:
    """Evaluate the alarms each minute; the log has what an e-mail would say."""
    alarms = defaultdict[str, dict[str, Alarm]](dict)
    minute = 0
    while not stop.wait(TICK_S):
        if world.seconds() < MINUTE_S * (minute + 1):
            continue
        try:
            for region, own in list(metrics.items()):
                with ministack.in_region(region):
                    for one in ministack.ring(alarms[region], own, minute):
                        log.info("mail: %s %s %s", one.alarm, one.contributor, one.state)
        except Exception:
            log.exception("alarms were not evaluated")
        minute += 1


async def _serve(app: App, port: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    config: Any = importlib.import_module("hypercorn.config").Config()
    config.bind = [f"{HOST}:{port}"]
    config.keep_alive_timeout = 75
    config.graceful_timeout = 1
    serve = importlib.import_module("hypercorn.asyncio").serve
    await serve(app, config, shutdown_trigger=ended.wait)


if __name__ == "__main__":
    main()
