"""Errors as a command line tells them: one sentence, exit code 2, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def told(*kinds: type[Exception]) -> Iterator[None]:
    """End with code 2 and `error: ...` for the kinds of error that a user can mend."""
    try:
        yield
    except kinds as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@contextmanager
def asked_of_aws() -> Iterator[None]:
    """Do the same for all that can go wrong between a command and AWS."""
    from botocore.exceptions import BotoCoreError, ClientError

    from spotkeeper.ports import FleetError
    from spotkeeper_operator.aws import OperatorError

    with told(BotoCoreError, ClientError, FleetError, OperatorError):
        try:
            yield
        except UnicodeEncodeError as error:
            raise OperatorError("an argument is not valid UTF-8 text: type it again") from error
