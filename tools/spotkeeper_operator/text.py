"""Text as wide as the terminal: labelled lines that wrap under themselves."""

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from textwrap import wrap

# The width where the text goes to no terminal; wider than the widest, lines are hard to read.
WIDTH, NARROWEST, WIDEST = 80, 60, 120
# A number and its unit stay on one line.
_UNIT = re.compile(r"(?<=\d) (?=(?:s|min|h|d|USD)\b|%)| (?=ago\b)")
_JOINED = "\N{NO-BREAK SPACE}"


def width() -> int:
    """Return how many columns a line has."""
    if not sys.stdout.isatty():
        return WIDTH
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size().columns))


def labelled(label: str, text: str, indent: int = 2, hang: int = 14) -> list[str]:
    """Lay a text out behind its label, wrapped under itself; below a label that is too long."""
    head = f"{' ' * indent}{label}".ljust(hang)
    lines = wrap(_UNIT.sub(_JOINED, text), width() - hang, break_on_hyphens=False) or [""]
    lines = [line.replace(_JOINED, " ") for line in lines]
    if len(head) >= hang and not head.endswith(" ") and any(lines):
        lines = ["", *lines]
    return [f"{head}{lines[0]}".rstrip(), *(" " * hang + line for line in lines[1:])]


def as_json(found: object) -> str:
    """Write values as JSON; times are in RFC 3339."""
    return json.dumps(found, indent=2, default=lambda value: value.isoformat()) + "\n"


def paragraphs(parts: Iterable[Iterable[str]]) -> str:
    """Join blocks of lines with an empty line between them."""
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def columns(rows: Iterable[Mapping[str, str]], right: frozenset[str] = frozenset()) -> list[str]:
    """Lay rows out under their keys; the columns in `right` are set flush right."""
    table = list(rows)
    heads = list(table[0]) if table else []
    widths = {h: max(len(h), *(len(row[h]) for row in table)) for h in heads}
    lines = [_line({h: h for h in heads}, widths, right)]
    return [*lines, *(_line(row, widths, right) for row in table)] if table else []


def _line(row: Mapping[str, str], widths: Mapping[str, int], right: frozenset[str]) -> str:
    cells = [
        row[h].rjust(width) if h in right else row[h].ljust(width) for h, width in widths.items()
    ]
    return "  ".join(cells).rstrip()
