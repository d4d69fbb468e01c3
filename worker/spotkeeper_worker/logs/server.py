"""The agent's unix socket: one JSON object a line in, one a line out.

{"logs": [...], "session": "4f2a", "batch": 7, "lost": 0}   ->  {"took": 7, "refused": []}
{"notice": true}                                            ->  the notice

`lost` is optional: how many logs this sender has lost since it reported that last.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, cast

from spotkeeper_worker.log import Sometimes, get_logger

if TYPE_CHECKING:
    from pathlib import Path

NAME = "agent.sock"
LONGEST_LINE = 512 * 1024
MOST_LOGS = 500
MOST_THREADS = 300
_SESSION = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Accept = Callable[[Sequence[object], str, int, int], list[str]]
Tell = Callable[[], dict[str, Any]]


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Answer line by line until the worker goes."""
        server = cast("_Server", self.server)
        with contextlib.suppress(OSError):
            while True:
                line = self.rfile.readline(LONGEST_LINE + 1)
                answer = {"error": f"a line has at most {LONGEST_LINE} bytes"}
                if line.endswith(b"\n"):
                    answer = server.answer(line)
                elif not line:
                    return
                self.wfile.write(json.dumps(answer).encode() + b"\n")
                # Who writes a longer line hears the answer only after its end.
                while line and not line.endswith(b"\n"):
                    line = self.rfile.readline(LONGEST_LINE)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    # How often it looks whether somebody removed the socket.
    timeout = 1.0
    # A worker that starts with many others waits rather than being refused.
    request_queue_size = 128
    answer: Callable[[bytes], dict[str, Any]]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer from a thread of its own; the number of threads is limited."""
        if threading.active_count() > MOST_THREADS:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)


class SocketServer:
    """Serves the socket from a thread of its own, for as long as it is open.

    Where somebody removed the socket it is made again.
    """

    def __init__(self, run_dir: Path, accept: Accept, tell: Tell, gid: int | None = None) -> None:
        """Bind; raises OSError. Only the agent that holds the lock of `run_dir` may do so.

        With a group's id only its members may connect.
        """
        self._gid = gid
        self._path = run_dir / NAME
        self._accept = accept
        self._tell = tell
        self._closed = threading.Event()
        self._say = Sometimes(get_logger("agent"))
        self._server = self._bound()
        self._thread = threading.Thread(target=self._run, name="socket", daemon=True)

    def _bound(self) -> _Server:
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        server = _Server(str(self._path), _Handler)
        server.answer = self._answer
        if self._gid is not None:
            os.chown(self._path, -1, self._gid)
        self._path.chmod(0o666 if self._gid is None else 0o660)
        return server

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def _answer(self, line: bytes) -> dict[str, Any]:
        """Answer one request; the answer to a wrong one says what is wrong."""
        try:
            request = json.loads(line)
            if request.get("notice"):
                return self._tell()
            logs, session, batch = request["logs"], request["session"], request["batch"]
            lost = request.get("lost", 0)
        except (ValueError, KeyError, AttributeError, RecursionError) as error:
            return {"error": f"neither logs with session and batch, nor notice: {error!r}"}
        if not isinstance(logs, list) or len(logs) > MOST_LOGS:
            return {"error": f"logs should be a list of at most {MOST_LOGS}"}
        if not isinstance(batch, int) or batch < 1:
            return {"error": "batch should be a number from 1"}
        if not isinstance(lost, int) or lost < 0:
            return {"error": "lost should be a number from 0"}
        if not isinstance(session, str) or not _SESSION.fullmatch(session):
            return {"error": "session should be 1 to 64 letters and digits"}
        return {"took": batch, "refused": self._accept(logs, session, batch, lost)[:20]}

    def _run(self) -> None:
        while not self._closed.is_set():
            if not self._path.exists():
                try:
                    closing, self._server = self._server, self._bound()
                    closing.server_close()
                except OSError as error:
                    text = f"{self._path} cannot be created again: {error}; retrying"
                    self._say.warn("bind", text)
            self._server.handle_request()

    def close(self) -> None:
        """Stop answering."""
        self._closed.set()
        with contextlib.suppress(OSError):
            # Ends the wait for the next worker.
            self._server.socket.shutdown(socket.SHUT_RDWR)
        if self._thread.is_alive():
            self._thread.join(timeout=2)
        self._server.server_close()
