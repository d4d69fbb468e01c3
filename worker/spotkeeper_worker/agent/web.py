"""HTTP by the standard library. A connection opens with each request that finds it closed."""

from __future__ import annotations

import contextlib
import http.client
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

ERRORS = (OSError, http.client.HTTPException)


def connection_to(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Give a connection to the server of a URL; raises HTTPException for a wrong port."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    return kind(parts.netloc, timeout=timeout_s)


def read(url: str, headers: Mapping[str, str], timeout_s: float, at_most: int) -> tuple[int, bytes]:
    """Read a URL once: its status, and its first bytes. Raises `ERRORS`."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with contextlib.closing(connection_to(url, timeout_s)) as connection:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(at_most)
