"""Times as seconds since the epoch, and as the RFC 3339 texts that cross every border."""

from __future__ import annotations

import math
import re
from datetime import datetime, timezone
from functools import lru_cache

_FORM = re.compile(
    r"(\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)

# As proxies, Go, Ruby, Java (…Z[UTC]) and HTTP write it; what follows the zone is left out.
_MOMENT = re.compile(
    r"\[?(?:\w{3}, )?(?:(\d{4})[-/](\d\d)[-/](\d\d)|(\d\d)[ /-](\w{3})[ /-](\d{4}))"
    r"[T :](\d\d:\d\d:\d\d)(?:[.,](\d+))? ?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)(?![\w:.])",
    re.ASCII | re.IGNORECASE,
)
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

    It is a date with a time and a zone in one of many forms, or a number since the epoch, also as
    `t=NUMBER`. Its size says whether that is seconds, or milli-, micro- or nanoseconds. Of several,
    separated by commas, the first counts.
    """
    text = str(value).strip().removeprefix("t=")
    match = _MOMENT.match(text)
    if match:
        year, month, day, first, name, last, clock, fraction, zone = match.groups()
        date = f"{year}-{month}-{day}"
        if name:
            named = datetime.strptime(f"{first} {name} {last} +0000", "%d %b %Y %z")
            date = named.strftime("%Y-%m-%d")
        zone = f"{zone[:3]}:{zone[3:].lstrip(':') or '00'}" if zone[0] in "+-" else "Z"
        return _read_second(f"{date}T{clock}", zone) + float(f"0.{fraction or 0}")
    try:
        number = float(text.partition(",")[0])
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a time with a zone") from None
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
