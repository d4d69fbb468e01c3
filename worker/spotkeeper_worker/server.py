"""The agent's unix socket: one JSON object a line in, one a line out.

{"logs": [...], "session": "4f2a", "batch": 7}   ->  {"took": 7, "refused": []}
{"notice": true}                                 ->  the notice
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import socketserver
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from pathlib import Path

NAME = "agent.sock"
LONGEST_LINE = 512 * 1024
MOST_LOGS = 500
_SESSION = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Accept = Callable[[Sequence[object], str, int], list[str]]
Tell = Callable[[], dict[str, Any]]


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer line by line until the worker goes."""
        with contextlib.suppress(OSError):
            while True:
                line = self.rfile.readline(LONGEST_LINE + 1)
                if not line.endswith(b"\n"):
                    if line:
                        self._say({"error": f"a line has at most {LONGEST_LINE} bytes"})
                    return
                self._say(self.server.answer(line))

    def _say(self, body: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(body).encode() + b"\n")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    # A worker that starts with many others waits rather than being refused.
    request_queue_size = 128

    def __init__(self, path: str, accept: Accept, tell: Tell) -> None:
        self._accept = accept
        self._tell = tell
        super().__init__(path, _Handler)

    def answer(self, line: bytes) -> dict[str, Any]:
        """Answer one request; a wrong one is told what is wrong with it."""
        try:
            asked = json.loads(line)
            if asked.get("notice"):
                return self._tell()
            logs, session, batch = asked["logs"], asked["session"], asked["batch"]
        except (ValueError, KeyError, AttributeError) as error:
            return {"error": f"neither logs with session and batch, nor notice: {error!r}"}
        if not isinstance(logs, list) or len(logs) > MOST_LOGS:
            return {"error": f"logs should be a list of at most {MOST_LOGS}"}
        if not isinstance(batch, int) or batch < 1:
            return {"error": "batch should be a number from 1"}
        if not isinstance(session, str) or not _SESSION.fullmatch(session):
            return {"error": "session should be 1 to 64 letters and digits"}
        return {"took": batch, "refused": self._accept(logs, session, batch)[:20]}


class SocketServer:
    """Serves the socket from a thread of its own, for as long as it is open."""

    def __init__(self, run_dir: Path, accept: Accept, tell: Tell) -> None:
        """Bind; raises OSError. Only the agent that holds the lock of `run_dir` may do so."""
        path = run_dir / NAME
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self._server = _Server(str(path), accept, tell)
        path.chmod(0o666)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def connect(run_dir: Path, timeout_s: float) -> socket.socket:
    """Connect to the agent of a machine; raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(run_dir / NAME))
    except OSError:
        connection.close()
        raise
    return connection
