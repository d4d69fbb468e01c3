"""A service that knows nothing of Spotkeeper: probed over HTTP, and drained by a command."""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.agent import web
from spotkeeper_worker.log import escaped, get_logger

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from spotkeeper_worker.agent.settings import Probe, Settings
    from spotkeeper_worker.log import Sometimes
    from spotkeeper_worker.states import Leave, Workers

NAME = "service"
_LOG = get_logger("agent")
# Consecutive probes that fail before a service that was alive counts as dead.
_DEAD_AFTER = 3
NOT_ALIVE = "not alive: "
_LONGEST = 400


def _trouble_of(probe: Probe) -> str:
    """Ask once; empty if the service is well."""
    try:
        status, _ = web.read(probe.url, {"User-Agent": "spotkeeper-agent"}, probe.timeout_s, 0)
    except web.ERRORS as error:
        return f"{probe.url}: {type(error).__name__} {error}".rstrip()
    well = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    return "" if well else f"{probe.url} answered {status}"


class Service:
    """The machine's service. Probes run in a thread of their own, as they may hang."""

    def __init__(self, settings: Settings, say: Sometimes, tell: Callable[[str], None]) -> None:
        """Have `tell` send the operator what went wrong with a command."""
        named = (("ready", settings.ready), ("live", settings.live))
        self._probes = {name: probe for name, probe in named if probe}
        self._on_drain, self._on_return = settings.on_drain, settings.on_return
        self._say, self._tell = say, tell
        self._running: subprocess.Popen[bytes] | None = None
        self._ran = ""
        self._drained = False
        self._begun = 0
        self._failed = 0
        self._was_alive = False
        self._closed = threading.Event()
        self.ready = settings.ready is None
        self.ill = ""
        """Why the service does not live; empty while it does, or has not been alive yet."""

    def start(self) -> None:
        """Begin to probe."""

        def run() -> None:
            while not self._closed.wait(min(probe.every_s for probe in self._probes.values())):
                self.probe()

        if self._probes:
            threading.Thread(target=run, name="probes", daemon=True).start()

    def probe(self) -> None:
        """Probe once."""
        for name, probe in self._probes.items():
            trouble = _trouble_of(probe)
            if trouble:
                what = "alive" if name == "live" else name
                self._say.warn(name, f"the service is not {what}: {trouble}")
            else:
                self._say.over(name, f"{probe.url} answers again")
            if name == "ready":
                self.ready = not trouble
            elif not trouble:
                self._failed, self._was_alive, self.ill = 0, True, ""
            else:
                self._failed += 1
                if self._was_alive and self._failed >= _DEAD_AFTER:
                    self.ill = trouble

    def counted(self, workers: Workers) -> Workers:
        """Add the service to the machine's workers: one that is busy while its command runs."""
        if not self._probes and not self._on_drain:
            return workers
        probed = "ready" in self._probes
        return workers._replace(
            expected=workers.expected + probed,
            ready=(*workers.ready, NAME) if probed and self.ready else workers.ready,
            not_ready=workers.not_ready if self.ready else (*workers.not_ready, NAME),
            busy=workers.busy + self._runs,
            begun=workers.begun + self._begun,
        )

    @property
    def _runs(self) -> bool:
        """Whether the last command still runs; how it failed is logged once."""
        if self._running is not None and self._running.poll() is not None:
            if self._running.returncode:
                self._failed_to_run(f"failed with status {self._running.returncode}")
            self._running = None
        return self._running is not None

    def follow(self, leave: Leave | None, served: bool) -> None:
        """Have the service drain when the machine leaves, and return when it stays after all.

        It returns once it has stopped; a drain waits for nothing.
        """
        if leave is None:
            if self._drained and not self._runs:
                self._drained = False
                self._command("on_return", self._on_return)
            return
        # A dead service needs a restart, not a drain; and an agent that restarts is no reason to
        # stop what it looks after.
        stays = leave.reason == "stopping" or leave.reason.startswith(NOT_ALIVE)
        if served and not stays and not self._drained:
            self._drained = True
            self._command("on_drain", self._on_drain)

    def _command(self, name: str, command: Sequence[str]) -> None:
        if not command:
            if self._on_drain:
                _LOG.warning("the machine stays, and no on_return says how the service starts")
            return
        self._begun += 1
        import subprocess

        self._ran = f"{name}: {' '.join(command)}"
        try:
            self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL)
            _LOG.info("%s", self._ran)
        except OSError as error:
            self._failed_to_run(f"could not be started: {error}")

    def _failed_to_run(self, why: str) -> None:
        trouble = f"{self._ran} {why}"
        _LOG.error("%s", trouble)
        self._tell(escaped(trouble)[:_LONGEST])

    def close(self) -> None:
        """Probe no more; a command that runs goes on."""
        self._closed.set()
