"""All facts together: of a deployed stack, or of two groups before there is one."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spotkeeper.adapters.doctor.account import AccountClients, account_facts
from spotkeeper.adapters.doctor.groups import GroupClients, group_facts
from spotkeeper.adapters.doctor.looking import look
from spotkeeper.adapters.doctor.machines import metadata_defaults
from spotkeeper.adapters.doctor.other_stacks import groups_elsewhere
from spotkeeper.adapters.doctor.stack import StackClients, stack_facts
from spotkeeper.adapters.fleet_documents import FleetDocuments
from spotkeeper.domain.doctor.facts import Facts, Unseen

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from mypy_boto3_ssm import SSMClient

    from spotkeeper.adapters.stacks import Stack
    from spotkeeper.domain.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorClients:
    """The services that the doctor asks; `stack` is for a deployed one."""

    groups: GroupClients
    account: AccountClients
    ssm: "SSMClient"
    stack: StackClients | None = None


def gather(
    clients: DoctorClients,
    fleets: "Sequence[Fleet]",
    now: "datetime",
    documents: FleetDocuments | None = None,
    stack: "Stack | None" = None,
) -> Facts:
    """Look at everything once; what is denied is `Unseen`."""
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    defaults = metadata_defaults(clients.groups.ec2)
    groups = group_facts(replace(clients.groups, metadata_defaults=defaults), names)
    known = {} if isinstance(groups, Unseen) else groups
    scores = clients.stack.scores.of(fleets, known, now) if clients.stack else None
    own_path = stack.documents_path if stack else None
    return Facts(
        fleets=tuple(fleets),
        wrong_documents=tuple(str(error) for error in documents.errors) if documents else (),
        groups=groups,
        account=account_facts(clients.account, tuple(known.values()), scores, defaults),
        other_stacks=look(
            "ssm:GetParametersByPath", lambda: groups_elsewhere(clients.ssm, own_path)
        ),
        stack=stack_facts(clients.stack, stack, fleets) if clients.stack and stack else None,
    )
