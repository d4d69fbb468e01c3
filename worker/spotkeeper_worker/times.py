"""Times as seconds since the epoch, and as the RFC 3339 texts that cross every border."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from functools import lru_cache

_FORM = re.compile(
    r"(\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)

_LOCAL = re.compile(r"\[?(\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]?", re.ASCII)
# Seconds since the epoch are below this for 3,000 years, and milliseconds above it since 1973.
_SECONDS_BELOW = 1e11


def as_text(seconds: float) -> str:
    """Write a time in milliseconds and UTC; such texts sort as the times do.

    Raises ValueError outside of the years 1 to 9999.
    """
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{_second_as_text(whole)}.{thousandths:03d}Z"


def read_time(text: str) -> float:
    """Read an RFC 3339 time with a zone; raises ValueError for anything else."""
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError(f"{text[:40]!r} is not an RFC 3339 time with a zone")
    second, fraction, zone = match.groups()
    return _read_second(second, zone) + float(fraction or 0)


def read_moment(value: object) -> float:
    """Read a time as proxies write it; raises ValueError.

    It is RFC 3339, also with log4j's comma, a time of nginx or Apache (29/Dec/2024:12:42:55 +0100),
    or a number since the epoch, also as `t=NUMBER`. Its size says whether that is seconds, or
    milli-, micro- or nanoseconds. Of several, separated by commas, the first counts.
    """
    text = re.sub(r"(:\d\d),(?=\d)", r"\1.", str(value))
    text = text.partition(",")[0].strip().removeprefix("t=")
    try:
        number = float(text)
    except ValueError:
        match = _LOCAL.fullmatch(text)
        if match:
            return datetime.strptime(match[1], "%d/%b/%Y:%H:%M:%S %z").timestamp()
        # Go's encoders leave the colon of a zone out; Ruby writes a space before it.
        return read_time(re.sub(r" ?([+-]\d\d):?(\d\d)$", r"\1:\2", text))
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"{text[:40]!r} is not a time")
    for _ in range(3):
        number = number / 1000 if number >= _SECONDS_BELOW else number
    return number


# The search logs of a busy machine name the same few seconds thousands of times.
@lru_cache(maxsize=128)
def _second_as_text(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).replace(tzinfo=None).isoformat()


@lru_cache(maxsize=128)
def _read_second(second: str, zone: str) -> float:
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(second + zone).timestamp()
