"""The agent: one process for each machine. It looks, decides by the tables of `states` and `hooks`,
writes the notice for the workers, and calls AWS. After a kill it reads everything again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spotkeeper_worker import roster
from spotkeeper_worker.agent.aws import AutoScaling, AwsError, NoActiveAction
from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy, after, calls, watch_target
from spotkeeper_worker.agent.metadata import Identity, Metadata, look
from spotkeeper_worker.agent.service import NOT_ALIVE
from spotkeeper_worker.log import get_logger
from spotkeeper_worker.logs.files import collect
from spotkeeper_worker.notice import NAME, Notice, read_notice, write_notice
from spotkeeper_worker.states import Hook, Leave, Seen, State, Workers, leaving, state_of
from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spotkeeper_worker.agent.gpu import Gpus
    from spotkeeper_worker.agent.service import Service
    from spotkeeper_worker.agent.settings import Settings
    from spotkeeper_worker.log import Sometimes
    from spotkeeper_worker.logs.files import Follower
    from spotkeeper_worker.logs.outbox import Outbox
    from spotkeeper_worker.stop import Stop

_LOG = get_logger("agent")
_NEVER = float("-inf")
# Without a worker for this long, the machine no longer counts as serving.
_GONE_S = 60.0
_LOOK_AT_ALL_S = 60.0
# A maintenance event is announced days before; the machine drains this long before it.
_MAINTENANCE_AHEAD_S = 900.0
_FLUSH_S = 10.0
# What the agent reads of a followed log in one step, in mebibytes, and how long an idle machine
# waits for the rest.
_MOST_READS = 16
_READ_WITHIN_S = 120.0


class AnotherAgent(Exception):
    """A second agent on this machine; two would send and complete everything twice."""


@contextlib.contextmanager
def hold_machine(*folders: Path) -> Iterator[None]:
    """Lock folders until the block, or the process, ends; raises AnotherAgent.

    A forked child that outlives this process keeps none of the locks.
    """
    held: list[int] = []

    def close() -> None:
        while held:
            os.close(held.pop())

    os.register_at_fork(after_in_child=close)
    try:
        for folder in folders:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            held.append(os.open(folder / "agent.lock", flags, 0o644))
            try:
                fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AnotherAgent(f"{folder} has an agent; one is enough") from None
        yield
    finally:
        # A child that was forked this moment has the files open, too.
        for fd in held:
            fcntl.flock(fd, fcntl.LOCK_UN)
        close()


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


def notify(state: str) -> None:
    """Tell systemd, where it started us (`Type=notify`); nothing depends on its hearing it.

    https://www.freedesktop.org/software/systemd/man/sd_notify.html
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
    ):
        # It may be too busy to listen.
        channel.settimeout(1.0)
        channel.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


class Parts(NamedTuple):
    """What an agent works with; a machine of one's own has neither metadata nor hooks."""

    outbox: Outbox
    service: Service
    metadata: Metadata | None = None
    instance: Identity | None = None
    auto_scaling: AutoScaling | None = None
    gpus: Gpus | None = None
    follower: Follower | None = None


class Agent:
    """One machine's state, and one step of looking after it.

    A step has two times: `now` of the clock that nobody sets, by which everything waits, and `wall`
    in seconds since the epoch, in which metadata and the notice tell times.
    """

    def __init__(self, settings: Settings, parts: Parts, say: Sometimes, stopping: Stop) -> None:
        self.stopping = stopping
        self.notice = Notice(State.BOOTING, time.time(), reason="starting")
        self._settings = settings
        self._parts = parts
        self._say = say
        self._policy = HookPolicy(
            settings.hook_timeout_s,
            settings.drain_at_most_s,
            settings.hook_settles_s,
            settings.boot_at_most_s,
        )
        self._hooks = HookMemory()
        self._group = settings.group or (parts.instance.group if parts.instance else "")
        self._seen = Seen()
        self._known = parts.metadata is None
        self._looked_at = self._looked_at_all = self._manned_at = _NEVER
        self._begun, self._still_since = -1, _NEVER
        self._served = False
        self._busy_since: dict[tuple[str, int], float] = {}
        """By a worker's name and how many requests it has begun."""
        # Go on where an agent before this one was.
        with contextlib.suppress(ValueError):
            self.notice = read_notice(settings.run_dir) or self.notice
        if self.notice.draining:
            age_s = max(0.0, time.time() - self.notice.seen_at)
            self._hooks = HookMemory(self.notice.target, time.monotonic() - age_s)

    def run(self) -> None:
        """Step until `stopping` is set, then until the workers are idle; send what is left."""
        self._parts.service.start()
        while not self.stopping.is_set():
            self.step(time.monotonic(), time.time())
            self.stopping.wait(self._settings.tick_s)
        ends = time.monotonic() + self._settings.stop_within_s
        while time.monotonic() < ends:
            self.step(time.monotonic(), time.time())
            if self.notice.state in (State.IDLE, State.GONE):
                break
            time.sleep(min(self._settings.tick_s, 0.2))
        self._parts.outbox.flush(_FLUSH_S)

    def step(self, now: float, wall: float) -> None:
        """Look at everything once, and do what follows."""
        settings, parts = self._settings, self._parts
        if parts.metadata is not None and now - self._looked_at >= settings.poll_s:
            self._looked_at = now
            self._look(parts.metadata, now)
        collect(settings.spool_dir, parts.outbox.accept, self._say)
        self._read_followed(now)
        workers = roster.read_roster(settings.run_dir, settings.workers, wall)
        if self._known or self.stopping.is_set():
            self._follow(workers, now, wall)
        # An agent that only seems to live is started again.
        if not parts.outbox.alive:
            self._say.warn("outbox", "search logs are no longer sent: restart the agent")
        status = f"STATUS={self.notice.state.value} {self.notice.reason}"
        notify(f"WATCHDOG=1\n{status}" if parts.outbox.alive else status)

    def _read_followed(self, now: float) -> None:
        """Read the followed log to its end, no faster than its logs are sent.

        What is not read waits in the file, where the journal would lose its oldest logs.
        """
        follower, outbox = self._parts.follower, self._parts.outbox
        if follower is None:
            return
        for _ in range(_MOST_READS):
            room = self._settings.keep_logs // 2 - outbox.waiting
            if room <= 0:
                follower.behind = True
            else:
                follower.step(now, room)
            if room <= 0 or not follower.behind:
                return

    def _look(self, metadata: Metadata, now: float) -> None:
        urgent_only = now - self._looked_at_all < _LOOK_AT_ALL_S
        if not urgent_only:
            self._looked_at_all = now
        before = self._seen
        self._seen, troubles = notices, _ = look(metadata, before, urgent_only=urgent_only)
        for trouble in troubles:
            self._say.warn("metadata", f"metadata: {trouble}; the state stays as it is")
        if not troubles:
            self._say.over("metadata", "metadata answers again")
            self._known = True
        if notices.maintenance and notices != before:
            at, code = notices.maintenance
            _LOG.warning("EC2 will maintain this instance (%s) from %s", code, as_text(at))
        if notices.rebalance and not before.rebalance:
            _LOG.info("EC2 recommends to rebalance; SPOTKEEPER_REBALANCE sets what follows")
        if metadata.clock_offset_s:
            problem = f"EC2's clock is {metadata.clock_offset_s:+.0f} s from this one; run chrony"
            self._say.warn("clock", problem)

    def _follow(self, workers: Workers, now: float, wall: float) -> None:
        """Decide on what was seen; first tell the workers, then AWS."""
        parts, before = self._parts, self.notice
        self._hooks = watch_target(self._hooks, self._seen.target, now)
        ill = parts.gpus.ill if parts.gpus else ""
        leave = self._leaving(ill, now, wall)
        parts.outbox.hurried = leave is not None
        if before.state not in (State.BOOTING, State.READY):
            # A machine that was stopped when it was gone begins anew.
            self._served = before.state is not State.GONE
        parts.service.follow(leave, self._served)
        workers = parts.service.counted(workers)
        if workers.alive or not workers.expected or self._manned_at == _NEVER:
            self._manned_at = now
        workers = workers._replace(gone=now - self._manned_at >= _GONE_S)
        # Settled: no request has run or begun for a while since the notice of the drain. Fewer than
        # before have begun if a worker has left, and its count with it.
        stopped = leave is not None and (leave.serve_until is None or wall >= leave.serve_until)
        still = workers.begun <= self._begun and not workers.busy
        self._begun = workers.begun
        waits = stopped and still and before.draining
        self._still_since = self._still_since if waits else now
        still_s = now - self._still_since
        unread = parts.follower is not None and parts.follower.behind
        settled = waits and still_s >= (_READ_WITHIN_S if unread else self._settings.settle_s)
        state = state_of(before.state, leave, workers, settled, served=self._served)
        if state is State.IDLE and self._hooks.all_done:
            state = State.GONE
        trouble = self._trouble(workers, now)
        self._tell(state, leave or Leave(trouble), leave is not None, wall)
        if state is State.BOOTING:
            self._say.warn("booting", f"not ready: {workers.missing()}")
        if parts.auto_scaling:
            idle = state in (State.IDLE, State.GONE, State.READY)
            ready = workers.all_ready and not ill
            loaded = 0 if ready else bytes_loaded()
            needed_calls = calls(
                self._hooks, self._policy, now, ready=ready, idle=idle, loaded=loaded
            )
            for call in needed_calls:
                accepted = self._made(parts.auto_scaling, call)
                self._hooks = after(self._hooks, self._policy, call, accepted, now, loaded)

    def _leaving(self, ill: str, now: float, wall: float) -> Leave | None:
        notices = self._seen
        if notices.maintenance and notices.maintenance[0] - wall > _MAINTENANCE_AHEAD_S:
            notices = notices._replace(maintenance=None)
        dead = self._parts.service.ill
        own = f"gpu: {ill}" if ill else dead and NOT_ALIVE + dead
        own = "stopping" if self.stopping.is_set() else own
        leave = leaving(notices, own, self._settings.rebalance == "drain")
        ends_at = self._hooks.drain_ends_at(self._policy)
        if leave is None or leave.until is not None or ends_at is None:
            return leave
        until, before = wall + ends_at - now, self.notice.until
        # The two clocks are never read at once: the notice changes only if one was set.
        if before is not None and abs(until - before) < 1.0:
            until = before
        return leave._replace(until=until)

    def _trouble(self, workers: Workers, now: float) -> str:
        """Name what keeps a machine that serves from working; it is logged, too."""
        self._busy_since = {
            worker: self._busy_since.get(worker, now) for worker in workers.busy_with
        }
        at_most = self._settings.hung_after_s
        hung = [name for (name, _), since in self._busy_since.items() if now - since >= at_most]
        trouble = ""
        if workers.gone and self._served:
            trouble = f"no worker has been running for {_GONE_S:g} s"
        elif hung:
            names = ", ".join(hung)
            trouble = f"{names}: no request has begun or ended for {at_most:g} s; one is running"
        if trouble:
            self._say.warn("workers", trouble)
        else:
            self._say.over("workers", "the workers work again")
        return trouble

    def _tell(self, state: State, leave: Leave, draining: bool, wall: float) -> None:
        """Replace the notice if it says something else, or if somebody has deleted it."""
        before = self.notice
        notice = before._replace(
            state=state, draining=draining, reason=leave.reason, until=leave.until,
            serve_until=leave.serve_until, target=self._seen.target,
        )  # fmt: skip
        if notice == before and (self._settings.run_dir / NAME).exists():
            return
        if (notice.draining, notice.reason) != (before.draining, before.reason):
            notice = notice._replace(seen_at=wall)
        try:
            write_notice(self._settings.run_dir, notice)
        except OSError as error:
            self._say.warn("notice", f"the notice could not be written: {error}")
            return
        self.notice = notice
        if (notice.state, notice.reason) != (before.state, before.reason):
            why = f": {notice.reason}" if notice.reason else ""
            until = f", until {as_text(notice.until)}" if notice.until is not None else ""
            _LOG.info("%s -> %s%s%s", before.state.value, state.value, why, until)

    def _made(self, auto_scaling: AutoScaling, call: Call) -> bool | None:
        """Make a call; return whether AWS accepted it, or None without an answer.

        Logs are sent before a hook ends the machine.
        """
        outbox, instance = self._parts.outbox, self._parts.instance
        ends = call.hook is Hook.DRAIN and not call.heartbeat
        if ends and self._parts.follower and (unread := self._parts.follower.unread()):
            outbox.lose(unread)
            _LOG.error("%d lines of the followed log were not read before the hook", unread)
        if ends and not outbox.flush(_FLUSH_S):
            problem = f"{outbox.waiting} search logs could not be sent before the hook"
            self._say.warn("flush", problem)
        ready = call.hook is Hook.READY
        name = self._settings.ready_hook if ready else self._settings.drain_hook
        instance_id = instance.instance_id if instance else ""
        try:
            self._group = self._group or auto_scaling.group_of(instance_id)
            if not self._group:
                return False
            auto_scaling.act(self._group, name, instance_id, heartbeat=call.heartbeat)
        except NoActiveAction:
            return False
        except AwsError as error:
            self._say.warn(f"hook {name}", f"hook {name}: {error}; trying again")
            return None
        _LOG.info("hook %s %s", name, "is kept waiting" if call.heartbeat else "is complete")
        return True
