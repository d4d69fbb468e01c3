"""Makes the calls that `hooks` asks for, and remembers what AWS answered."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.agent import hooks
from spotkeeper_worker.agent.aws import AutoScaling, AwsError, NoActiveAction
from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy
from spotkeeper_worker.log import get_logger
from spotkeeper_worker.states import Hook

if TYPE_CHECKING:
    from spotkeeper_worker.agent.metadata import Identity
    from spotkeeper_worker.agent.settings import Settings
    from spotkeeper_worker.log import Sometimes

_LOG = get_logger("agent")


def bytes_loaded(proc: Path = Path("/proc")) -> int:
    """Count what the machine has received and written: a pull, or a model's weights, add to it."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "net" / "dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, counts = line.partition(":")
            total += 0 if name.strip() == "lo" else int(counts.split()[0])
        for line in (proc / "diskstats").read_text(encoding="ascii").splitlines():
            fields = line.split()
            total += int(fields[9]) * 512 if not fields[2].startswith(("loop", "ram")) else 0
    return total


class HookKeeper:
    """The lifecycle hooks of one instance; `flush` sends its logs before a hook ends it."""

    def __init__(
        self,
        settings: Settings,
        auto_scaling: AutoScaling,
        who: Identity,
        flush: Callable[[], None],
        say: Sometimes,
    ) -> None:
        self.memory = HookMemory()
        self.policy = HookPolicy(
            timeout_s=settings.hook_timeout_s,
            drain_at_most_s=settings.drain_at_most_s,
            settles_s=settings.hook_settles_s,
            ask_again_s=min(10.0, settings.hook_settles_s / 6),
            boot_at_most_s=settings.boot_at_most_s,
        )
        self._names = {Hook.READY: settings.ready_hook, Hook.DRAIN: settings.drain_hook}
        self._auto_scaling = auto_scaling
        self._instance_id = who.instance_id
        self._group = settings.group or who.group
        self._flush = flush
        self._say = say

    def watch(self, target: str | None, now: float) -> None:
        """Take note of where the group wants the instance."""
        self.memory = hooks.watch_target(self.memory, target, now)

    def close(self) -> None:
        """End the connection to AWS."""
        self._auto_scaling.close()

    def keep(self, now: float, *, ready: bool, idle: bool) -> None:
        """Complete the hooks that may be completed, and keep the others waiting."""
        loaded = 0 if ready else bytes_loaded()
        asked = hooks.calls(self.memory, self.policy, now, ready=ready, idle=idle, loaded=loaded)
        for call in asked:
            if call.hook is Hook.DRAIN and not call.heartbeat:
                self._flush()
            accepted = self._made(call)
            self.memory = hooks.after(self.memory, self.policy, call, accepted, now, loaded)

    def _made(self, call: Call) -> bool | None:
        name = self._names[call.hook]
        try:
            self._ask(call)
        except NoActiveAction:
            return False
        except AwsError as error:
            self._say.warn(f"hook {name}", f"hook {name}: {error}; trying again")
            return None
        _LOG.info("hook %s %s", name, "is kept waiting" if call.heartbeat else "is complete")
        return True

    def _ask(self, call: Call) -> None:
        if not self._group:
            self._group = self._auto_scaling.group_of(self._instance_id)
        if not self._group:
            raise NoActiveAction("hook", "", "the instance is in no group")
        ask = self._auto_scaling.heartbeat if call.heartbeat else self._auto_scaling.complete
        ask(self._group, self._names[call.hook], self._instance_id)
