"""AWS Fault Injection Service for tests: botocore's model checks every call and every answer.

moto has no FIS. What an experiment does is done to the simulated cloud: the instances are warned,
and taken two minutes later.
"""

from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.validate import ParamValidator

from tests.functions.conftest import ACCOUNT, Stage
from tests.operator.command import STACK, intercept

ROLE = f"arn:aws:iam::{ACCOUNT}:role/test-drill"
TEMPLATE, EXPERIMENT = "EXT1a2b3c4d5e6f7", "EXPHa1b2c3d4e5f6"
TAGS = {"spotkeeper": STACK}
NOTICE_S = 120.0


class Experiments:
    """One experiment of FIS: the requests, in `asked`, and what the cloud then does.

    It ends with `status`, and `reason`. `fails` are the errors of operations in place of answers.
    """

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.status, self.reason = "completed", ""
        self.fails: dict[str, Exception] = {}
        self.instances: list[str] = []
        self._stage = stage
        self._states = ["initiating", "pending", "initiating", "running"]
        intercept(monkeypatch, self._answer)

    def _answer(self, client: BaseClient, operation: str, given: Any) -> Any:
        if client.meta.service_model.service_name != "fis":
            return None
        self.asked.append(operation)
        if error := self.fails.get(operation):
            raise error
        model = client.meta.service_model.operation_model(operation)
        found = self._told(operation, given)
        for value, shape in ((given, model.input_shape), (found, model.output_shape)):
            assert shape
            wrong = ParamValidator().validate(value, shape)
            assert not wrong.has_errors(), wrong.generate_report()
        return found

    def _told(self, operation: str, given: Any) -> Any:
        if operation == "CreateExperimentTemplate":
            self._check(given)
        if "Template" in operation:
            assert given.get("id", TEMPLATE) == TEMPLATE
            return {"experimentTemplate": {"id": TEMPLATE, "roleArn": ROLE, "tags": TAGS}}
        if operation == "StartExperiment":
            assert (given["experimentTemplateId"], given["tags"]) == (TEMPLATE, TAGS)
            self._stage.cloud.reclaim(self.instances, self._stage.cloud.now_s + NOTICE_S)
        state = {"status": self._states.pop(0) if self._states else self.status}
        return {"experiment": {"id": EXPERIMENT, "state": state | {"reason": self.reason}}}

    def _check(self, given: Any) -> None:
        """Note what is to be interrupted by a template of which all else is known."""
        targets = given["targets"]["instances"]
        self.instances = [arn.rpartition("/")[2] for arn in targets["resourceArns"]]
        arns = [f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/{i}" for i in self.instances]
        assert targets == {
            "resourceType": "aws:ec2:spot-instance",
            "resourceArns": arns,
            "selectionMode": "ALL",
        }
        action = {
            "actionId": "aws:ec2:send-spot-instance-interruptions",
            "parameters": {"durationBeforeInterruption": "PT2M"},
            "targets": {"SpotInstances": "instances"},
        }
        assert given["actions"] == {"interrupt": action}
        assert given["stopConditions"] == [{"source": "none"}]
        assert (given["roleArn"], given["tags"]) == (ROLE, TAGS)
