"""Middleware for FastAPI, Starlette and every other ASGI application (docs/service.md).

Each server process is a worker of the machine: set SPOTKEEPER_WORKERS to their number.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.logs.files import skipped
from spotkeeper_worker.states import TARGETS, State
from spotkeeper_worker.times import read_moment
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
# RFC 6455, 7.4.1, and its registry: an internal error, a restart, and overload.
_CLOSED_BY_ERROR = (1011, 1012, 1013)
_TRY_AGAIN_LATER = 1013


class SpotkeeperMiddleware:
    """Sends a search log for each request and each WebSocket.

    A request whose path begins with one of `skip` is passed through. `/spotkeeper/ready` answers
    503 from the notice of the machine's end on: point the load balancer's health check at it. What
    the load balancer still sends is served for as long as the machine can finish it, and then
    answered with 503. `enqueued_header` names a header that your proxy overwrites with the time
    when a request began to wait, such as X-Request-Start; a client could set another one.
    """

    def __init__(
        self,
        app: App,
        worker: Worker | None = None,
        skip: Sequence[str] = ("/health",),
        enqueued_header: str = "",
    ) -> None:
        self._app = app
        self._worker = worker
        self._enqueued_header = enqueued_header.lower().encode("latin-1")
        self._skip = skipped(skip)

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
        elif scope["type"] not in ("http", "websocket") or scope["path"].startswith(self._skip):
            await self._app(scope, receive, send)
        elif scope["path"] == READY_PATH and scope["type"] == "http":
            await _answer(send, 200 if self._joined().is_serving else 503)
        elif not _may_serve(self._joined()):
            await (_answer(send, 503) if scope["type"] == "http" else _refuse(receive, send))
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
        enqueued_at = _enqueued_at(headers.get(self._enqueued_header, b""))
        with worker.request(request_id, enqueued_at) as log:

            async def measured(message: Message) -> None:
                kind = message["type"]
                if kind in ("http.response.start", "websocket.http.response.start"):
                    status = message["status"]
                    if status >= _SERVER_ERROR:
                        log.status = "timeout" if status == _GATEWAY_TIMEOUT else "error"
                elif kind == "websocket.close" and message.get("code") in _CLOSED_BY_ERROR:
                    log.status = "error"
                await send(message)

            await self._app(scope, receive, measured)


def _may_serve(worker: Worker) -> bool:
    """Whether to serve a request that a load balancer has sent.

    It sends them until it has seen the readiness fail, also to a machine that its group ends. The
    agent waits for these before it completes the hook.
    """
    notice = worker.notice
    if notice is None or worker.stopping or worker.is_full:
        return False
    if notice.serve_until is not None:
        return time.time() + worker.longest_s < notice.serve_until
    target = TARGETS.get(notice.target or "")
    is_ended = notice.state is State.DRAINING and target is not None and not target.serves
    return notice.state is State.SERVING or is_ended


def _enqueued_at(text: bytes) -> float:
    """Read when a request began to wait; now, where that is no time of the last day."""
    now = time.time()
    try:
        at = read_moment(text.decode("latin-1")) if text else now
    except ValueError:
        return now
    return at if now - 86_400 < at <= now else now


async def _answer(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(receive: Receive, send: Send) -> None:
    """Refuse a WebSocket before it is accepted: servers answer 403 then, as ASGI says."""
    await receive()
    await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER})
