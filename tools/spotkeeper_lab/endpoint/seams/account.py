"""What the simulated cloud answers in ministack's place, and what it tells its services."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from spotkeeper_lab.endpoint.seams.release import module

type Headers = Mapping[str, str]
type Response = tuple[int, dict[str, str], bytes]
type Answering = Callable[[str, bytes], Response | None]
"""Answers one call of a service from its body, or leaves it to ministack."""


def answer_instead(service: str, answering: Answering) -> None:
    """Let calls of a query service be answered elsewhere first."""
    target = module(f"services.{service}")
    original: Callable[..., Awaitable[Response]] = target.handle_request

    async def handle(
        method: str, path: str, headers: Headers, body: bytes, query: dict[str, Any]
    ) -> Response:
        response = await asyncio.to_thread(answering, service, body)
        return response or await original(method, path, headers, body, query)

    target.handle_request = handle


def provision(kind: str, **handlers: Callable[..., Any]) -> None:
    """Let CloudFormation make, change and delete a kind of resource by these."""
    known = module("services.cloudformation.provisioners")
    registry = known._RESOURCE_HANDLERS
    registry[kind] = dict(handlers)


def zone_of(subnet: str) -> str:
    """The zone of a subnet; raises KeyError for one that is not there."""
    return str(module("services.ec2")._subnets[subnet]["AvailabilityZone"])


def put_event(event: Mapping[str, Any]) -> None:
    """Put an event of AWS itself on the default bus."""
    entry = {
        "Source": event["source"],
        "DetailType": event["detail-type"],
        "Detail": json.dumps(event["detail"]),
        "Resources": event["resources"],
    }
    module("services.eventbridge")._put_events({"Entries": [entry]}, allow_aws_source=True)


def send_messages(queue: str, bodies: Sequence[str], *, whole: bool = False) -> None:
    """Send messages to a queue by its `whole` name, or to each of a logical name in any stack."""
    sqs = module("services.sqs")
    for url in sqs._act_list_queues({}, "").get("QueueUrls", ()) if bodies else ():
        if url.rpartition("/")[2] == queue if whole else f"-{queue}-" in url:
            for body in bodies:
                sqs._act_send_message({"QueueUrl": url, "MessageBody": body}, url)


def alarms_of_expressions() -> None:
    """CloudFormation makes alarms on metric math, which ministack keeps and never evaluates."""
    known = module("services.cloudformation.provisioners")
    original = known._cw_metric_alarm_record

    def record(name: str, props: dict[str, Any]) -> Any:
        if not props.get("Metrics"):
            return original(name, props)
        plain = {key: value for key, value in props.items() if key != "Metrics"}
        made = original(name, plain | {"MetricName": "expression", "Namespace": "expression"})
        return made | {"Metrics": props["Metrics"]}

    known._cw_metric_alarm_record = record


def keep_parameters(parameters: Mapping[str, str]) -> None:
    """Keep parameters of AWS's own, under names that it refuses to everybody else."""
    ssm = module("services.ssm")
    refusing, ssm._reserved_name_error = ssm._reserved_name_error, lambda _name: None
    for name, value in parameters.items():
        ssm._put_parameter({"Name": name, "Value": value, "Type": "String"})
    ssm._reserved_name_error = refusing
