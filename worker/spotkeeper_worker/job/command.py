"""The job's command: a process group of its own, and what it prints."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spotkeeper_worker.agent.aws import Caller

_LOG = get_logger("agent")
TAIL = 64 * 1024
_NOT_FOUND = 127
_SIGNALLED = 128
_SPARED, _REACHED_S = ("pt_data_worker", "pt_elastic"), 5.0
# Limits of PutLogEvents:
# https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html
_BATCH = 900_000
_EVENTS = 10_000
_LONGEST = 200_000
_OVERHEAD = 26
_KEPT_LINES = 20_000
_SEND_EVERY_S = 2.0


def user_named(name: str | None) -> pwd.struct_passwd | None:
    """Find the user of the command; None if the agent is not root, so that its own user runs it."""
    if not name or os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"user {name!r} is not on this machine") from None


class Command:
    """Runs once. Its output is read at once, so that it never waits for anybody."""

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        user: pwd.struct_passwd | None,
        sink: Callable[[bytes], None],
        hidden: Sequence[bytes] = (),
    ) -> None:
        self._sink, self._hidden, self._line = sink, [each for each in hidden if each], b""
        self._tail = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        mark = f"{time.time_ns()}"
        self._mark = f"SPOTKEEPER_COMMAND={mark}".encode()
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        ours = ("SPOTKEEPER_", "NOTIFY_SOCKET", "WATCHDOG_")
        given = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
        if user:
            given.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
            groups = os.getgrouplist(user.pw_name, user.pw_gid)
            options.update(user=user.pw_uid, group=user.pw_gid, extra_groups=groups)
        try:
            process: Any = subprocess.Popen(
                list(command), cwd=folder, stderr=subprocess.STDOUT,
                env={**given, "PYTHONUNBUFFERED": "1", **environment, "SPOTKEEPER_COMMAND": mark},
                start_new_session=True, **options,
            )  # fmt: skip
        except OSError as error:
            self._take(f"{command[0]} cannot be started: {error}\n".encode())
            return
        self._process = process
        # When memory runs out, the command is ended and not the agent.
        with contextlib.suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
        self._reader = threading.Thread(target=self._read, name="output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            while block := os.read(output.fileno(), TAIL):
                self._take(self._shown(block))
            self._take(self._shown(b"", end=True))

    def _shown(self, block: bytes, *, end: bool = False) -> bytes:
        """Return output without values of secrets: by whole lines, where there are any."""
        if not self._hidden:
            return block
        text = self._line + block
        for value in self._hidden:
            text = text.replace(value, b"***")
        # What is not a whole line yet may end within a value.
        until = len(text) if end else text.rfind(b"\n") + 1
        until = max(until, len(text) - TAIL)
        self._line = text[until:]
        return text[:until]

    def _take(self, block: bytes) -> None:
        self._tail += block
        del self._tail[:-TAIL]
        self._sink(block)

    @property
    def tail(self) -> bytes:
        """The last of what it printed."""
        return bytes(self._tail)

    def poll(self) -> int | None:
        """Give its exit code as a shell does, 137 for SIGKILL; None while it runs."""
        if self._process is None:
            return _NOT_FOUND
        code = self._process.poll()
        return _SIGNALLED - code if code is not None and code < 0 else code

    def signal(self, number: int) -> None:
        """Send a signal to its process group; SIGKILL, while it runs, to all that it started.

        SIGTERM spares PyTorch's data loaders, at whose end a script fails before it saves, and
        torchrun, which kills after 30 s: its scripts get it, each in a group of its own.
        """
        process, kills = self._process, number == signal.SIGKILL
        if process is None:
            return
        runs, others = self.poll() is None, list[tuple[Path, str]]()
        if kills:
            # At once: none of them starts another meanwhile.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                text = (folder / "stat").read_text(errors="replace")
                name, _, rest = text.partition("(")[2].rpartition(")")
                _, parent, group, *_ = rest.split()
                if int(group) != process.pid:
                    others.append((folder, parent))
                elif not kills and name not in _SPARED:
                    os.kill(int(folder.name), number)
        if runs:
            # A process that hangs in the kernel may let nobody read its environment.
            reach = threading.Thread(target=self._reach, args=(others, number), daemon=True)
            reach.start()
            reach.join(_REACHED_S)

    def _reach(self, others: Sequence[tuple[Path, str]], number: int) -> None:
        """Send a signal to what the command started outside its group, or to torchrun's scripts."""
        for folder, parent in others:
            with contextlib.suppress(OSError):
                name = Path("/proc", parent, "comm").read_text(errors="replace").strip()
                is_meant = number == signal.SIGKILL or name == "pt_elastic"
                if is_meant and self._mark in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), number)

    def close(self) -> None:
        """End what is left of its group, and read what it printed last."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._reader.join(timeout=2.0)


class LogStream:
    """Sends lines to CloudWatch Logs from a thread of its own; what does not fit is left out."""

    def __init__(self, caller: Caller, group: str, stream: str) -> None:
        self._caller = caller
        self._named = {"logGroupName": group, "logStreamName": stream}
        self._lines: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)
        self._part = b""
        self._made = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)
        self._thread.start()

    def take(self, block: bytes) -> None:
        """Take output; never waits."""
        *lines, self._part = (self._part + block).split(b"\n")
        if len(self._part) > _LONGEST:
            lines, self._part = [*lines, self._part], b""
        now = int(time.time() * 1000)
        texts = [line.decode("utf-8", "replace")[:_LONGEST] for line in lines]
        self._lines.extend((now, text) for text in texts if text.strip())

    def close(self, within_s: float) -> None:
        """Send what is left, for at most `within_s`."""
        if self._part:
            self.take(b"\n")
        self._closing.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._closing.wait(_SEND_EVERY_S):
            self._send()
        self._send()

    def _send(self) -> None:
        while self._lines:
            batch = self._batch()
            try:
                if not self._made:
                    self._post("CreateLogStream", self._named)
                    self._made = True
                self._post("PutLogEvents", {**self._named, "logEvents": batch})
            except AwsError as error:
                _LOG.warning("output is not in CloudWatch Logs: %s", error)
                self._lines.extendleft((each["timestamp"], each["message"]) for each in batch[::-1])
                return

    def _batch(self) -> list[dict[str, Any]]:
        batch: list[dict[str, Any]] = []
        size = 0
        while self._lines and len(batch) < _EVENTS:
            at, text = self._lines.popleft()
            size += len(text.encode()) + _OVERHEAD
            if size > _BATCH and batch:
                self._lines.appendleft((at, text))
                break
            batch.append({"timestamp": at, "message": text})
        return batch

    def _post(self, action: str, body: Mapping[str, Any]) -> None:
        try:
            self._caller.ask("1.1", f"Logs_20140328.{action}", body)
        except AwsError as error:
            if error.code != "ResourceAlreadyExistsException":
                raise
