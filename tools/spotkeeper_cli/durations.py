"""Durations as people write them: `120`, `120s`, `2m`, `1.5h`."""

import math
import re

import typer

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[smhd]?)")


def seconds(text: str | float) -> float:
    """Read a duration as seconds; anything else is a wrong argument."""
    found = _DURATION.fullmatch(str(text).strip().lower())
    value = float(found["number"]) * _UNITS[found["unit"]] if found else math.inf
    if not math.isfinite(value):
        raise typer.BadParameter(f"{text!r} is no duration; write 120, 120s, 2m or 1h")
    return value
