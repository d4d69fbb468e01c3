"""The agent: one process for each machine. It looks, decides by the tables of `states` and `hooks`,
writes the notice for the workers, and calls AWS. After a kill it reads everything again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from spotkeeper_worker import roster
from spotkeeper_worker.agent.hooks import HookMemory
from spotkeeper_worker.agent.metadata import Metadata, look
from spotkeeper_worker.agent.systemd import notify
from spotkeeper_worker.log import get_logger
from spotkeeper_worker.logs import spool
from spotkeeper_worker.notice import NAME, Notice, read_notice, write_notice
from spotkeeper_worker.states import Leave, Local, Seen, State, Workers, leaving, state_of
from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spotkeeper_worker.agent.gpu import Gpus
    from spotkeeper_worker.agent.hook_keeper import HookKeeper
    from spotkeeper_worker.agent.service import Service
    from spotkeeper_worker.agent.settings import Settings
    from spotkeeper_worker.log import Sometimes
    from spotkeeper_worker.logs.follow import Follower
    from spotkeeper_worker.logs.outbox import Outbox
    from spotkeeper_worker.stop import Stop

_LOG = get_logger("agent")


# Without a worker for this long, the machine no longer counts as serving.
_GONE_S = 60.0
_LOOK_AT_ALL_S = 60.0
# A maintenance event is announced days before; the machine drains this long before it.
_MAINTENANCE_AHEAD_S = 900.0


class AnotherAgent(Exception):
    """A second agent on this machine; two would send and complete everything twice."""


@contextlib.contextmanager
def hold_machine(*folders: Path) -> Iterator[None]:
    """Lock folders until the block, or the process, ends; raises AnotherAgent."""
    with contextlib.ExitStack() as ending:
        for folder in folders:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(folder / "agent.lock", flags, 0o644)
            ending.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AnotherAgent(f"{folder} has an agent; one is enough") from None
        yield


class Parts(NamedTuple):
    """What an agent works with; a machine of one's own has neither metadata nor hooks."""

    outbox: Outbox
    service: Service
    metadata: Metadata | None = None
    hooks: HookKeeper | None = None
    gpus: Gpus | None = None
    follower: Follower | None = None


class Agent:
    """One machine's state, and one step of looking after it."""

    def __init__(self, settings: Settings, parts: Parts, say: Sometimes, stopping: Stop) -> None:
        self.stopping = stopping
        self.notice = Notice(State.BOOTING, time.time(), reason="starting")
        self._settings = settings
        self._parts = parts
        self._say = say
        self._seen = Seen()
        self._known = parts.metadata is None
        self._looked_at = self._looked_at_all = 0.0
        self._begun = -1
        self._still_since = 0.0
        self._served = False
        self._manned_at: float | None = None
        self._since: dict[str, tuple[int, float]] = {}
        self._go_on()

    def _go_on(self) -> None:
        """Go on where an agent before this one was."""
        try:
            before = read_notice(self._settings.run_dir)
        except ValueError:
            return
        if before is not None:
            self.notice = before
        if before is not None and before.draining and self._parts.hooks:
            self._parts.hooks.memory = HookMemory(target=before.target, since=before.seen_at)

    def run(self) -> None:
        """Step until `stopping` is set, then until the workers are idle; send what is left."""
        self._parts.service.start()
        while not self.stopping.is_set():
            self.step(time.time())
            self.stopping.wait(self._settings.tick_s)
        ends = time.monotonic() + self._settings.stop_within_s
        while time.monotonic() < ends:
            self.step(time.time())
            if self.notice.state in (State.IDLE, State.GONE):
                break
            time.sleep(min(self._settings.tick_s, 0.2))
        self._parts.outbox.flush(timeout_s=10.0)

    def step(self, now: float) -> None:
        """Look at everything once, and do what follows; `now` is in seconds since the epoch."""
        if not 0 <= now - self._looked_at < self._settings.poll_s:
            self._looked_at = now
            self._look(now)
        spool.collect(self._settings.spool_dir, self._parts.outbox.accept, self._say)
        if self._parts.follower:
            self._parts.follower.step(now)
        workers = roster.read_roster(self._settings.run_dir, self._settings.workers, now)
        if self._known or self.stopping.is_set():
            self._follow(workers, now)
        self._tell_systemd()

    def _tell_systemd(self) -> None:
        """Say that all is well, so that an agent which only seems to live is started again."""
        status = f"STATUS={self.notice.state.value} {self.notice.reason}"
        if self._parts.outbox.alive:
            notify(f"WATCHDOG=1\n{status}")
            return
        self._say.warn("outbox", "search logs are no longer sent: restart the agent")
        notify(status)

    def _look(self, now: float) -> None:
        if self._parts.metadata is None:
            return
        urgent_only = 0 <= now - self._looked_at_all < _LOOK_AT_ALL_S
        if not urgent_only:
            self._looked_at_all = now
        before = self._seen
        found = look(self._parts.metadata, before, urgent_only=urgent_only)
        self._seen = found.seen
        for trouble in found.troubles:
            self._say.warn("metadata", f"metadata: {trouble}; the state stays as it is")
        if not found.troubles:
            self._say.over("metadata", "metadata answers again")
            self._known = True
        if self._seen.maintained_at is not None and self._seen != before:
            at, what = as_text(self._seen.maintained_at), self._seen.maintenance
            _LOG.warning("EC2 will maintain this instance (%s) from %s", what, at)
        if self._seen.rebalance and not before.rebalance:
            _LOG.info("EC2 recommends to rebalance; SPOTKEEPER_REBALANCE sets what follows")
        offset_s = self._parts.metadata.clock_offset_s
        if offset_s:
            self._say.warn("clock", f"EC2's clock is {offset_s:+.0f} s from this one; run chrony")

    def _follow(self, workers: Workers, now: float) -> None:
        """Decide on what was seen, tell the workers, and then AWS."""
        hooks = self._parts.hooks
        if hooks:
            hooks.watch(self._seen.target, now)
        leave = self._leaving(now)
        self._parts.outbox.hurried = leave is not None
        before = self.notice.state
        if before is not State.BOOTING and before is not State.READY:
            # A machine that was stopped when it was gone begins anew.
            self._served = before is not State.GONE
        self._parts.service.follow(leave, self._served)
        workers = self._parts.service.counted(workers)
        workers = workers._replace(gone=self._gone(workers, now))
        settled = self._settled(workers, leave, now)
        state = state_of(before, leave, workers, settled, served=self._served)
        if state is State.IDLE and hooks and hooks.memory.all_done:
            state = State.GONE
        trouble = self._trouble(workers, now)
        self._tell(state, leave or Leave(trouble), leave is not None, now)
        if state is State.BOOTING:
            self._say.warn("booting", f"not ready: {workers.missing()}")
        if hooks:
            idle = state in (State.IDLE, State.GONE, State.READY)
            hooks.keep(now, ready=workers.all_ready and not self._ill, idle=idle)

    def _gone(self, workers: Workers, now: float) -> bool:
        """Whether no worker has been alive for a while."""
        if workers.alive or not workers.expected or self._manned_at is None:
            self._manned_at = now
        self._manned_at = min(self._manned_at, now)
        return now - self._manned_at >= _GONE_S

    def _trouble(self, workers: Workers, now: float) -> str:
        """Name what keeps a machine that serves from working; it is logged, too."""
        self._since = {
            name: self._since[name] if self._since.get(name, (-1, 0))[0] == begun else (begun, now)
            for name, begun in workers.busy_with
        }
        at_most = self._settings.hung_after_s
        hung = [name for name, (_, since) in self._since.items() if now - since >= at_most]
        trouble = ""
        if workers.gone and self._served:
            trouble = f"no worker has been running for {_GONE_S:g} s"
        elif hung:
            names = ", ".join(hung)
            trouble = f"{names}: no request has begun or ended for {at_most:g} s, and one runs"
        if trouble:
            self._say.warn("workers", trouble)
        else:
            self._say.over("workers", "the workers work again")
        return trouble

    @property
    def _ill(self) -> str:
        return self._parts.gpus.ill if self._parts.gpus else ""

    def _leaving(self, now: float) -> Leave | None:
        local = Local(self.stopping.is_set(), self._ill, self._parts.service.ill)
        seen = self._seen
        if seen.maintained_at is not None and seen.maintained_at - now > _MAINTENANCE_AHEAD_S:
            seen = seen._replace(maintained_at=None)
        leave = leaving(seen, local, self._settings.rebalance == "drain")
        hooks = self._parts.hooks
        if leave is not None and leave.until is None and hooks:
            return leave._replace(until=hooks.memory.drain_deadline(hooks.policy))
        return leave

    def _settled(self, workers: Workers, leave: Leave | None, now: float) -> bool:
        """Whether no request has run or begun for a while since the notice of the drain."""
        stopped = leave is not None and (leave.serve_until is None or now >= leave.serve_until)
        # Fewer than before: a worker has left, and its count with it.
        still = workers.begun <= self._begun and not workers.busy
        self._begun = workers.begun
        if not (stopped and still and self.notice.draining):
            self._still_since = now
            return False
        # A clock may be set back.
        self._still_since = min(self._still_since, now)
        return now - self._still_since >= self._settings.settle_s

    def _tell(self, state: State, said: Leave, draining: bool, now: float) -> None:
        """Replace the notice if it says something else, or if somebody has deleted it."""
        before = self.notice
        notice = Notice(
            state=state,
            seen_at=before.seen_at,
            draining=draining,
            reason=said.reason,
            until=said.until,
            serve_until=said.serve_until,
            target=self._seen.target,
        )
        if notice == before and (self._settings.run_dir / NAME).exists():
            return
        if (notice.draining, notice.reason) != (before.draining, before.reason):
            notice = notice._replace(seen_at=now)
        try:
            write_notice(self._settings.run_dir, notice)
        except OSError as error:
            self._say.warn("notice", f"the notice could not be written: {error}")
            return
        self.notice = notice
        if (notice.state, notice.reason) != (before.state, before.reason):
            _LOG.info("%s -> %s%s", before.state.value, state.value, _why(notice))


def _why(notice: Notice) -> str:
    until = notice.as_json()["until"]
    return (f": {notice.reason}" if notice.reason else "") + (f", until {until}" if until else "")
