"""Durations as people write them: `120`, `120s`, `2m`, `1.5h`, `7d`."""

import math
import re

# Longer than anything is kept, and short enough to be counted back from any day.
LONGEST_S = 3650 * 86_400.0
# Two turns are missed: what the records say is no longer what is. A turn starts some seconds late.
STALE_TURN_S = 130.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[smhd]?)")


def parse_duration(text: str | float) -> float:
    """Read a duration as seconds; raises `ValueError` for anything else."""
    found = _DURATION.fullmatch(str(text).strip().lower())
    value = float(found["number"]) * _UNITS[found["unit"]] if found else math.inf
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is no duration; write 120, 120s, 2m, 1h or 7d")
    if value > LONGEST_S:
        raise ValueError(f"{text!r} is longer than ten years")
    return value


def spoken(seconds: float) -> str:
    """Say a duration shortly: `40 s`, `12 min`, `3.5 h`, `9 d`."""
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 3 * 86_400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} d"
