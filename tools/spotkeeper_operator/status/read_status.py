"""Reads what a status needs: stack, documents, groups, alarms, and a call a fleet."""

from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import FleetError
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.status.status import FleetStatus, StackStatus, fleet_status

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack

# The last change is looked for in so many turns: about two and a half hours of both controllers.
RECORDS_READ = 300
# The alarms of template.yaml.
ALARMS = frozenset({
    "both-short", "configuration-failure", "doctor", "errors", "failed-invocations",
    "oldest-message", "on-demand-too-long", "onprem-workers", "paused-too-long",
    "request-queue-unread", "search-log-dead-letters", "search-logs-lost", "shortfall-unfilled",
    "silent", "stale-search-logs", "throttles",
})  # fmt: skip
# Of checkers that have no turn at all there is no data.
NOT_HEARD_OF = ("silent", "INSUFFICIENT_DATA")


def read_status(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> StackStatus:
    """Read a stack's status; what could not be read is among its troubles.

    Raises `Gone` for an unknown stack and `OperatorError` for an unknown fleet.
    """
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    fleets = chosen(documents, fleet)
    troubles = [str(error) for error in documents.errors]
    names = [n for f in fleets for n in (f.spot_group, f.on_demand_group)]
    groups = AutoScalingReader(aws.autoscaling, aws.ec2).describe(names) if names else {}
    statuses: list[FleetStatus] = []
    for each in fleets:
        found = aws.records(stack).newest(each.name, RECORDS_READ)
        if found.unreadable:
            troubles.append(f"{each.name}: {found.unreadable} records of another release left out")
        control = ControlTable(aws.dynamodb, stack.table).of(each.name)
        statuses.append(fleet_status(each, groups, found.records, control, now))
    ringing = _ringing(aws, stack, troubles)
    return StackStatus(
        stack=stack.name,
        region=aws.region,
        at=now,
        fleets=tuple(statuses),
        ringing=ringing,
        troubles=tuple(troubles),
    )


def _ringing(aws: Aws, stack: "Stack", troubles: list[str]) -> tuple[str, ...]:
    """List the stack's alarms that ring; an operator who may not see them is told so.

    The name of another stack, and so those of its alarms, may begin as this one's does.
    """
    prefix = f"{stack.name}-"
    pages = aws.cloudwatch.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix)
    try:
        with aws_errors("cloudwatch:DescribeAlarms"):
            found = [alarm for page in pages for alarm in page["MetricAlarms"]]
            states = {one["AlarmName"].removeprefix(prefix): one["StateValue"] for one in found}
            return tuple(name for name, state in states.items() if _rings(name, state))
    except FleetError as error:
        troubles.append(f"alarms are not known: {error}")
        return ()


def _rings(name: str, state: str) -> bool:
    return name in ALARMS and (state == "ALARM" or (name, state) == NOT_HEARD_OF)
