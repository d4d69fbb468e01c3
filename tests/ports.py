"""Ports of loopback, for tests that start servers."""

import contextlib
import random
import socket

# Below those that a kernel gives to connections: none takes one before its server does.
MINE = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Ports on which nothing listens; other processes of the tests hardly draw the same."""
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            port = random.SystemRandom().choice(MINE)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                found.append(port)
    return found
