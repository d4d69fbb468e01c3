"""What is wrong? The findings about a stack, or about two groups before there is one."""

import re
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from botocore.exceptions import ClientError

from spotkeeper.adapters.doctor.doctor import facts_of
from spotkeeper.adapters.errors import CREDENTIAL_CODES, aws_errors
from spotkeeper.adapters.stacks import StackReader
from spotkeeper.domain.doctor.checks import (
    ACCOUNT_CHECKS,
    GROUP_CHECKS,
    JOB_CHECKS,
    STACK_CHECKS,
    TEMPLATE_CHECKS,
    Check,
    examine,
)
from spotkeeper.domain.doctor.finding import Finding, Severity
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.sizing import Bounds
from spotkeeper.ports import Refused
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.text import labelled, paragraphs, width


def examine_stack(
    aws: Aws, stack_name: str, fleet: str | None, now: datetime
) -> tuple[Finding, ...]:
    """Examine a deployed stack; raises `Gone` for an unknown one."""
    stack = StackReader(aws.cloudformation).whole(stack_name)
    documents = aws.documents(stack)
    return examine(facts_of(aws.client, now, chosen(documents, fleet), documents.errors, stack))


def examine_groups(
    aws: Aws,
    spot_group: str,
    on_demand_group: str,
    spot_max: int,
    on_demand_max: int,
    now: datetime,
) -> tuple[Finding, ...]:
    """Examine two groups that are to be adopted, and the account, before anything is deployed.

    Raises `FleetError` where AWS does not answer at all.
    """
    try:
        with aws_errors("describing both groups"):
            groups = [spot_group, on_demand_group]
            aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=groups)
    except Refused as error:
        # Without credentials every fact would be unseen, each for the same reason.
        cause = error.__cause__
        if isinstance(cause, ClientError) and cause.response["Error"]["Code"] in CREDENTIAL_CODES:
            raise
    fleet = Fleet(
        name="main",
        spot_group=spot_group,
        on_demand_group=on_demand_group,
        # As the template's parameters are where nobody gives others.
        bounds=Bounds(spot_min=1, spot_max=spot_max, on_demand_max=on_demand_max),
    )
    return examine(facts_of(aws.client, now, [fleet]))


HANG = 9
COMMAND = re.compile(r"^(?:aws|spotkeeper) ")
# Not within what is quoted.
_BEFORE_AN_OPTION = re.compile(r""" (?=--(?:[^'"]*(?:'[^']*'|"[^"]*"))*[^'"]*$)""")
TABLES: Sequence[tuple[str, Sequence[Check[object]]]] = (
    ("Account, documents and logs", ACCOUNT_CHECKS),
    ("Groups and launch templates", GROUP_CHECKS + TEMPLATE_CHECKS),
    ("The deployed stack", STACK_CHECKS),
    ("Jobs", JOB_CHECKS),
)  # type: ignore[assignment]
PAGE = """# What the doctor finds

`spotkeeper doctor` looks at the account, the groups, and, with a stack, at what is deployed. The
function `examine_account` does the same once a day. This page lists every finding. It is generated
(`make docs`).

* An **error** means that the fleet will not keep its promise; the exit code is 2.
* A **warning** means that it will, but not on a bad day; the exit code is 1.
* **Unknown** means that the doctor could not check something, for example because a permission is
  missing. It never counts that as good; the exit code is 1.
"""


def doctor_text(findings: Sequence[Finding]) -> str:
    """List what is wrong and how to fix it, the worst first."""
    blocks = [
        [
            f"{finding.severity.upper()}  {finding.id}  {finding.about}",
            *labelled("seen", finding.evidence, hang=HANG),
            *_fix(finding.fix),
        ]
        for finding in findings
    ]
    if all(finding.severity is Severity.NOTE for finding in findings):
        return paragraphs([*blocks, ["nothing is wrong"]])
    counts = {s: sum(f.severity is s for f in findings) for s in Severity}
    summed = (
        f"{count} {severity.value}{'s' * (count > 1 and severity is not Severity.UNKNOWN)}"
        for severity, count in counts.items()
        if count
    )
    return paragraphs([*blocks, [", ".join(summed)]])


def _fix(fix: str) -> Iterator[str]:
    """Lay a fix out; a command can be pasted as it is, over several lines."""
    head = "  fix".ljust(HANG)
    for line in fix.split("\n"):
        if not COMMAND.match(line):
            yield from labelled(head.strip(), line, hang=HANG)
        else:
            # Broken before its options, where it is too long, so that a shell reads it whole.
            shown = head
            for number, part in enumerate(_BEFORE_AN_OPTION.split(line)):
                if number and len(shown) - HANG + 1 + len(part) > width() - HANG - 2:
                    yield f"{shown} \\"
                    shown = f"{' ' * HANG}  {part}"
                else:
                    shown += f" {part}" if number else part
            yield shown
        head = " " * HANG


def findings_page() -> str:
    """The page of every finding, by the tables of checks."""
    parts = [PAGE]
    for title, checks in TABLES:
        parts += [f"## {title}", "", "| finding | | means | fix |", "|---|---|---|---|"]
        parts += (
            f"| `{c.id}` | {c.severity} | {_cell(c.evidence)} | {_cell(c.fix)} |" for c in checks
        )
        parts.append("")
    return "\n".join(parts)


# What stands in texts for what a check found.
_WHOLE = {
    "{it}": "the problem",
    "{it[what]}": "what could not be read, and why",
    "{it[fix]}": "what it says: often a permission",
}
_NAMES = {"{most}": "the bound", "{group.name!q}": "GROUP", "{fleet.name}": "the fleet"}


def _cell(text: str) -> str:
    if text in _WHOLE:
        return _WHOLE[text]
    for name, shown in _NAMES.items():
        text = text.replace(name, shown)
    return " ".join(
        f"`{line}`" if COMMAND.match(line) else line
        for line in re.sub(r"\{[A-Za-z_.\[\]0-9:%!]+\}", "...", text).split("\n")
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(findings_page(), encoding="utf-8")
