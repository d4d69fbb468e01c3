"""When a lifecycle hook is completed, and when it is kept waiting. Pure.

`autoscaling/target-lifecycle-state` tells where the group wants the instance, not whether a hook
holds it already: the hook may begin some seconds later. So "no active action" is success only once
the target has stood for a while. Every `now` is of a clock that nobody sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spotkeeper_worker.states import Hook, meaning

if TYPE_CHECKING:
    from collections.abc import Mapping

# https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html: at most 48 hours, or a
# hundred times the time-out, whichever is less.
MOST_S = 172_800.0
MOST_TIMEOUTS = 100.0
# Between two heartbeats, of network and disks: what a machine that only waits does not reach.
LOADING_BYTES = 16 << 20
_NEVER = float("-inf")


class HookPolicy(NamedTuple):
    """The drain hook's time-out (`DrainSeconds`), and how long a drain may last, in seconds.

    A hook that does not hold the instance `settles_s` after the target was seen will not.
    """

    timeout_s: float = 120.0
    drain_at_most_s: float = 3600.0
    settles_s: float = 60.0
    boot_at_most_s: float = 3600.0
    """How long the launch hook is kept waiting while the machine still loads something."""

    @property
    def longest_s(self) -> float:
        """How long the drain hook can be kept waiting."""
        return min(self.drain_at_most_s, MOST_S, MOST_TIMEOUTS * self.timeout_s)


class Call(NamedTuple):
    """One call to make: complete a hook, or keep it waiting."""

    hook: Hook
    heartbeat: bool = False


class HookMemory(NamedTuple):
    """What was done for the target that has stood `since` then."""

    target: str | None = None
    since: float = 0.0
    done: frozenset[Hook] = frozenset()
    asked_at: Mapping[Hook, float] = {}
    beat_at: float = _NEVER
    loaded_at_beat: int = 0
    """Bytes that the machine had loaded at the last heartbeat of the launch hook."""

    def drain_ends_at(self, policy: HookPolicy) -> float | None:
        """When the drain ends, whatever still runs; None where no hook ends what is served."""
        ends = Hook.DRAIN in meaning(self.target).hooks
        return self.since + policy.longest_s if ends else None

    @property
    def all_done(self) -> bool:
        """Whether no hook holds the instance any more; one in no group never had any."""
        return self.target is not None and self.done.issuperset(meaning(self.target).hooks)


def watch_target(memory: HookMemory, target: str | None, now: float) -> HookMemory:
    """Begin anew when the group wants the instance somewhere else."""
    return memory if target == memory.target else HookMemory(target=target, since=now)


def calls(
    memory: HookMemory, policy: HookPolicy, now: float, *, ready: bool, idle: bool, loaded: int = 0
) -> list[Call]:
    """Return the calls to make now.

    `ready`: every worker has loaded its model. `idle`: no request runs and none will begin.
    `loaded`: bytes that the machine has received and written so far.
    """
    wanted = meaning(memory.target)
    late = now - memory.since >= policy.longest_s
    open_hooks = [hook for hook in wanted.hooks if hook not in memory.done]
    at_rest = late or (idle and (ready or Hook.READY not in wanted.hooks))
    if ready if wanted.serves else at_rest:
        ago = {name: now - memory.asked_at.get(name, _NEVER) for name in open_hooks}
        # Again and again, as a hook that does not hold the instance yet may begin.
        again_s = min(10.0, policy.settles_s / 6)
        return [Call(name) for name in open_hooks if ago[name] >= again_s]
    if now - memory.beat_at < policy.timeout_s / 2:
        return []
    beats = [Hook.DRAIN] if Hook.DRAIN in open_hooks and not idle and not late else []
    boots = Hook.READY in open_hooks and not ready and now - memory.since < policy.boot_at_most_s
    if boots and loaded - memory.loaded_at_beat >= LOADING_BYTES:
        beats.append(Hook.READY)
    return [Call(hook, heartbeat=True) for hook in beats]


def after(
    memory: HookMemory,
    policy: HookPolicy,
    call: Call,
    accepted: bool | None,
    now: float,
    loaded: int = 0,
) -> HookMemory:
    """Remember an answer: accepted, no active action (False), or none (None)."""
    if call.heartbeat:
        if accepted is None:
            return memory
        loaded_at_beat = loaded if call.hook is Hook.READY else memory.loaded_at_beat
        return memory._replace(beat_at=now, loaded_at_beat=loaded_at_beat)
    if accepted or (accepted is False and now - memory.since >= policy.settles_s):
        return memory._replace(done=memory.done | {call.hook})
    return memory._replace(asked_at={**memory.asked_at, call.hook: now})
