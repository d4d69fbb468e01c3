"""Times as seconds since the epoch, and as the RFC 3339 texts that cross every border."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache

_FORM = re.compile(
    r"(\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def as_text(seconds: float) -> str:
    """Write a time in milliseconds and UTC; such texts sort as the times do.

    Raises ValueError outside of the years 1 to 9999.
    """
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{_second_as_text(whole)}.{thousandths:03d}Z"


def read_time(text: str) -> float:
    """Read an RFC 3339 time with a zone; raises ValueError for anything else."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError(f"{text[:40]!r} is not an RFC 3339 time with a zone")
    second, fraction, zone = found.groups()
    return _read_second(second, zone) + float(fraction or 0)


# The search logs of a busy machine name the same few seconds thousands of times.
@lru_cache(maxsize=128)
def _second_as_text(second: int) -> str:
    return datetime.fromtimestamp(second, timezone.utc).replace(tzinfo=None).isoformat()


@lru_cache(maxsize=128)
def _read_second(second: str, zone: str) -> float:
    zone = "+00:00" if zone in "Zz" else zone
    return datetime.fromisoformat(second + zone).timestamp()
