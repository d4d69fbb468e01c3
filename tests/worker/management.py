"""A service on loopback that answers what a test says, such as a broker's management API."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

TOLD = {"messages": 7, "messages_ready": 5, "messages_unacknowledged": 2}

type Manage = Callable[[int, str], str]


class Web:
    """What it answers at one path; 400 at every other."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.status = 200
        self.body = ""
        self.url = ""


@contextmanager
def serving(path: str) -> Iterator[Web]:
    web = Web(path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = web.body.encode()
            self.send_response(web.status if self.path == web.path else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}{path}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield web
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def manage() -> Iterator[Manage]:
    """A management API that answers one thing; gives the address of the queue `requests`."""
    with serving("/api/queues/%2F/requests") as web:

        def answers(status: int, body: str) -> str:
            web.status, web.body = status, body
            return web.url.replace("//", "//me:s3cret@").replace("/api/queues", "")

        yield answers
