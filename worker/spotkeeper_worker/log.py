"""The two loggers, on which no text from outside can forge a line, and `Sometimes`."""

from __future__ import annotations

import logging
import re
import time

_SAY_AGAIN_S = 60.0
_MOST_SUBJECTS = 100
# Controls, and what else begins a new line or turns a terminal's text around.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    """Write a text on one line: file names, message ids and errors may hold anything."""
    return _CONTROL.sub(lambda match: ascii(match.group())[1:-1], text)


class _OneLine(logging.Filter):
    """Escapes a record's message, and indents the lines of its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = escaped(record.getMessage()), None
        if record.exc_info and not record.exc_text:
            lines = logging.Formatter().formatException(record.exc_info).splitlines()
            record.exc_text = "\n".join(f"    {escaped(line)}" for line in lines)
        return True


def get_logger(side: str) -> logging.Logger:
    """Get the logger of the `agent` or of the `worker`."""
    log = logging.getLogger(f"spotkeeper.{side}")
    if not any(isinstance(each, _OneLine) for each in log.filters):
        log.addFilter(_OneLine())
    return log


class Sometimes:
    """Logs the same trouble once a minute at most; a new one at once."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, tuple[str, float]] = {}

    def warn(self, about: str, text: str) -> None:
        """Log a warning about something, unless it was logged just before."""
        before, at = self._said.get(about, ("", 0.0))
        now = time.monotonic()
        if text != before or now - at >= _SAY_AGAIN_S:
            if len(self._said) >= _MOST_SUBJECTS:
                self._said.clear()
            self._said[about] = (text, now)
            self._log.warning("%s", text)

    def over(self, about: str, text: str) -> None:
        """Log once that a trouble is over."""
        if self._said.pop(about, None):
            self._log.info("%s", text)
