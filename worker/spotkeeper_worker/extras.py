"""The name of an extra, where what it installs is missing."""

from __future__ import annotations

import contextlib
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
