"""The doctor's eyes put together: on a deployed stack, or on groups before there is one."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from spotkeeper.adapters.doctor.account import AccountClients
from spotkeeper.adapters.doctor.gather import DoctorClients, gather
from spotkeeper.adapters.doctor.groups import GroupClients
from spotkeeper.adapters.doctor.scores import PlacementScores
from spotkeeper.adapters.doctor.stack import StackClients
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.fleet_documents import FleetDocuments
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import Facts
from spotkeeper.domain.fleet import Fleet

type Clients = Callable[[str], Any]
"""Makes a client of a service, by its boto3 name."""


class Doctor:
    """Looks at everything once; what is denied is `Unseen`."""

    def __init__(self, client: Clients, now: datetime) -> None:
        """Take what makes clients, and the time; nothing is called yet."""
        self._client, self._now = client, now

    def of_stack(
        self, stack: Stack, documents: FleetDocuments, fleets: Sequence[Fleet] | None = None
    ) -> Facts:
        """Look at a deployed stack, read whole, and its fleets (all, or some)."""
        dynamodb = self._client("dynamodb")
        clients = self._clients(
            StackClients(
                scheduler=self._client("scheduler"),
                events=self._client("events"),
                functions=self._client("lambda"),
                sns=self._client("sns"),
                alarms=self._client("cloudwatch"),
                records=DecisionRecords(dynamodb, stack.table),
                scores=PlacementScores(
                    ec2=self._client("ec2"), dynamodb=dynamodb, table=stack.table
                ),
            )
        )
        looked = documents.fleets if fleets is None else fleets
        return gather(clients, looked, self._now, documents, stack)

    def of_groups(self, fleet: Fleet) -> Facts:
        """Look at two groups that are to be a fleet, and at the account."""
        return gather(self._clients(), [fleet], self._now)

    def _clients(self, stack: StackClients | None = None) -> DoctorClients:
        ec2, iam = self._client("ec2"), self._client("iam")
        return DoctorClients(
            groups=GroupClients(autoscaling=self._client("autoscaling"), ec2=ec2, iam=iam),
            account=AccountClients(
                quotas=self._client("service-quotas"),
                ec2=ec2,
                iam=iam,
                functions=self._client("lambda"),
                kms=self._client("kms"),
            ),
            ssm=self._client("ssm"),
            stack=stack,
        )
