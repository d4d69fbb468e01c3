"""Times as seconds since the epoch, and as the RFC 3339 texts that cross every border."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_FORM = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(\.\d+)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
)


def as_text(seconds: float) -> str:
    """Write a time in milliseconds and UTC; such texts sort as the times do.

    Raises ValueError outside of the years 1 to 9999.
    """
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    moment = datetime.fromtimestamp(whole, timezone.utc).replace(tzinfo=None)
    return f"{moment.isoformat()}.{thousandths:03d}Z"


def read_time(text: str) -> float:
    """Read an RFC 3339 time with a zone; raises ValueError for anything else."""
    found = _FORM.fullmatch(text)
    if not found:
        raise ValueError(f"{text[:40]!r} is not an RFC 3339 time with a zone")
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in "Zz" else zone
    whole = datetime.fromisoformat(f"{day}T{clock}{zone}").timestamp()
    return whole + float(f"0{fraction or '.0'}")
