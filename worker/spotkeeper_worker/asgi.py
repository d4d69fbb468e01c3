"""Middleware for FastAPI, Starlette and every other ASGI application.

    from spotkeeper_worker.asgi import SpotkeeperMiddleware

    app.add_middleware(SpotkeeperMiddleware)

Each server process is a worker of the machine: set SPOTKEEPER_WORKERS to their number.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, MutableMapping, Sequence

    Message = MutableMapping[str, Any]
    Send = Callable[[Message], Awaitable[None]]
    Receive = Callable[[], Awaitable[Message]]
    App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

READY_PATH = "/spotkeeper/ready"
_SERVER_ERROR = 500
_GATEWAY_TIMEOUT = 504


class SpotkeeperMiddleware:
    """Sends a search log for each request, and answers 503 while the machine drains.

    A request whose path is in `skip` is passed through. `/spotkeeper/ready` answers 200 while the
    machine may serve: point the load balancer's health check at it. The wait of a request begins
    when its header X-Request-Start says so.
    """

    def __init__(
        self, app: App, worker: Worker | None = None, skip: Sequence[str] = ("/health",)
    ) -> None:
        self._app = app
        self._worker = worker
        self._skip = frozenset(skip)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle a connection, as ASGI defines it."""
        if scope["type"] == "lifespan":

            async def watched(message: Message) -> None:
                """Become ready once the application has started, and leave at its shutdown."""
                if message["type"] == "lifespan.startup.complete":
                    self._joined().ready()
                await send(message)
                if message["type"] == "lifespan.shutdown.complete":
                    self._joined().close()

            await self._app(scope, receive, watched)
        elif scope["type"] != "http" or scope["path"] in self._skip:
            await self._app(scope, receive, send)
        elif scope["path"] == READY_PATH:
            await _answer(send, 200 if self._joined().may_take else 503)
        elif not self._joined().may_take:
            await _answer(send, 503)
        else:
            await self._served(self._joined(), scope, receive, send)

    def _joined(self) -> Worker:
        """Join the machine with the first use: a server forks its processes before."""
        if self._worker is None:
            self._worker = Worker()
            self._worker.ready()
        return self._worker

    async def _served(
        self, worker: Worker, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        request_id = headers.get(b"x-request-id", b"").decode("latin-1") or uuid.uuid4().hex
        with worker.request(request_id, _enqueued_at(headers)) as log:

            async def measured(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    if status >= _SERVER_ERROR:
                        log.status = "timeout" if status == _GATEWAY_TIMEOUT else "error"
                await send(message)

            await self._app(scope, receive, measured)


def _enqueued_at(headers: dict[bytes, bytes]) -> float:
    """Read X-Request-Start: `t=` and seconds (nginx), or milliseconds (Heroku)."""
    now = time.time()
    try:
        at = float(headers[b"x-request-start"].decode("latin-1").removeprefix("t="))
    except (KeyError, ValueError):
        return now
    at = at / 1000 if at > 100 * now else at
    return at if now - 86_400 < at <= now else now


async def _answer(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
