"""The doctor of a stack, or of two groups before there is a stack."""

from collections.abc import Sequence
from datetime import datetime

from botocore.exceptions import ClientError

from spotkeeper.adapters.doctor.doctor import Doctor
from spotkeeper.adapters.errors import CREDENTIAL_CODES, aws_errors
from spotkeeper.adapters.stacks import StackReader
from spotkeeper.domain.doctor.checks import examine
from spotkeeper.domain.doctor.finding import Finding
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.sizing import Bounds
from spotkeeper.ports import Refused
from spotkeeper_operator.aws import Aws, chosen


def examine_stack(
    aws: Aws, stack_name: str, fleet: str | None, now: datetime
) -> tuple[Finding, ...]:
    """Examine a deployed stack; raises `Gone` for an unknown one."""
    stack = StackReader(aws.cloudformation).whole(stack_name)
    documents = aws.documents(stack)
    fleets = chosen(documents, fleet)
    return examine(Doctor(aws.client, now).of_stack(stack, documents, fleets))


def examine_groups(
    aws: Aws,
    spot_group: str,
    on_demand_group: str,
    spot_max: int,
    on_demand_max: int,
    now: datetime,
) -> tuple[Finding, ...]:
    """Examine two groups that are to be adopted, and the account, before anything is deployed.

    Raises `FleetError` where AWS cannot be asked at all.
    """
    _reach(aws, [spot_group, on_demand_group])
    fleet = Fleet(
        name="main",
        spot_group=spot_group,
        on_demand_group=on_demand_group,
        # As the template's parameters are where nobody gives others.
        bounds=Bounds(spot_min=1, spot_max=spot_max, on_demand_max=on_demand_max),
    )
    return examine(Doctor(aws.client, now).of_groups(fleet))


def _reach(aws: Aws, groups: Sequence[str]) -> None:
    """Raise what comes in place of an answer, but for a permission that is missing.

    Without credentials or a way to AWS every fact would be unseen, each for the same reason.
    """
    try:
        with aws_errors("describing both groups"):
            aws.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=list(groups))
    except Refused as error:
        told = error.__cause__
        if isinstance(told, ClientError) and told.response["Error"]["Code"] in CREDENTIAL_CODES:
            raise
