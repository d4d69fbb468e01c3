"""AWS Fault Injection Service for tests: botocore's model checks every call and every answer.

moto has no FIS. What an experiment does is done to the simulated cloud: the instances are warned,
and taken two minutes later.
"""

from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from spotkeeper_operator.aws import Aws
from spotkeeper_operator.drill import ACTION
from tests.functions.conftest import ACCOUNT, Stage

ROLE = f"arn:aws:iam::{ACCOUNT}:role/test-drill"
TEMPLATE, EXPERIMENT = "EXT1a2b3c4d5e6f7", "EXPHa1b2c3d4e5f6"
NOTICE_S = 120.0
LOOKS = 400


class Experiments:
    """One experiment: what is asked of FIS, in this order, and what the cloud then does."""

    def __init__(self, stage: Stage, stack: str) -> None:
        self.client = boto3.client("fis", region_name="us-east-1")
        self.stub = Stubber(self.client)
        self.instances: list[str] = []
        self._stage, self._tags = stage, {"spotkeeper": stack}
        self.client.meta.events.register("before-parameter-build.fis.StartExperiment", self._begin)

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have commands ask this instead of a client of FIS."""
        make: Any = Aws.client

        def client(aws: Aws, service: str, *more: Any, **named: Any) -> Any:
            return self.client if service == "fis" else make(aws, service, *more, **named)

        monkeypatch.setattr(Aws, "client", client)

    def expect(self, *instances: str, status: str = "completed", reason: str = "") -> None:
        """Have the instances interrupted; the experiment ends so."""
        self.instances = list(instances)
        template = {"experimentTemplate": {"id": TEMPLATE, "roleArn": ROLE, "tags": self._tags}}
        self.stub.add_response("create_experiment_template", template, self._asked())
        asked = {"clientToken": ANY, "experimentTemplateId": TEMPLATE, "tags": self._tags}
        self.stub.add_response("start_experiment", self._experiment("initiating"), asked)
        self.stub.add_response("delete_experiment_template", template, {"id": TEMPLATE})
        for state in ("pending", "initiating", "running", *[status] * LOOKS):
            answer = self._experiment(state, reason)
            self.stub.add_response("get_experiment", answer, {"id": EXPERIMENT})
        self.stub.activate()

    def _begin(self, **_: object) -> None:
        at_s = self._stage.cloud.now_s + NOTICE_S
        self._stage.cloud.reclaim(self.instances, at_s)

    def _asked(self) -> dict[str, Any]:
        arns = [f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/{i}" for i in self.instances]
        return {
            "clientToken": ANY,
            "description": ANY,
            "roleArn": ROLE,
            "stopConditions": [{"source": "none"}],
            "targets": {
                "instances": {
                    "resourceType": "aws:ec2:spot-instance",
                    "resourceArns": arns,
                    "selectionMode": "ALL",
                }
            },
            "actions": {
                "interrupt": {
                    "actionId": ACTION,
                    "parameters": {"durationBeforeInterruption": "PT2M"},
                    "targets": {"SpotInstances": "instances"},
                }
            },
            "tags": self._tags,
        }

    def _experiment(self, status: str, reason: str = "") -> dict[str, Any]:
        state = {"status": status, **({"reason": reason} if reason else {})}
        return {"experiment": {"id": EXPERIMENT, "state": state}}
