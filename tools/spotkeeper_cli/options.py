"""What commands share: their options, where results go, and errors in one sentence."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotkeeper_lab.files import write_whole
from spotkeeper_operator.text import parse_duration, shown, spoken

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from spotkeeper_charts.page import Page


def seconds(least: float = 0.0, most: float | None = None) -> Callable[[str | float], float]:
    """Make a reader of durations, in seconds; others, and those out of bounds, are refused."""

    def read(text: str | float) -> float:
        try:
            value = parse_duration(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        if value < least:
            raise typer.BadParameter(f"{text!r} is too short: at least {spoken(least)}")
        if most is not None and value > most:
            raise typer.BadParameter(f"{text!r} is too long: at most {spoken(most)}")
        return value

    return read


def _named(stack: str) -> str:
    if not stack.strip():
        raise typer.BadParameter("give the name of a stack")
    return stack


def option(help: str, *names: str, **more: Any) -> Any:
    """An option; where it has no names, it is called as its parameter."""
    return typer.Option(*names, help=help, **more)


def duration(
    help: str, *names: str, least: float = 0.0, most: float | None = None, shown: str | bool = True
) -> Any:
    """An option that is read as seconds: 90s, 20m, 3h, 7d; `shown` is its default as text."""
    parser = seconds(least, most)
    return typer.Option(*names, parser=parser, metavar="DURATION", help=help, show_default=shown)


Stack = Annotated[
    str, option("The stack's name.", "--stack", envvar="SPOTKEEPER_STACK", callback=_named)
]
Region = Annotated[str | None, option("Default: the profile's.", "--region", envvar="AWS_REGION")]
Profile = Annotated[
    str | None, option("Profile of your AWS configuration.", "--profile", envvar="AWS_PROFILE")
]
FleetName = Annotated[str | None, option("One fleet. Default: all.", "--fleet")]
Report = Annotated[Path | None, option("Write an HTML page, too.", "--report", metavar="FILE")]


Fleet = Annotated[str, typer.Argument(help="The fleet's name.", metavar="FLEET")]
# Of the lab's runs.
JsonFile = Annotated[Path | None, option("Write the rows as JSON; - is standard output.", "--json")]
ReportFile = Annotated[Path | None, option("Write an HTML report.", "--report")]
MeanRate = Annotated[
    float | None,
    option(
        "Requests a second of a trace of rates, on average. Default: as in the file.",
        min=1e-6,
        metavar="<float>",
    ),
]
PriceRatio = Annotated[float, option("Spot price over on-demand price.", min=0.01, max=1.0)]
Since = Annotated[float | None, duration("Start this long ago: 20m, 3h, 7d.", "--since", least=1)]


STANDARD_OUTPUT = Path("-")


class OutputError(Exception):
    """A file that cannot be written; known before anything is computed."""


@contextmanager
def exits_on(*kinds: type[Exception]) -> Iterator[None]:
    """End with code 2 and `error: ...` for the kinds of error that a user can mend."""
    try:
        yield
    except kinds as error:
        typer.echo(shown(f"error: {error}"), err=True)
        raise typer.Exit(2) from error


@contextmanager
def exits_on_aws_errors() -> Iterator[None]:
    """Do the same for what can fail between a command and AWS, or its output."""
    from botocore.exceptions import BotoCoreError, ClientError

    from spotkeeper.ports import FleetError
    from spotkeeper_operator.aws import OperatorError

    known = (BotoCoreError, ClientError, FleetError, OperatorError, OutputError)
    with exits_on(*known):
        try:
            yield
        except known:
            raise
        except UnicodeError as error:
            raise OperatorError(f"an argument or a file is not UTF-8 text: {error}") from error
        except Exception as error:
            if not _of_botocore(error):
                raise
            # Of what is set wrong, it checks only a part.
            raise OperatorError(
                f"AWS cannot be called as it is configured: {error or type(error).__name__} (see "
                "AWS_ENDPOINT_URL, AWS_PROFILE, AWS_REGION, AWS_CONFIG_FILE and the file's values)"
            ) from error


def _of_botocore(error: Exception) -> bool:
    """Whether an unforeseen error arose within botocore, and not in what it calls of ours."""
    frames = [*walk_tb(error.__traceback__)]
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in frames]
    mine = max((n for n, name in enumerate(names) if name.startswith("spotkeeper")), default=-1)
    return any(name.startswith("botocore.") for name in names[mine + 1 :])


WIDE = 120
"""Columns of a table that goes to a file or another program."""


def screen() -> "Console":
    """Standard output, wide enough for tables where it is no terminal."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(WIDE, console.width))


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Refuse what cannot or must not be written, before a long run; makes missing folders.

    Raises `OutputError` for a folder, a file that is read or written too, and a place that refuses.
    """
    read = [path.resolve() for path in inputs if path is not None]
    given = [path for path in outputs if path is not None]
    for number, path in enumerate(given):
        if path.resolve() in [other.resolve() for other in given[:number]]:
            raise OutputError(f"{path}: is given twice; name another file")
        if path == STANDARD_OUTPUT:
            continue
        if path.is_dir():
            raise OutputError(f"{path}: is a folder; name a file in it")
        if path.resolve() in read:
            raise OutputError(f"{path}: is read too; name another file")
        top = Path(*path.absolute().parts[:2])
        if top != path.absolute() and not top.exists():
            raise OutputError(f"{path}: there is no folder {top}; create it first")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{path}: cannot make its folder: {error.strerror}") from error


def write(text: str, path: Path) -> None:
    """Write a result: a file at once or not at all, `-` is standard output."""
    if path == STANDARD_OUTPUT:
        typer.echo(text, nl=False)
        return
    try:
        write_whole(path, text)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from error


def tell(text: str, page: "Page", path: Path | None) -> None:
    """Print a text, and write its page where one is wanted; `-` is in place of the text."""
    if path is not None:
        from spotkeeper_charts.page import page_html

        write(page_html(page), path)
    if path != STANDARD_OUTPUT:
        typer.echo(shown(text), nl=False)


def remark(notes: Iterable[str]) -> None:
    """Print what a reader must know of the input on standard error."""
    for note in filter(None, notes):
        typer.echo(shown(note), err=True)


def give(
    tables: "Iterable[Table]",
    rows: str,
    json: Path | None,
    page: Callable[[], str],
    report: Path | None,
) -> None:
    """Print the tables, unless the JSON takes their place, and write the files of the options."""
    if json != STANDARD_OUTPUT:
        for table in tables:
            screen().print(table)
    if json:
        write(rows, json)
    if report:
        write(page(), report)


@contextmanager
def counted(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error: to be called with done, total and what is at work."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, at_work: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{label} {at_work}")

        yield show
