"""The commands about regions, on a home whose other region is a second table."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from spotkeeper import wiring
from spotkeeper.adapters.doctor.stack import regions_of
from spotkeeper.adapters.regions import RegionTables
from spotkeeper.domain.doctor.facts import Unseen
from spotkeeper.domain.spread import RELEASE, Place, Report, Share
from spotkeeper_lab.aws.context import create_table
from spotkeeper_operator import regions
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.status.known import region_figures
from spotkeeper_operator.watch import Watch
from tests.functions.conftest import ACCOUNT, TABLE, Stage, document
from tests.operator.command import STACK, answered, deploy, refused, run, words

THERE = f"arn:aws:dynamodb:us-east-2:{ACCOUNT}:table/there"


@pytest.fixture
def home(deployed: Stage) -> Stage:
    """The deployed stack as a home, whose other region reports that it serves nothing."""
    client = boto3.client("dynamodb", region_name="us-east-2")
    create_table(client, "there")
    settings = {"regions": THERE, "sizing": {"enabled": False}}
    deployed.put("main", json.dumps(document("main", **settings)))
    deployed.restart()
    [fleet] = wiring.fleet_documents().fleets
    region = RegionTables("us-east-2", "there", lambda region: client)
    for _ in range(2):
        deployed.at(deployed.cloud.now_s + 60)
        region.write(fleet, region.here, Report(at=deployed.now, price=0.3, release=RELEASE))
        deployed.call(check_availability)
        deployed.call(check_health)
    return deployed


def test_regions_show_what_each_covers_and_when_that_was_known(home: Stage) -> None:
    [fleet] = json.loads(answered("regions", "--json"))["fleets"]
    here, there = fleet["regions"]
    assert (here["region"], there["region"], fleet["home"]) == (
        "us-east-1", "us-east-2", "us-east-1",
    )  # fmt: skip
    assert here["cover"] + there["cover"] == 4
    # What the home was refused is on trial there.
    assert there["ask"] - there["cover"] == 1
    assert "us-east-2" in answered("regions")
    assert "us-east-1 has refused for" in words("regions")


def test_a_region_that_is_removed_leaves_and_may_stay_after_all(home: Stage) -> None:
    told = "main: us-east-2 covers nothing: deploy without it\n"
    assert answered("region", "remove", "us-east-2") == told
    home.at(home.cloud.now_s + 60)
    home.call(check_health)
    assert "us-east-2 is leaving" in words("regions")
    assert answered("region", "add", "us-east-2") == "main: us-east-2 stays\n"
    assert "has no region eu-west-1" in refused("region", "remove", "eu-west-1")


def test_a_region_that_covers_something_gives_it_away(
    home: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def covers(places: Mapping[str, Place]) -> Any:
        return tuple(replace(one, cover=2) for one in region_figures(places))

    monkeypatch.setattr(regions, "region_figures", covers)
    told = "gives its cover of 2 away; deploy without it once `regions` shows 0"
    assert told in words("region remove us-east-2")


def test_add_says_what_a_region_lacks_and_prints_the_commands(
    home: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered("mode", "main", "observe")
    plan = json.loads(answered("region", "add", "us-west-2", "--json"))
    assert len(plan["commands"]) <= 10
    assert any("Running On-Demand G and VT instances" in one for one in plan["lacks"])
    assert "Home=us-east-1 FleetName=main Mode=observe" in plan["commands"][-2]
    assert f"Regions={THERE}," in plan["commands"][-1]
    assert "has us-east-1 already" in refused("region", "add", "us-east-1")
    assert "US-WEST-2 is not the name of a region" in refused("region", "add", "US-WEST-2")
    unknown = Unseen(action="", why="Throttled: slow down")
    monkeypatch.setattr(regions, "group_facts", lambda *_: unknown)
    assert "not known: Throttled" in refused("region", "add", "us-west-2")


@pytest.mark.parametrize(
    ("data", "commands"),
    [
        (
            {"ImageId": "ami-1", "KeyName": "my ops"},
            ["copy-image", "describe-key-pairs", "key-name 'my ops'"],
        ),
        # A parameter of AWS is in every region.
        ({"ImageId": "resolve:ssm:/aws/service/x"}, []),
    ],
)
def test_add_copies_what_the_launch_template_names(
    deployed: Stage, data: Any, commands: list[str]
) -> None:
    made = Aws().ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)
    parameters = {"LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"]}
    stack = replace(Aws().stack(STACK), parameters=parameters)
    lines = [*regions._copies(Aws(), stack, "us-west-2")]
    assert all(command in line for command, line in zip(commands, lines, strict=True))


def test_what_if_compares_public_prices(deployed: Stage) -> None:
    answer = json.loads(answered("regions", "what-if", "--with", "us-east-2", "--json"))
    assert {one["region"] for one in answer["prices"]} == {"us-east-1", "us-east-2"}
    assert answer["fleet"] == "main"
    assert (answer["hours"], answer["paid_usd"]) == (None, None)
    assert "0 h" not in words("regions what-if --with us-east-2")
    assert "mars is not the name of a region" in refused("regions", "what-if", "--with", "mars")


def test_a_stack_that_is_no_home_says_so(deployed: Stage) -> None:
    assert "no fleet of this stack has several regions" in refused("regions")
    deployed.put("main", json.dumps(document("main", home="us-west-2")))
    assert "--region us-west-2 shows main" in " ".join(refused("regions").split())
    deployed.restart()
    [fleet] = wiring.fleet_documents().fleets
    table = RegionTables("us-east-1", TABLE, lambda _: boto3.client("dynamodb"))
    table.write(fleet, table.here, Share(cover=4, ask=4, term=1, written=deployed.now))
    for minutes, is_silent in ((1, False), (16, True)):
        deployed.at(deployed.cloud.now_s + 60 * minutes)
        deployed.call(check_health)
        assert ("no share from its home us-west-2 for over 15 min" in words("status")) == is_silent


def test_every_answer_knows_regions(home: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on trial for another region is no part of what this one should have."""
    [shown] = json.loads(Watch(Aws(), STACK, None, lambda: home.now)._state())["fleets"]
    assert [row[0] for row in shown["status"]["rows"] if "cover" in row[1]] == [
        "us-east-1", "us-east-2",
    ]  # fmt: skip
    records = Aws().records(Aws().stack(STACK)).newest("main", 20)
    assert [*dict(regions_of({"main": records}))] == ["us-east-1", "us-east-2"]
    cost = json.loads(run("cost", "--json")[1])
    assert "there is no stack test in us-east-2" in str(cost["troubles"])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    deploy(TableName="there")
    monkeypatch.undo()
    assert json.loads(run("cost", "--json")[1])["regions_usd"] == {"us-east-2": 0.0}
    assert "elsewhere us-east-2 0.00" in " ".join(run("cost")[1].split())
    [fleet] = json.loads(answered("status", "--json"))["fleets"]
    assert [one["region"] for one in fleet["regions"]] == ["us-east-1", "us-east-2"]
    assert fleet["wanted"] == fleet["regions"][0]["cover"]
    assert "us-east-2 cover" in words("status")
    assert "cover of ask in each region: us-east-1" in words("explain --since 5m")


def test_the_next_turns_of_a_home_are_known_and_leave_no_trace(home: Stage, tmp_path: Path) -> None:
    file, client = tmp_path / "main.overrides.json", boto3.client("dynamodb")
    file.write_text(json.dumps({"bounds": {"spot_min": 6}}))
    before = client.scan(TableName=TABLE)["Items"]
    turns = run("fleet", "apply", str(file))[2]
    assert client.scan(TableName=TABLE)["Items"] == before
    assert turns.count("is not known") == 0
    assert "main-spot: desired 6" in turns
