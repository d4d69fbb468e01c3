"""`spotkeeper explain`: why it did what it did."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.errors import asked_of_aws, told
from spotkeeper_cli.options import (
    DEFAULT_STACK,
    AsJson,
    FleetName,
    Profile,
    Region,
    Report,
    Since,
    Stack,
)
from spotkeeper_cli.output import OutputError, check_outputs, tell

if TYPE_CHECKING:
    from spotkeeper_operator.decisions.explain import Decisions

# What happens around an instant explains it.
AROUND = timedelta(minutes=10)
RECENT_S = 1200.0

At = Annotated[
    str | None,
    typer.Option("--at", metavar="TIME", help="Around 15:10 or 2026-11-20T15:10 (UTC)."),
]
Rule = Annotated[str | None, typer.Option("--rule", help="Only turns that this rule bound.")]


def explain(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    at: At = None,
    since: Since = None,
    rule: Rule = None,
    json: AsJson = False,
    report: Report = None,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Tell what was seen, which rule bound, what was asked of AWS and what it answered.

    Without --at or --since: the last 20 minutes. Holds that repeat are folded.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws, OperatorError
    from spotkeeper_operator.decisions.explain import explain_json, explain_text, read_timeline
    from spotkeeper_operator.decisions.records_page import explain_page

    with asked_of_aws(), told(OutputError):
        check_outputs([report])
        first, last = _asked_time(at, since, wiring.now())
        found = read_timeline(Aws(region, profile), stack, fleet, first, last, rule)
        show = explain_json if json else explain_text
        if rule is not None and found.records and not found.entries:
            raise OperatorError(_no_such(rule, found))
        page = explain_page(found.records, first, last, rule)
        tell(show(found.entries, found.unreadable, found.holes), page, report)


def _no_such(rule: str, found: "Decisions") -> str:
    bound = ", ".join(sorted({record.rule for record in found.records}))
    return f"no turn of this time was bound by the rule {rule!r}; there were: {bound}"


def _asked_time(at: str | None, since: float | None, now: datetime) -> tuple[datetime, datetime]:
    """Name the first and last instant that was asked for."""
    from spotkeeper_operator.instants import parse_instant

    if at is not None and since is not None:
        raise typer.BadParameter("give --at or --since, not both")
    if at is None:
        return now - timedelta(seconds=RECENT_S if since is None else since), now
    try:
        instant = parse_instant(at, now)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at") from error
    return instant - AROUND, instant + AROUND
