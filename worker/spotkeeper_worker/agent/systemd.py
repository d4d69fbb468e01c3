"""What the agent reports to systemd (`Type=notify`, `WatchdogSec`).

https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import contextlib
import os
import socket

_WITHIN_S = 1.0


def notify(state: str) -> None:
    """Tell systemd, where it started us; nothing depends on its hearing it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    path = "\0" + address[1:] if address.startswith("@") else address
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel,
    ):
        # It may be too busy to listen.
        channel.settimeout(_WITHIN_S)
        channel.sendto(state.encode(), path)
