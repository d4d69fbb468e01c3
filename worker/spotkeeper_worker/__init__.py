"""What a worker of a Spotkeeper fleet needs: `Worker`, and the loops in `sqs` and `rabbitmq`.

`AsyncWorker` and the loops in `aio.sqs` and `aio.rabbitmq` are those of asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spotkeeper_worker.roster import NameTaken
from spotkeeper_worker.worker import Forked, NoAgent, Request, Worker

if TYPE_CHECKING:
    from spotkeeper_worker.aio import AsyncWorker

__all__ = ["AsyncWorker", "Forked", "NameTaken", "NoAgent", "Request", "Worker"]
__version__ = "0.3.0"


def __getattr__(name: str) -> type[AsyncWorker]:
    """Import asyncio with the first use: the agent does without its memory."""
    if name == "AsyncWorker":
        from spotkeeper_worker.aio import AsyncWorker

        return AsyncWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
