"""A service on loopback that answers what a test says, such as a broker's management API."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from typing import Any

import pytest

TOLD = {"messages": 7, "messages_ready": 5, "messages_unacknowledged": 2}

type Manage = Callable[[int, str], str]


class Web:
    """What it answers at one path, to one token; 400 at every other."""

    def __init__(self, path: str) -> None:
        self.path, self.token = path, ""
        self.status = 200
        self.body = ""
        self.url = ""
        self.takes_s = 0.0


class Quiet(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(
    handler: type[Quiet], context: SSLContext | None = None, **about: Any
) -> Iterator[ThreadingHTTPServer]:
    """Serve on loopback; the handler has what it is to know in its class."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), about))
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serving(path: str) -> Iterator[Web]:
    web = Web(path)

    class Handler(Quiet):
        def do_GET(self) -> None:
            time.sleep(web.takes_s)
            body = web.body.encode()
            known = not web.token or self.headers["Authorization"] == web.token
            self.send_response(web.status if known and self.path == web.path else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError):
                self.wfile.write(body)

    with served(Handler) as server:
        web.url = f"http://127.0.0.1:{server.server_port}{path}"
        yield web


@pytest.fixture
def manage() -> Iterator[Manage]:
    """A management API that answers one thing; gives the address of the queue `requests`."""
    with serving("/api/queues/%2F/requests") as web:

        def answers(status: int, body: str) -> str:
            web.status, web.body = status, body
            return web.url.replace("//", "//me:s3cret@").replace("/api/queues", "")

        yield answers
