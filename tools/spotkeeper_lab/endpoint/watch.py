"""What the page of a lab shows of the stack in it: read through the ports, as of a real stack."""

from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config

from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.fleet_documents import FleetDocumentStore
from spotkeeper.adapters.stacks import StackReader
from spotkeeper.ports import FleetError, Gone
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION
from spotkeeper_operator.status.page import DECISIONS_SHOWN, picture

STACK = "spotkeeper"
CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5)


class Watch:
    """Looks at a stack of the endpoint that it is a part of."""

    def __init__(self, url: str, stack: str = STACK) -> None:
        self._url = url
        self._stack = stack

    def look(self) -> dict[str, object]:
        """The page's picture, or why there is none."""
        try:
            stack = StackReader(self._client("cloudformation")).outputs(self._stack)
            store = FleetDocumentStore(self._client("ssm"), stack.documents_path)
            records = DecisionRecords(self._client("dynamodb"), stack.table)
            return picture(
                store.load().fleets,
                AutoScalingReader(self._client("autoscaling"), self._client("ec2")),
                lambda fleet: records.newest(fleet, DECISIONS_SHOWN).records,
            )
        except Gone:
            return {"fleets": [], "why": f"no stack {self._stack} is deployed yet"}
        except FleetError as error:
            return {"fleets": [], "why": str(error)}

    @cached_property
    def _session(self) -> Any:
        return boto3.session.Session(
            aws_access_key_id=ACCOUNT, aws_secret_access_key="test", region_name=REGION
        )

    @cached_property
    def _clients(self) -> dict[str, Any]:
        return {}

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._session.client(
                service, endpoint_url=self._url, config=CONFIG
            )
        return self._clients[service]
