"""Gathers all facts: of a deployed stack, or of two groups before there is one."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache

from spotkeeper.adapters.doctor.account import account_facts, groups_elsewhere, placement_scores
from spotkeeper.adapters.doctor.groups import group_facts, metadata_defaults
from spotkeeper.adapters.doctor.jobs import job_facts
from spotkeeper.adapters.doctor.looking import Clients, look
from spotkeeper.adapters.doctor.stack import stack_facts
from spotkeeper.adapters.fleet_documents import FleetDocuments
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import Facts, known
from spotkeeper.domain.fleet import Fleet


class Doctor:
    """Looks at everything once; a fact that AWS denies is `Unseen`."""

    def __init__(self, client: Clients, now: datetime) -> None:
        """Take what makes clients, and the time; nothing is called yet."""
        self._client, self._now = cache(client), now

    def of_stack(
        self, stack: Stack, documents: FleetDocuments, fleets: Sequence[Fleet] | None = None
    ) -> Facts:
        """Look at a deployed stack, read whole, and its fleets (all, or some)."""
        chosen = documents.fleets if fleets is None else fleets
        return self._gather(chosen, tuple(map(str, documents.errors)), stack)

    def of_groups(self, fleet: Fleet) -> Facts:
        """Look at two groups that are to be a fleet, and at the account."""
        return self._gather([fleet])

    def _gather(
        self, fleets: Sequence[Fleet], wrong: tuple[str, ...] = (), stack: Stack | None = None
    ) -> Facts:
        client = self._client
        named = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
        defaults = metadata_defaults(client("ec2"))
        groups = group_facts(client, named, defaults)
        seen = known(groups, {})
        scores = placement_scores(client, stack.table, fleets, seen, self._now) if stack else None
        own_path = stack.documents_path if stack else None
        return Facts(
            fleets=tuple(fleets),
            wrong_documents=wrong,
            groups=groups,
            account=account_facts(client, tuple(seen.values()), scores, defaults),
            other_stacks=look(
                "ssm:GetParametersByPath", lambda: groups_elsewhere(client("ssm"), own_path)
            ),
            stack=stack_facts(client, stack, fleets) if stack else None,
            jobs=job_facts(client, stack, defaults) if stack else None,
        )
