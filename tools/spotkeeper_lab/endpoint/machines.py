"""What runs on the machines of a lab, in real time: workers that serve, and the agents beside them.

Requests arrive at random at a steady rate. The worker distribution's own rules decide which worker
takes requests and until when, what a search log is, when it is sent, and which hooks are completed.
"""

import base64
import gzip
import json
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby

from spotkeeper_lab.cloud.api import Cloud, Held
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    PENDING_WAIT,
    TERMINATING,
    WARMED,
    InstanceView,
    Result,
    Transition,
)
from spotkeeper_lab.local_aws.wire import VirtualTime
from spotkeeper_lab.workers import Machines, SearchLogs, Served, Workforce
from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy, after, calls, watch_target
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.states import Hook

SERVICE_S = 2.0
NOTICE_S = 120.0
# Five times as often as by default, as everything in a lab is sooner.
POLL_S = 1.0
_RUNS = frozenset({IN_SERVICE, TERMINATING})


class Workers:
    """What is offered, waits, is served, and was logged and not yet sent."""

    def __init__(self, time: VirtualTime, seed: int = 0) -> None:
        self.erlangs = 0.0
        self.served = 0
        self.force = Workforce((), self._serve)
        self._silent_until_s = 0.0
        self._next_s = float("inf")
        self._due: list[str] = []
        self._chance = random.Random(seed)
        self._machines = Machines(self.force, NOTICE_S, POLL_S)
        self._logs = SearchLogs(time)

    @property
    def logging(self) -> bool:
        """Whether search logs are sent."""
        return self.force.now_s >= self._silent_until_s

    def offer(self, erlangs: float) -> None:
        """Change the load from now on."""
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
        there = [one for one in instances if one.state in _RUNS]
        for gone in self.force.instances - {one.instance_id for one in there}:
            # A machine that drained has sent its logs; one that was lost takes them along.
            if not self.force.serving(gone):
                self._due += self._logs.ship(gone, self.force.now_s)
            self._logs.lose(gone)
            self.force.lose(gone)
        self._machines.notice_s = notice_s
        self._machines.muster(there, to_s)
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
    body: str, groups: Mapping[str, str], parameters: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Give each stack whose fleet has a message's instance the message, with the fleet's name.

    `groups` has the group that each instance is in or was in last.
    """
    lines = gzip.decompress(base64.b64decode(body)).decode().splitlines()
    logs = [json.loads(line) for line in lines]
    group = groups.get(logs[0].get("instance_id", ""), "")
    for name, value in parameters.items():
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
            yield stack, Segment(None, theirs).body()


_HOOKS = {Transition.LAUNCHING: Hook.READY, Transition.TERMINATING: Hook.DRAIN}


class Agents:
    """What each agent remembers of its hooks, for the instances that are held."""

    def __init__(self, policy: HookPolicy | None = None) -> None:
        self._policy = policy or HookPolicy()
        self._memories: dict[str, HookMemory] = {}

    def look(self, cloud: Cloud, busy: Collection[str]) -> None:
        """Ask for what each agent asks now."""
        held = sorted(cloud.held(), key=lambda one: one.instance.instance_id)
        before, self._memories = self._memories, {}
        for instance_id, hooks in groupby(held, lambda one: one.instance.instance_id):
            memory = before.get(instance_id, HookMemory())
            self._memories[instance_id] = self._asked(cloud, memory, list(hooks), busy)

    def _asked(
        self, cloud: Cloud, memory: HookMemory, held: list[Held], busy: Collection[str]
    ) -> HookMemory:
        instance, now_s = held[0].instance, cloud.now_s
        memory = watch_target(memory, _target(instance), now_s)
        idle = instance.instance_id not in busy
        ready = _ready(instance, now_s)
        for call in calls(memory, self._policy, now_s, ready=ready, idle=idle):
            accepted = _answered(cloud, call, held)
            memory = after(memory, self._policy, call, accepted, now_s)
        return memory


def _answered(cloud: Cloud, call: Call, held: Iterable[Held]) -> bool:
    """Whether a hook that holds the instance took the call."""
    found = False
    for one in held:
        kinds = {hook.name: _HOOKS[hook.transition] for hook in cloud.hooks(one.group)}
        if kinds[one.hook] is not call.hook:
            continue
        found = True
        name = one.instance.instance_id
        if call.heartbeat:
            cloud.beat(one.group, one.hook, name)
        else:
            cloud.complete(one.group, one.hook, name, Result.CONTINUE)
    return found


def _target(instance: InstanceView) -> str:
    """Where the group wants an instance that a hook holds."""
    match instance.state:
        case state if state == PENDING_WAIT:
            return "InService"
        case state if state == TERMINATING:
            return "Terminated"
        case state if state.startswith(f"{WARMED}Terminating"):
            return "Warmed:Terminated"
        case _:
            return "Warmed:Stopped"


def _ready(instance: InstanceView, now_s: float) -> bool:
    """Whether the worker can serve; what is made for the pool is held once it can."""
    if instance.state.startswith(WARMED):
        return True
    return instance.serves_s is not None and instance.serves_s <= now_s
