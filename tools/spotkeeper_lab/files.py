"""Results as files."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file under a name of its own first, so that nobody ever reads half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
