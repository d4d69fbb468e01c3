"""What runs on the machines of a lab, in real time: workers that serve, and the agents beside them.

Requests arrive at a steady rate by chance and are served first come first served, one at a time on
each instance. Who takes requests and until when, what a search log is and when it is sent, and
which hooks an agent completes are the worker distribution's own rules.
"""

import random
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import groupby

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.hooks import Held
from spotkeeper_lab.cloud.values import InstanceView, Result, Transition
from spotkeeper_lab.cloud.words import IN_SERVICE, PENDING_WAIT, STANDBY, TERMINATING, WARMED
from spotkeeper_lab.local_aws.wire import VirtualTime
from spotkeeper_lab.machines import Machines, SearchLogs, Served
from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy, after, calls, watch_target
from spotkeeper_worker.states import Hook

SERVICE_S = 2.0
NOTICE_S = 120.0
# Five times as often as by default, as everything in a lab is sooner.
POLL_S = 1.0
_RUNS = frozenset({IN_SERVICE, STANDBY, TERMINATING})


@dataclass(slots=True)
class Workers:
    """What is offered, waits, is served, and was logged and not yet sent."""

    time: VirtualTime
    erlangs: float = 0.0
    stopped: bool = False
    seed: int = 0
    served: int = 0
    lost: int = 0
    _now_s: float = 0.0
    _next_s: float | None = None
    _queue: deque[tuple[int, float]] = field(default_factory=deque)
    _takes: dict[str, bool] = field(default_factory=dict)
    _busy: dict[str, Served] = field(default_factory=dict)
    _due: list[str] = field(default_factory=list)
    _numbered: int = 0
    _chance: random.Random = field(init=False)
    _machines: Machines = field(init=False)
    _logs: SearchLogs = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._machines = Machines(self, NOTICE_S, POLL_S)
        self._logs = SearchLogs(self.time)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def busy(self) -> Collection[str]:
        """The instances whose worker serves a request."""
        return self._busy.keys()

    def offer(self, erlangs: float) -> None:
        """Change the load from now on."""
        self.erlangs, self._next_s = erlangs, None

    def stop(self, stopped: bool) -> None:
        """Log nothing from now on, or log again; what was not sent is lost."""
        self.stopped = stopped
        self._due.clear()
        for instance_id in self._takes:
            self._logs.lose(instance_id)

    def join(self, instance_id: str) -> None:
        """Start the worker of an instance."""
        self._takes[instance_id] = True

    def take(self, instance_id: str, *, takes: bool) -> None:
        """Have the worker of an instance take requests from now on, or no more."""
        self._takes[instance_id] = takes

    def advance(
        self, to_s: float, instances: Iterable[InstanceView], notice_s: float = NOTICE_S
    ) -> None:
        """Serve until a moment on the instances that there are."""
        there = [one for one in instances if one.state in _RUNS]
        self._leave({one.instance_id for one in there})
        self._machines.notice_s = notice_s
        self._machines.muster(there, to_s)
        self._dispatch()
        while (at_s := self._happens_s()) <= to_s:
            self._now_s = at_s
            self._finish()
            self._arrive()
            self._dispatch()
        self._now_s = to_s
        self._dispatch()

    def ship(self) -> list[str]:
        """The messages to send now."""
        bodies, self._due = self._due + self._logs.due(self._now_s), []
        return bodies

    def _leave(self, there: set[str]) -> None:
        """Who was told to go has sent its logs; who was not takes them along."""
        for instance_id in self._takes.keys() - there:
            if not self._takes.pop(instance_id):
                self._due += self._logs.ship(instance_id, self._now_s)
            self._logs.lose(instance_id)
            if request := self._busy.pop(instance_id, None):
                self._queue.appendleft((request.request, request.enqueued_s))
                self.lost += 1

    def _happens_s(self) -> float:
        if self.erlangs and self._next_s is None:
            self._next_s = self._now_s + self._chance.expovariate(self.erlangs / SERVICE_S)
        finished = min((one.finished_s for one in self._busy.values()), default=float("inf"))
        return min(finished, float("inf") if self._next_s is None else self._next_s)

    def _finish(self) -> None:
        done = [one for one in self._busy.values() if one.finished_s <= self._now_s]
        for request in done:
            del self._busy[request.instance_id]
            # The next request goes to who has been idle for longest.
            self._takes[request.instance_id] = self._takes.pop(request.instance_id)
            self.served += 1
            self._machines.served(request)
            if not self.stopped:
                self._logs.write(request)
                self._due += self._logs.completed(request)

    def _arrive(self) -> None:
        if self._next_s is not None and self._next_s <= self._now_s:
            self._numbered += 1
            self._queue.append((self._numbered, self._now_s))
            self._next_s = None

    def _dispatch(self) -> None:
        idle = deque(one for one, takes in self._takes.items() if takes and one not in self._busy)
        while self._queue and idle:
            number, enqueued_s = self._queue.popleft()
            instance_id = idle.popleft()
            self._busy[instance_id] = Served(
                request=number,
                worker_id=f"{instance_id}/0",
                instance_id=instance_id,
                enqueued_s=enqueued_s,
                started_s=self._now_s,
                finished_s=self._now_s + self._chance.expovariate(1 / SERVICE_S),
            )


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
