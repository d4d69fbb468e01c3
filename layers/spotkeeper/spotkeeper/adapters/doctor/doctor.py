"""Gathers all facts: of a deployed stack, or of two groups before there is one."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache

from spotkeeper.adapters.doctor.account import account_facts, groups_elsewhere, placement_scores
from spotkeeper.adapters.doctor.groups import group_facts, metadata_defaults
from spotkeeper.adapters.doctor.jobs import job_facts
from spotkeeper.adapters.doctor.looking import Clients, look
from spotkeeper.adapters.doctor.stack import stack_facts
from spotkeeper.adapters.fleet_documents import WrongFleetDocument
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import Facts, known
from spotkeeper.domain.fleet import Fleet


def facts_of(
    client: Clients,
    now: datetime,
    fleets: Sequence[Fleet],
    errors: Sequence[Exception] = (),
    stack: Stack | None = None,
) -> Facts:
    """Look once at fleets and at the stack that has them, read whole.

    Without a stack, look at groups that are to be a fleet. A fact that AWS denies is `Unseen`.
    """
    client = cache(client)
    named = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    defaults = metadata_defaults(client("ec2"))
    groups = group_facts(client, named, defaults)
    existing = known(groups, {})
    scores = placement_scores(client, stack.table, fleets, existing, now) if stack else None
    own_path = stack.documents_path if stack else None
    return Facts(
        fleets=tuple(fleets),
        # Those that nobody may read are unseen, as what was set by hand.
        wrong_documents=tuple(str(e) for e in errors if isinstance(e, WrongFleetDocument)),
        groups=groups,
        account=account_facts(client, tuple(existing.values()), scores, defaults),
        other_stacks=look(
            "ssm:GetParametersByPath", lambda: groups_elsewhere(client("ssm"), own_path)
        ),
        stack=stack_facts(client, stack, fleets) if stack else None,
        jobs=job_facts(client, stack, defaults) if stack else None,
    )
