"""The loop over an SQS request queue: take one, serve it, delete it (docs/sqs.md).

Needs boto3 (`pip install 'spotkeeper-worker[sqs]'`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.extras import needs, region_of_queue

with needs("sqs"):
    import boto3

    from spotkeeper_worker.aio.loops import serve_here
    from spotkeeper_worker.aio.sqs import VISIBILITY_S, WAIT_S, SqsLoop

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from spotkeeper_worker.worker import Worker


def serve(
    worker: Worker,
    queue_url: str,
    handle: Callable[[str], Any],
    *,
    client: Any = None,
    visibility_s: float = VISIBILITY_S,
    wait_s: int = WAIT_S,
) -> None:
    """Serve until `worker.stop`. What `handle` raises is logged; the message is received again.

    `visibility_s` is renewed while a message is served: the message of a worker that dies
    is visible again after it. `wait_s` is the length of a long poll, and the longest that a stop
    takes.
    """
    # A queue's URL names its region, which a machine may not have in its environment.
    awaited = _Awaited(
        client or boto3.client("sqs", region_name=region_of_queue(queue_url) or None)
    )
    loop = SqsLoop(worker, queue_url, awaited, visibility_s, wait_s, at_once=1)
    serve_here(loop.messages(), handle)


class _Awaited:
    """boto3's client, each call in a thread, so that it can be awaited."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._client, name)
        run = asyncio.get_running_loop().run_in_executor
        return lambda **given: run(None, partial(call, **given))
