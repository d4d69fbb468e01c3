"""Says the same trouble once a minute, so that a log stays one that is read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_SAY_AGAIN_S = 60.0


class Sometimes:
    """Says the same thing once a minute at most; what is new is said at once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, tuple[str, float]] = {}

    def warn(self, about: str, text: str) -> None:
        """Log a warning about something, unless it was said just before."""
        before, at = self._said.get(about, ("", 0.0))
        now = time.monotonic()
        if text != before or now - at >= _SAY_AGAIN_S:
            self._said[about] = (text, now)
            self._log.warning("%s", text)

    def over(self, about: str, text: str) -> None:
        """Say once that a trouble is over."""
        if self._said.pop(about, None):
            self._log.info("%s", text)
