"""`spotkeeper job`: training that survives spot."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.stack_commands import OnStack, Yes, confirm, on_stack, patiently
from spotkeeper_operator.text import as_json, shown

if TYPE_CHECKING:
    from spotkeeper.ports import Unreadable
    from spotkeeper_operator.jobs import Jobs

job = typer.Typer(
    name="job", no_args_is_help=True, help="Run training that survives spot interruptions."
)
Name = Annotated[str, typer.Argument(help="The job's name.", metavar="NAME")]
WATCH_S = 10.0


def _jobs(on: OnStack) -> "Jobs":
    from spotkeeper_operator.jobs import Jobs

    return Jobs(on.aws, on.stack)


def _say(on: OnStack, *lines: str) -> None:
    typer.echo(as_json(lines=lines) if on.json else "\n".join([*lines, ""]), nl=False)


@job.command()
@on_stack
def start(
    on: OnStack,
    file: Annotated[Path, typer.Argument(help="The job document, TOML or JSON.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, and start nothing.")
    ] = False,
) -> None:
    """Check a job's document and machine, upload its code, and start it."""
    _say(on, *_jobs(on).start(file, on.now, dry_run=dry_run))


@job.command()
@on_stack
def status(
    on: OnStack,
    name: Annotated[str | None, typer.Argument(help="One job.", metavar="NAME")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow one job to its end.")] = False,
) -> None:
    """Show the jobs that are not over, or one job; then the exit code is the job's own."""
    from spotkeeper_operator.jobs import answer_of, exit_code, status_text

    jobs = _jobs(on)
    if name is None:
        if watch:
            raise typer.BadParameter("give the NAME of the job to watch")
        wrong: list[Unreadable] = []
        answers = jobs.all(wrong.append)
        if on.json:
            typer.echo(as_json(jobs=[answer_of(*each) for each in answers]), nl=False)
        else:
            none = "" if wrong else "no job is running\n"
            text = "".join(status_text(*each, on.now) for each in answers) or none
            typer.echo(shown(text), nl=False)
        for error in wrong:
            typer.echo(f"error: {error}: this job is left out", err=True)
        raise typer.Exit(1 if wrong else 0)
    one, before = jobs.one(name), ""
    while True:
        text = as_json(answer_of(*one)) if on.json else status_text(*one, on.now)
        if text != before:
            typer.echo(text if on.json else shown(text), nl=False)
        if one[1].outcome or not watch:
            raise typer.Exit(exit_code(one[1]))
        before = text
        time.sleep(WATCH_S)
        one = patiently(lambda: jobs.one(name), WATCH_S)


@job.command()
@on_stack
def logs(
    on: OnStack,
    name: Name,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Continue with new output.")
    ] = False,
) -> None:
    """Show the last 200 lines that a job's command has printed."""
    jobs = _jobs(on)
    if follow and on.json:
        raise typer.BadParameter("--json answers once: leave --follow out")
    if on.json:
        _say(on, *jobs.logs(name))
        return
    if follow:
        lines = jobs.logs(name, lambda: time.sleep(WATCH_S), lambda ask: patiently(ask, WATCH_S))
    else:
        lines = jobs.logs(name)
    for line in lines:
        typer.echo(shown(line))


@job.command()
@on_stack
def stop(
    on: OnStack,
    name: Name,
    now: Annotated[
        bool, typer.Option("--now", help="Stop at once and lose what is not in a checkpoint.")
    ] = False,
) -> None:
    """Stop a job at its next checkpoint, and end its machine."""
    _say(on, _jobs(on).stop(name, now=now))


@job.command()
@on_stack
def recover(
    on: OnStack,
    name: Name,
    source: Annotated[
        str, typer.Option("--from", metavar="SNAPSHOT|STEP|tags", help="The state to go back to.")
    ],
    yes: Yes = False,
) -> None:
    """Go back to an older state, or rebuild a job whose item in the table was lost."""

    def shown(text: str) -> None:
        typer.echo(text, err=True)
        confirm((), "Continue?", yes)

    _say(on, _jobs(on).recover(name, source, on.now, shown))


@job.command()
@on_stack
def fetch(
    on: OnStack,
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Folder to download to.", metavar="DIR")],
) -> None:
    """Download the newest checkpoint, and the outputs."""
    _say(on, *_jobs(on).fetch(name, folder))


@job.command()
@on_stack
def delete(on: OnStack, name: Name, yes: Yes = False) -> None:
    """Delete a job that is over, with its checkpoints, snapshots and volumes."""
    jobs = _jobs(on)
    confirm((), f"Delete {name} and everything that it left?", yes)
    _say(on, jobs.delete(name))
