"""One fleet in two regions: no spot at home, a partition, a home that is gone; and what a role may.

Each region has its own stack. Turns are invoked one after another, beside those of the schedules.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from spotkeeper import wiring
from spotkeeper_lab.aws.wire import REGION
from spotkeeper_lab.run.up import ELSEWHERE
from tests.endpoint.conftest import CHECKOUT, Endpoint, create_function, typed, types, until
from tests.endpoint.test_stack import FLEET, STACK, desired, serving

# What `region add` leaves to the reader.
THERE = {
    "THE-SPOT-GROUP-THERE": f"ocr-spot-{ELSEWHERE}",
    "THE-ON-DEMAND-GROUP-THERE": f"ocr-on-demand-{ELSEWHERE}",
}
SAM = CHECKOUT / ".venv-sam/bin"
NEED = 3


class Regions:
    """The stacks of both regions."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.resource = cache(self._resource)

    def _resource(self, region: str, name: str) -> str:
        stacks = self.endpoint.aws("cloudformation", region)
        found = stacks.describe_stack_resource(StackName=STACK, LogicalResourceId=name)
        return str(found["StackResourceDetail"]["PhysicalResourceId"])

    def turn(self, *regions: str) -> None:
        """Have both turns of each region now; those of home are first."""
        for region in regions or (REGION, ELSEWHERE):
            for name in ("CheckAvailability", "CheckHealth", "CheckAvailability"):
                function = self.resource(region, name)
                self.endpoint.aws("lambda", region).invoke(FunctionName=function, Payload=b"{}")

    def known(self) -> dict[str, Any]:
        """What the home knows of each region; nothing before a turn has divided the need."""
        done = typed(".venv/bin/spotkeeper regions --json", self.endpoint.environment, SAM)
        fleets = json.loads(done.stdout)["fleets"] if done.returncode == 0 else [{"regions": ()}]
        return {one["region"]: one for one in fleets[0]["regions"]}

    def items(self, region: str, pk: str) -> list[Any]:
        found = self.endpoint.aws("dynamodb", region).query(
            TableName=self.resource(region, "Table"),
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": pk}},
        )
        items: list[Any] = found["Items"]
        return items

    def share(self) -> dict[str, Any]:
        """The share of the other region."""
        [item] = [one for one in self.items(ELSEWHERE, "region#main") if one["sk"]["S"] == "share"]
        share: dict[str, Any] = json.loads(item["said"]["S"])
        return share


@pytest.fixture(scope="module")
def regions(endpoint: Endpoint) -> Iterator[Regions]:
    """Added as a user adds a region: by the commands that `region add` prints."""
    both = Regions(endpoint)
    endpoint.deploy(*FLEET, "SizeByLoad=false")
    for left in (2, 1):
        add = f".venv/bin/spotkeeper region add {ELSEWHERE} --json"
        plan = json.loads(types(add, endpoint.environment, SAM))
        assert len(plan["commands"]) == left
        command = plan["commands"][0]
        for theirs, mine in THERE.items():
            command = command.replace(theirs, mine)
        types(f"{command} --no-confirm-changeset", endpoint.environment, SAM)
    yield both
    endpoint.order(do="load", value=0)
    endpoint.order(do="capacity", value=4)
    for region in (REGION, ELSEWHERE):
        endpoint.sam("delete", "--no-prompts", "--stack-name", STACK, "--region", region)


def test_1_the_home_knows_both(regions: Regions) -> None:
    def both() -> bool:
        regions.turn()
        known = regions.known()
        return {r for r, one in known.items() if one["known_at"] and not one["state"]} == {
            REGION, ELSEWHERE,
        }  # fmt: skip

    until(both, within_s=120, what="reports of both regions")
    assert {r: one["cover"] for r, one in regions.known().items()} == {REGION: NEED, ELSEWHERE: 0}


def test_2_what_the_home_loses_the_other_region_serves_on_spot(regions: Regions) -> None:
    endpoint = regions.endpoint
    endpoint.order(do="load", value=1)
    endpoint.order(do="capacity", value=0, region=REGION)

    def moved() -> bool:
        regions.turn()
        return serving(endpoint, 2) == NEED and desired(endpoint, 1) == 0

    until(moved, within_s=400, what="spot elsewhere serves, and on-demand is gone")
    assert regions.share()["cover"] == NEED

    def counted() -> bool:
        return bool(regions.items(REGION, f"load#main@{ELSEWHERE}"))

    until(counted, within_s=120, what="digests of the other region at home")


def test_3_a_partition_moves_nothing(regions: Regions) -> None:
    regions.endpoint.order(do="partition", length_s=60)
    before = regions.share()["written"]
    regions.turn()
    assert f"region {ELSEWHERE}: " in str(regions.items(REGION, "fleet#main"))
    assert regions.share()["written"] == before
    assert (serving(regions.endpoint, 2), desired(regions.endpoint, 1)) == (NEED, 0)


def test_4_a_home_that_is_gone_for_an_hour_loses_nothing(regions: Regions) -> None:
    """The share is as old as it would be then; the home's turns are stopped."""
    endpoint, table = regions.endpoint, regions.resource(ELSEWHERE, "Table")
    functions, dynamodb = endpoint.aws("lambda"), endpoint.aws("dynamodb", ELSEWHERE)
    health = regions.resource(REGION, "CheckHealth")
    functions.put_function_concurrency(FunctionName=health, ReservedConcurrentExecutions=0)
    old = regions.share() | {"written": (wiring.now() - timedelta(minutes=74)).isoformat()}
    dynamodb.update_item(
        TableName=table,
        Key={"pk": {"S": "region#main"}, "sk": {"S": "share"}},
        UpdateExpression="SET said = :said",
        ExpressionAttributeValues={":said": {"S": json.dumps(old)}},
    )
    regions.turn(ELSEWHERE)
    assert (serving(endpoint, 2), desired(endpoint, 2)) == (NEED, NEED)
    assert "share-expired" in str(regions.items(ELSEWHERE, "fleet#main"))
    functions.delete_function_concurrency(FunctionName=health)

    def renewed() -> bool:
        regions.turn()
        return bool(regions.share()["written"] > old["written"])

    until(renewed, within_s=120, what="the home's share")
    assert regions.share()["cover"] == NEED


def test_5_a_role_reaches_two_items_of_the_other_table(
    regions: Regions, endpoint: Endpoint
) -> None:
    """The home's of the region, and the region's of the home none."""
    source = """
        import boto3
        from botocore.exceptions import ClientError

        def handler(event, _context):
            table, said = boto3.client("dynamodb", region_name=event["region"]), {}
            name, key = {"TableName": event["table"]}, {"sk": {"S": "share"}}
            never = {"ConditionExpression": "attribute_not_exists(pk)"}
            for pk in ("region#main", "fleet#main", "load#main", "documents"):
                at, where = {"pk": {"S": pk}, **key}, {":pk": {"S": pk}}
                calls = {
                    "Query": lambda: table.query(
                        **name, KeyConditionExpression="pk = :pk", ExpressionAttributeValues=where
                    ),
                    "PutItem": lambda: table.put_item(**name, Item=at, **never),
                    "GetItem": lambda: table.get_item(**name, Key=at),
                    "DeleteItem": lambda: table.delete_item(**name, Key=at, **never),
                    "UpdateItem": lambda: table.update_item(**name, Key=at, **never),
                    "Scan": lambda: table.scan(**name),
                }
                for call, make in calls.items():
                    try:
                        make()
                        said[f"{call} {pk}"] = "allowed"
                    except ClientError as error:
                        said[f"{call} {pk}"] = error.response["Error"]["Code"]
            return said
    """
    health, functions = regions.resource(REGION, "CheckHealth"), endpoint.aws("lambda")
    deployed = functions.get_function_configuration(FunctionName=health)
    for region, other, allowed in (
        (REGION, ELSEWHERE, {"Query region#main", "PutItem region#main"}),
        (ELSEWHERE, REGION, set[str]()),
    ):
        name = f"reaches-{other}"
        roles = endpoint.aws("iam")
        role = roles.get_role(RoleName=regions.resource(region, "CheckHealthRole"))["Role"]["Arn"]
        layers = [layer["Arn"] for layer in deployed["Layers"]]
        create_function(endpoint, name, role, source, Timeout=60, Layers=layers)
        event = {"region": other, "table": regions.resource(other, "Table")}
        answer = functions.invoke(FunctionName=name, Payload=json.dumps(event))
        said = json.load(answer["Payload"])
        functions.delete_function(FunctionName=name)
        reached = {call for call, code in said.items() if code != "AccessDeniedException"}
        assert reached == allowed, said
