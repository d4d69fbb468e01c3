"""AWS as the functions find it: clients over the cloud, the table, documents and queues."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from spotkeeper_lab.chaos.stand_ins.clients import Client
from spotkeeper_lab.chaos.stand_ins.lambdas import Lambdas
from spotkeeper_lab.chaos.story.refusals import REFUSALS
from spotkeeper_lab.chaos.story.scenario import Kind, Scenario
from spotkeeper_lab.checkout import Handler
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.end_to_end.functions import AVAILABILITY
from spotkeeper_lab.local_aws.answers import Answers
from spotkeeper_lab.local_aws.dynamodb.table import Table
from spotkeeper_lab.local_aws.dynamodb.tables import Tables
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION, Answer, Respond, WireAction

MAIN, OTHER = "ocr", "search"
TABLE = "chaos"
PATH = "/spotkeeper/chaos/fleets"
WAKE_UPS = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/chaos-wake-ups"
# Of the calls and answers, while their fault lasts.
SLOW_SHARE, LOST_SHARE = 0.5, 0.15
# Parameters that tell nothing in a story.
_DULL = frozenset({"HonorCooldown", "ShouldDecrementDesiredCapacity", "HealthStatus",
                   "ShouldRespectGracePeriod"})  # fmt: skip


class Aws(Lambdas):
    """The services; what a call is about to do is looked at by the floor above."""

    def __init__(
        self,
        scenario: Scenario,
        cloud: Cloud,
        handlers: Mapping[str, Handler],
        documents: dict[str, str],
    ) -> None:
        super().__init__(scenario, cloud, handlers)
        self.table = Table()
        self.documents = documents
        self.calls = 0
        self.spares = 0
        """Spot instances beyond the need, as the main fleet's newest record has them."""
        self.other_recorded_s = 0.0

    def client(self, service: str, config: Any = None, **_: object) -> Client:
        """What boto3.client gives."""
        answers: dict[str, Callable[[], Mapping[str, Respond]]] = {
            "autoscaling": lambda: self._of(Answers(self.cloud, self.time).auto_scaling()),
            "ec2": lambda: self._of(Answers(self.cloud, self.time).ec2()),
            "dynamodb": self._of_table,
            "ssm": lambda: {"get_parameters_by_path": self._parameters},
            "sqs": lambda: {"send_message": self._send, "get_queue_attributes": self._length},
        }
        return Client(service, answers[service](), self, config)

    def latency_s(self, service: str, operation: str) -> float:
        """How long the next call takes."""
        del service, operation
        self.calls += 1
        if Kind.SLOW in self.active and self.rng.random() < SLOW_SHARE:
            return self.rng.uniform(0.5, 8.0)
        return self.rng.uniform(0.01, 0.08)

    def refusal(self, service: str, operation: str) -> tuple[str, str] | None:
        """AWS's code and message where it refuses the next call."""
        for kind, refuse in REFUSALS.items():
            fault = self.active.get(kind)
            if fault and (refused := refuse(fault, service, operation, self.rng)):
                return refused
        return None

    def loses_answer(self, service: str, operation: str) -> bool:
        """Whether the next answer is lost on its way."""
        del service, operation
        return Kind.ANSWERS_LOST in self.active and self.rng.random() < LOST_SHARE

    def _of(self, actions: Mapping[str, WireAction]) -> dict[str, Respond]:
        return {name: self._acting(name, action) for name, action in actions.items()}

    def _acting(self, name: str, respond: Respond) -> Respond:
        if name.startswith("describe"):
            return respond

        def act(params: Mapping[str, Any]) -> Answer:
            function = self._current.function if self._current else ""
            self._acts(name, params, function)
            asked = ", ".join(str(value) for key, value in params.items() if key not in _DULL)
            try:
                answer = respond(params)
            except CloudError as refused:
                self.tell(f"  {function}: {name} {asked}: {refused}")
                raise
            self.tell(f"  {function}: {name} {asked}")
            return answer

        return act

    def _of_table(self) -> dict[str, Respond]:
        answers = Tables({TABLE: self.table}).answers()
        put = answers["put_item"]

        def put_item(params: Mapping[str, Any]) -> Answer:
            self._recorded(params["Item"])
            return put(params)

        return {**answers, "put_item": put_item}

    def _recorded(self, item: Mapping[str, Any]) -> None:
        if not item["sk"]["S"].startswith("decision#"):
            return
        fleet = item["pk"]["S"].removeprefix("fleet#")
        if self._current:
            self._current.recorded.add(fleet)
        if fleet == OTHER:
            self.other_recorded_s = self.now_s
            return
        record = json.loads(item["record"]["S"])
        self.spares = int(record["seen"].get("SpotSpare", self.spares))
        if record["action"] != "hold" or record["alarms"]:
            self.tell(
                f"{record['controller']} {record['action']} ({record['rule']}): {record['reason']}"
            )

    def _parameters(self, _: Mapping[str, Any]) -> Answer:
        return {
            "Parameters": [
                {"Name": f"{PATH}/{name}", "Type": "String", "Value": text, "Version": 1}
                for name, text in self.documents.items()
            ]
        }

    def _send(self, params: Mapping[str, Any]) -> Answer:
        record = {
            "messageId": f"wake-up-{self._entered}",
            "receiptHandle": "x",
            "body": params["MessageBody"],
            "attributes": {"ApproximateReceiveCount": "1"},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:chaos-wake-ups",
            "awsRegion": REGION,
        }
        at_s = self.now_s + float(params.get("DelaySeconds", 0))
        self.enter(at_s, lambda: self.invoke(AVAILABILITY, {"Records": [record]}))
        return {"MessageId": record["messageId"]}

    def _length(self, _: Mapping[str, Any]) -> Answer:
        waiting, in_flight = self._requests()
        counts = {"": waiting, "Delayed": 0, "NotVisible": in_flight}
        return {
            "Attributes": {f"ApproximateNumberOfMessages{k}": str(n) for k, n in counts.items()}
        }

    def _acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        """Look at what a call asks for, before it has its effect."""
        raise NotImplementedError

    def _requests(self) -> tuple[int, int]:
        """How many requests wait, and how many are in flight."""
        raise NotImplementedError
