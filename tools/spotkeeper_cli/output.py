"""Where results go: a file, or standard output for `-`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

STANDARD_OUTPUT = Path("-")


class OutputError(Exception):
    """A file that cannot be written; known before anything is computed."""


WIDE = 120
"""Columns of a table that goes to a file or another program."""


def screen() -> "Console":
    """Standard output, wide enough for tables where it is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))


def check_folders(*paths: Path | None) -> None:
    """Refuse files in folders that are not there, before a long run; raises OutputError."""
    for path in paths:
        if path is not None and path != STANDARD_OUTPUT and not path.parent.is_dir():
            raise OutputError(f"{path}: there is no folder {path.parent}; make it first")
        if path is not None and path.is_dir():
            raise OutputError(f"{path}: is a folder; name a file in it")


def write(text: str, path: Path) -> None:
    """Write a result to a file, at once or not at all, or to standard output."""
    from spotkeeper_lab.report import write_whole

    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    try:
        write_whole(path, text)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def counted(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error: to be called with done, total and what is at work."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, at_work: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{label} {at_work}")

        yield show
