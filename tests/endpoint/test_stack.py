"""The stack's life, deployed as to AWS, with its roles enforced: one story, in order."""

import json
import textwrap
from collections.abc import Mapping
from typing import Any

import pytest

from spotkeeper_lab.faults import Kind
from tests.endpoint.conftest import (
    CHECKOUT,
    SETTINGS,
    Endpoint,
    Inventory,
    inventory,
    left,
    types,
    until,
    user_keys,
)
from tests.template.stack import ADOPT, Stack

STACK = "spotkeeper"
FLEET = ("SpotGroupName=ocr-spot", "OnDemandGroupName=ocr-on-demand", "Mode=act")
OPERATOR = "ops@example.org"
ERLANGS = 2.0
# By default a busy instance is waited for two minutes long.
IMPATIENT = {"busy_patience_s": 15}


@pytest.fixture(scope="module")
def deployer(endpoint: Endpoint) -> dict[str, str]:
    """The keys of a user who has the permissions that docs name for CI, and no other."""
    key, secret = user_keys(endpoint, "ci", (CHECKOUT / "docs/ci-policy.json").read_text())
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}


@pytest.fixture(scope="module")
def before(endpoint: Endpoint) -> Inventory:
    return inventory(endpoint.aws)


def serving(endpoint: Endpoint, group: int) -> int:
    instances = endpoint.look("state")["groups"][group]["instances"]
    return sum(one["state"] == "InService" and not one["draining"] for one in instances)


def desired(endpoint: Endpoint, group: int) -> int:
    return int(endpoint.look("state")["groups"][group]["desired"])


def outputs(endpoint: Endpoint) -> dict[str, str]:
    (stack,) = endpoint.aws("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
    return {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}


def document(endpoint: Endpoint) -> dict[str, Any]:
    name = outputs(endpoint)["FleetDocumentName"]
    found: dict[str, Any] = json.loads(
        endpoint.aws("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    )
    return found


def change_document(endpoint: Endpoint, availability: Mapping[str, object]) -> None:
    changed = document(endpoint)
    changed["availability"] |= availability
    endpoint.aws("ssm").put_parameter(
        Name=outputs(endpoint)["FleetDocumentName"], Value=json.dumps(changed), Overwrite=True
    )


def records(endpoint: Endpoint) -> list[dict[str, Any]]:
    found = endpoint.aws("dynamodb").query(
        TableName=outputs(endpoint)["TableName"],
        KeyConditionExpression="pk = :fleet AND begins_with(sk, :decision)",
        ExpressionAttributeValues={":fleet": {"S": "fleet#main"}, ":decision": {"S": "decision#"}},
    )["Items"]
    return [json.loads(one["record"]["S"]) for one in found]


def failed(endpoint: Endpoint) -> list[str]:
    sqs = endpoint.aws("sqs")
    urls = [outputs(endpoint)[key] for key in ("FailedInvocationsUrl", "SearchLogDeadLettersUrl")]
    answers = (sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10) for url in urls)
    return [message["Body"] for answer in answers for message in answer.get("Messages", [])]


def test_1_it_is_deployed_with_the_documented_permissions(
    endpoint: Endpoint, before: Inventory, deployer: dict[str, str]
) -> None:
    """By the README's own lines; then it may act."""
    text = (CHECKOUT / "README.md").read_text().partition("## Deploy it")[2]
    block = next(part for part in text.split("\n\n") if part.startswith("    make sam-build"))
    _, _, lines = textwrap.dedent(block).partition("\n")
    sam = CHECKOUT / ".venv-sam/bin"
    types(lines, endpoint.environment | deployer, sam)
    types(".venv/bin/spotkeeper mode main act --yes", endpoint.environment, sam)
    assert outputs(endpoint)["SpotGroup"] == SETTINGS.spot_group
    made = set(inventory(endpoint.aws)["functions"]) - set(before["functions"])
    assert len(made) == len(Stack.with_parameters(ADOPT).functions())


def test_2_the_load_that_workers_log_sizes_the_spot_group(endpoint: Endpoint) -> None:
    change_document(endpoint, IMPATIENT)
    endpoint.order(do="load", value=ERLANGS)

    def sized() -> bool:
        return any(
            one["controller"] == "health" and one["rule"] != "hold" for one in records(endpoint)
        )

    until(sized, within_s=300, what="a turn of the health controller")
    until(lambda: serving(endpoint, 0) > ERLANGS, within_s=120, what="spot serves")


def test_3_spot_runs_dry_and_on_demand_stands_in(endpoint: Endpoint) -> None:
    need = desired(endpoint, 0)
    endpoint.order(do="capacity", value=0)
    until(lambda: desired(endpoint, 1) >= need, within_s=120, what="a backfill")
    until(lambda: serving(endpoint, 1) >= need, within_s=120, what="on-demand serves")


def test_4_spot_is_back_and_on_demand_goes(endpoint: Endpoint) -> None:
    endpoint.order(do="capacity", value=4)
    until(lambda: serving(endpoint, 0) > ERLANGS, within_s=120, what="spot serves")
    until(lambda: desired(endpoint, 1) == 0, within_s=300, what="a release")


def test_5_a_parameter_is_changed(endpoint: Endpoint, deployer: dict[str, str]) -> None:
    endpoint.deploy(*FLEET, "OnDemandMax=7", f"AlarmEmail={OPERATOR}", **deployer)
    assert document(endpoint)["bounds"]["on_demand_max"] == 7


def test_5_an_alarm_rings_and_its_mail_arrives(endpoint: Endpoint) -> None:
    endpoint.order(do=Kind.LAUNCH_REFUSED, value=0.6, length_s=240)
    endpoint.order(do=Kind.UNWARNED_LOSS)

    def mailed() -> bool:
        mails = [one["subject"] for one in endpoint.look("mails") if one["to"] == OPERATOR]
        return any(it.startswith(f'ALARM: "{STACK}-configuration-failure"') for it in mails)

    until(mailed, within_s=240, what="a mail of the alarm")
    status = types(".venv/bin/spotkeeper status || true", endpoint.environment, CHECKOUT)
    assert "configuration-failure" in status


def test_6_nothing_failed_and_nothing_was_refused(endpoint: Endpoint) -> None:
    assert failed(endpoint) == []
    seen = endpoint.look("permissions")
    roles = {who: what for who, what in seen.items() if f"/{STACK}-" in who}
    assert len(roles) >= 4
    assert {who: what["refused"] for who, what in roles.items() if what["refused"]} == {}


def test_7_every_permission_is_used_or_known_to_be_for_worse_days(endpoint: Endpoint) -> None:
    roles = [
        what
        for who, what in endpoint.look("permissions").items()
        if who.startswith(f"role/{STACK}-")
    ]
    unused = {action for what in roles for action in what["unused"]}
    unused -= {action for what in roles for action in what["used"]}
    unused = {action for action in unused if not action.startswith(TELEMETRY)}
    assert sorted(unused - FOR_WORSE_DAYS - POLLED) == []


# The endpoint takes log lines and trace segments from a function's process, not over the wire.
TELEMETRY = ("logs:", "xray:")
# The endpoint empties a function's queue by itself, where AWS does so with the function's role.
POLLED = {"sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"}
# Each is used on a day that this story does not have, the last two when the ledger looks again.
FOR_WORSE_DAYS = {
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:ResumeProcesses",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "cloudwatch:GetMetricData",
    "ec2:DeleteTags",
    "ec2:TerminateInstances",
    "sqs:SendMessage",
    "pricing:GetProducts",
}


def test_8_it_is_deleted_and_leaves_nothing(
    endpoint: Endpoint, before: Inventory, deployer: dict[str, str]
) -> None:
    endpoint.order(do="load", value=0)
    endpoint.sam("delete", "--no-prompts", "--stack-name", STACK, **deployer)
    assert left(before, inventory(endpoint.aws)) == {}
