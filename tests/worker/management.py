"""A broker's management API of pretence."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

TOLD = {"messages": 7, "messages_ready": 5, "messages_unacknowledged": 2}

type Manage = Callable[[int, str], str]


@pytest.fixture
def manage() -> Iterator[Manage]:
    """A management API that answers one thing; gives the address of the queue `requests`."""
    answer: list[tuple[int, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer[0]
            rightly = self.path == "/api/queues/%2F/requests"
            self.send_response(status if rightly else 400)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def answers(status: int, body: str) -> str:
        answer[:] = [(status, body)]
        return f"http://me:s3cret@127.0.0.1:{server.server_port}/%2F/requests"

    yield answers
    server.shutdown()
    thread.join()
    server.server_close()
