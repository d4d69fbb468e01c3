"""Text as wide as the terminal, and durations and instants as people write them."""

import json
import math
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime, time, timedelta
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# The width where the text goes to no terminal.
WIDTH, NARROWEST, WIDEST = 80, 60, 200
# A number and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=(?:s|min|h|d|USD)\b|%)| (?=ago\b)")
_JOINED = "\N{NO-BREAK SPACE}"


def shown(text: str) -> str:
    """Return a text for a terminal: control characters and turns of its direction are marked.

    Texts of AWS, tags and what jobs print come from outside.
    """
    return "".join(
        each
        if each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cf")
        else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )


def width() -> int:
    """Return how many columns a line has."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))


def labelled(label: str, text: str, indent: int = 2, hang: int = 14) -> list[str]:
    """Lay a text out behind its label, wrapped under itself; below a label that is too long.

    A longer word, such as an ARN, stays whole: people copy it.
    """
    head = f"{' ' * indent}{label}".ljust(hang)
    text, room = _UNIT.sub(_JOINED, text), width() - hang
    lines = wrap(text, room, break_on_hyphens=False, break_long_words=False) or [""]
    lines = [line.replace(_JOINED, " ") for line in lines]
    if len(head) >= hang and not head.endswith(" ") and any(lines):
        lines = ["", *lines]
    return [f"{head}{lines[0]}".rstrip(), *(" " * hang + line for line in lines[1:])]


# The shape of all answers in JSON (docs/json.md); more fields do not change it.
VERSION = 1


def as_json(whole: "DataclassInstance | None" = None, /, **parts: object) -> str:
    """Write an answer as a JSON object: fields by their names, times in RFC 3339."""
    fields = asdict(whole) if whole else {}
    answer = {"version": VERSION, **fields, **parts}
    # JSON has no NaN and no infinity: such a figure is not known.
    finite = json.loads(json.dumps(answer, default=_plain), parse_constant=lambda _: None)
    return json.dumps(finite, indent=2, allow_nan=False) + "\n"


def extended[Answer: DataclassInstance](
    answer: type[Answer], whole: object, **more: object
) -> Answer:
    """Return an answer that has the fields of its own that a value has, and more."""
    names = [each.name for each in fields(answer) if hasattr(whole, each.name)]
    return answer(**{name: getattr(whole, name) for name in names} | more)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else asdict(value)


def paragraphs(parts: Iterable[Iterable[str]]) -> str:
    """Join blocks of lines with an empty line between them."""
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def columns(rows: Iterable[Mapping[str, str]], right: frozenset[str] = frozenset()) -> list[str]:
    """Lay rows out under their keys; the columns in `right` are set flush right."""
    table = list(rows)
    table = [{head: head for head in table[0]}, *table] if table else []
    lines = [""] * len(table)
    for head in table[0] if table else ():
        width = max(len(row[head]) for row in table)
        for number, row in enumerate(table):
            cell = row[head].rjust(width) if head in right else row[head].ljust(width)
            lines[number] += f"{cell}  "
    return [line.rstrip() for line in lines]


# Longer than anything is kept, and short enough to be counted back from any day.
LONGEST_S = 3650 * 86_400.0
# Two turns are missed: what the records say is no longer what is. A turn starts some seconds late.
STALE_TURN_S = 130.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[smhd]?)")


def parse_duration(text: str | float) -> float:
    """Read a duration as seconds; raises `ValueError` for anything else."""
    match = _DURATION.fullmatch(str(text).strip().lower())
    value = float(match["number"]) * _UNITS[match["unit"]] if match else math.inf
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


def age_from(at: datetime, now: datetime) -> float:
    """Return the age of an instant, s; 0 if it is in the future, because a clock is behind."""
    return max(0.0, (now - at).total_seconds())


EARLIEST = datetime(2006, 1, 1, tzinfo=UTC)


def parse_instant(text: str, now: datetime) -> datetime:
    """Read an instant; without a zone it is UTC, without a date the last such time before now.

    Raises `ValueError` for anything else, for the future, and for before there was AWS.
    """
    try:
        clock = time.fromisoformat(text.strip())
    except ValueError:
        try:
            at = datetime.fromisoformat(text.strip())
        except ValueError:
            message = f"{text!r} is no time; write 15:10, 15:10+09:00 or 2026-11-20T15:10 (UTC)"
            raise ValueError(message) from None
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    else:
        zone = clock.tzinfo or UTC
        at = datetime.combine(now.astimezone(zone).date(), clock, zone)
        at -= timedelta(days=1 if at > now else 0)
    if at < EARLIEST:
        raise ValueError(f"{text!r} is before there was AWS")
    if at > now:
        raise ValueError(f"{text!r} is in the future: it is {now:%Y-%m-%d %H:%M} UTC now")
    return at.astimezone(UTC)
