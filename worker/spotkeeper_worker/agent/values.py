"""The file of settings: `name = value` lines of TOML, as far as settings need it.

Python 3.9 has no tomllib, and the agent needs nothing but Python. Strings, numbers, booleans,
arrays and inline tables are read; whatever else TOML has is refused by its line.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")
    | (?P<literal>'[^'\x00-\x1f]*')
    | (?P<number>[+-]?\d[\d_]*(?:\.\d[\d_]*)?)(?![\w.:-])
    | (?P<word>[A-Za-z0-9_-]+)
    | (?P<mark>[\[\]{},=])
    )""",
    re.VERBOSE,
)
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def read_file(text: str) -> dict[str, Any]:
    """Read a file of settings; raises ValueError with the number of the line."""
    found: dict[str, Any] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        try:
            if not equals or not _NAME.fullmatch(name.strip()):
                raise ValueError("should be NAME = VALUE")
            if name.strip() in found:
                raise ValueError(f"{name.strip()} is there twice")
            found[name.strip()] = read_value(rest)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def read_value(text: str) -> Any:
    """Read one value; a comment may follow it. Raises ValueError."""
    reader = _Reader(text)
    value = reader.value()
    rest = text[reader.at :].strip()
    if rest and not rest.startswith("#"):
        raise ValueError(f"{rest[:40]!r} follows the value")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def _next(self) -> tuple[str, str]:
        found = _TOKEN.match(self._text, self.at)
        if not found or found.lastgroup is None:
            raise ValueError(f"{self._text[self.at :].strip()[:40]!r} is not a value")
        self.at = found.end()
        return found.lastgroup, found.group(found.lastgroup)

    def _ends(self, mark: str) -> bool:
        """Take a mark if it follows."""
        before = self.at
        try:
            if self._next() == ("mark", mark):
                return True
        except ValueError:
            pass
        self.at = before
        return False

    def value(self) -> Any:
        kind, text = self._next()
        if kind == "string":
            return json.loads(text)
        if kind == "literal":
            return text[1:-1]
        if kind == "number":
            return float(text) if "." in text else int(text)
        if text in ("true", "false"):
            return text == "true"
        if text == "[":
            return self._array()
        if text == "{":
            return self._table()
        raise ValueError(f"{text[:40]!r} is not a value")

    def _array(self) -> list[Any]:
        found: list[Any] = []
        while not self._ends("]"):
            if found and not self._ends(","):
                raise ValueError("an array's values are separated by commas")
            if self._ends("]"):
                break
            found.append(self.value())
        return found

    def _table(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not self._ends("}"):
            if found and not self._ends(","):
                raise ValueError("a table's entries are separated by commas")
            kind, name = self._next()
            if kind not in ("word", "string", "number"):
                raise ValueError(f"{name!r} is no name")
            if not self._ends("="):
                raise ValueError(f"{name} should be followed by = and a value")
            found[json.loads(name) if kind == "string" else name] = self.value()
        return found
