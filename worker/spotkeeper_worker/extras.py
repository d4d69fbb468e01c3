"""What the clients of queues need: the name of an extra that is missing, and a queue's region."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import what an extra installs; raises ImportError that names the extra."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing: pip install 'spotkeeper-worker[{extra}]'", name=error.name
        ) from None


def region_of_queue(url: str) -> str:
    """Give the region that a queue's URL names; empty where it names none.

    Raises ValueError for what is no URL of a queue.
    """
    if not re.match(r"https?://[^/]+/.", str(url)):
        raise ValueError(
            f"{url!r} should be a queue's URL: https://sqs.REGION.amazonaws.com/…/NAME"
        )
    match = re.match(r"https://sqs\.([a-z0-9-]+)\.[a-z0-9-]+\.", url)
    return match.group(1) if match else ""
