"""What traces are called: by their files, and by their folders where files are called alike."""

from collections.abc import Sequence
from pathlib import Path


def name_of(path: Path) -> str:
    """The file's name without .csv and .gz."""
    return path.name.removesuffix(".gz").removesuffix(".csv")


def named_apart(paths: Sequence[Path]) -> dict[Path, str]:
    """Each file once, with a name that no other has: `mon/requests`, `tue/requests`."""
    files: dict[Path, Path] = {}
    for path in paths:
        files.setdefault(path.resolve(), path)
    ways = {path: (*path.absolute().parts[1:-1], name_of(path)) for path in files.values()}
    return {path: _apart(way, list(ways.values())) or str(path) for path, way in ways.items()}


def _apart(way: Sequence[str], ways: Sequence[Sequence[str]]) -> str:
    """The end of a way that no other way has; empty where there is none."""
    for length in range(1, len(way) + 1):
        if sum(other[-length:] == way[-length:] for other in ways) == 1:
            return "/".join(way[-length:])
    return ""
