"""Interruptions by AWS Fault Injection Service: an experiment template that lives for one start."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from spotkeeper.adapters.errors import aws_errors
from spotkeeper_operator.aws import OperatorError

if TYPE_CHECKING:
    from mypy_boto3_fis import FISClient

ACTION = "aws:ec2:send-spot-instance-interruptions"
# The shortest that FIS takes: the warning comes at once, the end two minutes later.
NOTICE = "PT2M"
TAG = "spotkeeper"
_ENDED_BADLY = frozenset({"failed", "stopped", "cancelled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """The role that FIS takes on, of which the account and the partition can be read."""

    arn: str

    def instance(self, instance_id: str, region: str) -> str:
        """Name an instance of its account as an ARN."""
        _, partition, _, _, account, _ = self.arn.split(":", 5)
        return f"arn:{partition}:ec2:{region}:{account}:instance/{instance_id}"


class Interruptions:
    """Starts interruptions, and says how they go."""

    def __init__(self, fis: "FISClient", stack: str) -> None:
        """Take a typed client, and the stack's name, with which everything made is tagged."""
        self._fis = fis
        self._tags = {TAG: stack}

    def start(self, role: Role, instance_ids: Sequence[str]) -> str:
        """Interrupt these instances; answers the experiment's id. No template is left behind."""
        region = self._fis.meta.region_name
        with aws_errors("fis:CreateExperimentTemplate"):
            template = self._fis.create_experiment_template(
                clientToken=str(uuid4()),
                description="A drill of Spotkeeper",
                roleArn=role.arn,
                stopConditions=[{"source": "none"}],
                targets={
                    "instances": {
                        "resourceType": "aws:ec2:spot-instance",
                        "resourceArns": [role.instance(i, region) for i in instance_ids],
                        "selectionMode": "ALL",
                    }
                },
                actions={
                    "interrupt": {
                        "actionId": ACTION,
                        "parameters": {"durationBeforeInterruption": NOTICE},
                        "targets": {"SpotInstances": "instances"},
                    }
                },
                tags=self._tags,
            )["experimentTemplate"]["id"]
        try:
            with aws_errors("fis:StartExperiment"):
                started = self._fis.start_experiment(
                    clientToken=str(uuid4()), experimentTemplateId=template, tags=self._tags
                )
            return started["experiment"]["id"]
        finally:
            # An experiment that runs goes on without its template.
            with aws_errors("fis:DeleteExperimentTemplate"):
                self._fis.delete_experiment_template(id=template)

    def check(self, experiment: str) -> str:
        """Answer the experiment's status; raises `OperatorError` when it ended badly."""
        with aws_errors("fis:GetExperiment"):
            state = self._fis.get_experiment(id=experiment)["experiment"]["state"]
        if state["status"] in _ENDED_BADLY:
            reason = state.get("reason") or "no reason given"
            raise OperatorError(f"experiment {experiment} {state['status']}: {reason}")
        return state["status"]
