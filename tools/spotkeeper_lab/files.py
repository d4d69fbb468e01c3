"""Files that are read and written whole, and what they are called."""

import csv
import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

type Problem = Callable[[Path, int | None, str], Exception]
"""Makes the error about a file, its line where there is one, and what is wrong."""

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE = 4096


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under another name first, so that no reader ever sees half of it.

    A link stays one, and its target is written; a device or a pipe is written as it is.
    """
    target = path.resolve()
    data = content.encode() if isinstance(content, str) else content
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_text(path: Path, error: Problem) -> str:
    """Read a file, plain or gzip (`-`: standard input); raises `error` for what is no text."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        if data.startswith(GZIP_MAGIC) or (path.suffix == ".gz" and data):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        problem = "is called .gz but is not whole gzip; rename or repair it"
        raise error(path, None, problem) from None
    except OSError as failed:
        raise error(path, None, f"cannot be read: {failed.strerror}") from None
    except UnicodeDecodeError as failed:
        line = failed.object[: failed.start].count(b"\n") + 1
        raise error(path, line, "is not UTF-8 text; save it as UTF-8") from None


def read_rows(path: Path, error: Problem) -> Iterator[tuple[int, list[str]]]:
    """Read a CSV file as line numbers and stripped fields; empty rows are left out."""
    lines = read_text(path, error).splitlines()
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise error(path, number, f"the line is longer than {LONGEST_LINE} characters")
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if any(row):
                yield reader.line_num, [field.strip() for field in row]
    except csv.Error as failed:
        raise error(path, reader.line_num, f"is not CSV: {failed}") from None


def name_of(path: Path) -> str:
    """The file's name without .csv and .gz."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def named_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """Each file once, with a name that no other has: `mon/requests`, `tue/requests`."""
    files: dict[Path, Path] = {}
    for path in paths:
        files.setdefault(path.resolve(), path)
    ways = {path: (*path.absolute().parts[1:-1], name_of(path)) for path in files.values()}
    names: dict[Path, str] = {}
    for path, way in ways.items():
        ends = ((way[-length:], length) for length in range(1, len(way) + 1))
        own = (e for e, n in ends if sum(other[-n:] == e for other in ways.values()) == 1)
        names[path] = "/".join(next(own, ())) or str(path)
    return names
