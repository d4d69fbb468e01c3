"""The agents on a lab's machines: by the rules of the worker distribution they complete the hooks
that hold their instance, and keep those of a long drain waiting.
"""

from collections.abc import Collection, Iterable
from itertools import groupby

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.hooks import Held
from spotkeeper_lab.cloud.values import InstanceView, Result, Transition
from spotkeeper_lab.cloud.words import PENDING_WAIT, TERMINATING, WARMED
from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy, after, calls, watch_target
from spotkeeper_worker.states import Hook

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
