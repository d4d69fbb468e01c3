"""HTTP by the standard library. A connection opens with each request that finds it closed."""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

ERRORS = (OSError, http.client.HTTPException)


def connection_to(
    url: str, timeout_s: float, proxy: str = "", context: ssl.SSLContext | None = None
) -> http.client.HTTPConnection:
    """Give a connection to the server of a URL; raises HTTPException for a wrong port."""
    parts, through = urlsplit(url), urlsplit(proxy)
    host = through.netloc.rpartition("@")[2] or parts.netloc
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, timeout=timeout_s)
    if proxy:
        user = f"{unquote(through.username or '')}:{unquote(through.password or '')}"
        basic = f"Basic {base64.b64encode(user.encode()).decode()}"
        connection.set_tunnel(
            parts.netloc, headers={"Proxy-Authorization": basic} if through.username else {}
        )
    return connection


def connection_to_aws(url: str, timeout_s: float) -> http.client.HTTPConnection:
    """Connect as AWS's SDKs do: by HTTPS_PROXY, but for NO_PROXY, and with AWS_CA_BUNDLE.

    The instance metadata and a machine's own services are never reached through a proxy. Raises
    HTTPException for a proxy that is no URL, and for a bundle that cannot be read.
    """
    proxy, context, parts = "", None, urlsplit(url)
    if any(name.lower().endswith("_proxy") for name in os.environ):
        # Most machines do without the memory that the module takes.
        from urllib.request import getproxies, proxy_bypass

        if not proxy_bypass(parts.netloc):
            proxy = getproxies().get(parts.scheme, "")
        if proxy and urlsplit(proxy).scheme != "http":
            raise http.client.InvalidURL(
                f"{parts.scheme.upper()}_PROXY: should be http://HOST:PORT, the address of a proxy"
            )
    if os.environ.get("AWS_CA_BUNDLE") and parts.scheme == "https":
        import ssl

        bundle = os.environ["AWS_CA_BUNDLE"]
        try:
            context = ssl.create_default_context(cafile=bundle)
        except OSError as error:
            why = f"{error.strerror or error}; should be a file of certificates (PEM)"
            raise http.client.InvalidURL(f"AWS_CA_BUNDLE: {bundle}: {why}") from None
    return connection_to(url, timeout_s, proxy, context)


def read(url: str, headers: Mapping[str, str], timeout_s: float, at_most: int) -> tuple[int, bytes]:
    """Read a URL once: its status, and its first bytes. Raises `ERRORS`."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with contextlib.closing(connection_to(url, timeout_s)) as connection:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(at_most)
