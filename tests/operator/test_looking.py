"""status, explain and doctor on a stack that works: kept answers, few calls, and bad arguments."""

import json
import shlex
from collections.abc import Callable

import boto3
import pytest

from spotkeeper_operator.aws import Aws
from tests.functions.conftest import Stage, document
from tests.operator.command import answered, deploy, matches, refused, run
from tests.operator.conftest import ring, serve
from tests.worker.page import of


def test_what_explain_answers(deployed: Stage) -> None:
    del deployed
    matches("explain.txt", answered("explain", "--since", "1h"))
    matches("explain_at.txt", answered("explain", "--at", "12:15", "--rule", "backfill"))
    assert "NO TURN WORKED" not in answered("explain", "--at", "12:17"), "it is 12:18 now"


def test_two_groups_before_there_is_a_stack(deployed: Stage) -> None:
    groups = ("--spot-group", "main-spot", "--on-demand-group", "main-on-demand")
    found = {f["id"] for f in json.loads(answered("doctor", *groups, "--json"))}
    assert "no-terminate-hook" in found
    assert "nothing-wakes-it" not in found, "a document that nobody has written yet is well"


def test_a_fleet_that_sleeps_by_its_overrides_is_woken_by_the_queue_that_they_name(
    deployed: Stage,
) -> None:
    """By the line of docs/workers.md, for the stack that is there."""

    def found() -> set[str]:
        return {finding["id"] for finding in json.loads(answered("doctor", "--json"))}

    awake = {"bounds": {"spot_min": 1, "spot_max": 100, "on_demand_max": 100}}
    deployed.put("main", json.dumps(document("main", **awake)))
    deployed.put("main.overrides", '{"bounds": {"spot_min": 0}}')
    assert "nothing-wakes-it" in found()
    (line,) = of("aws ssm put-parameter")
    given = dict(zip(*[iter(shlex.split(line)[3:])] * 2, strict=True))
    assert given["--name"] == "/spotkeeper/spotkeeper/fleets/main.overrides"
    deployed.put("main.overrides", given["--value"])
    assert "nothing-wakes-it" not in found()
    (fleet,) = Aws("us-east-1").documents(Aws("us-east-1").stack("test")).fleets
    assert (fleet.request_queue_url, fleet.bounds.spot_min) == ("rabbitmq://%2F/requests", 0)


def test_exit_codes_and_calls(deployed: Stage, calls: list[str]) -> None:
    assert run("status")[0] == 1
    assert len(calls) <= 12, calls
    boto3.client("cloudwatch").delete_alarms(AlarmNames=["test-both-short"])
    assert run("status")[0] == 0
    assert run("doctor")[0] == 2
    deployed.at(deployed.cloud.now_s + 600)
    code, out, _ = run("status")
    assert code == 1
    assert "main          UNKNOWN: no availability turn has worked for 11 min" in out


def test_which_alarms_ring(deployed: Stage) -> None:
    """Checkers without a turn ring without data, and another stack's name may begin alike."""
    del deployed
    for alarm in ("checker-not-running", "errors"):
        ring(alarm, "INSUFFICIENT_DATA")
    ring("eu-both-short")
    ringing = json.loads(answered("status", "--json"))["ringing"]
    assert ringing == ["both-short", "checker-not-running"]


def test_a_stack_without_its_outputs_says_how_far_it_is(deployed: Stage) -> None:
    del deployed
    topic = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    boto3.client("cloudformation").create_stack(StackName="new", TemplateBody=topic)
    told = refused("status", "--stack", "new")
    assert told.startswith("error: stack new (CREATE_COMPLETE) has no output TableName: ")


def test_a_call_that_is_throttled_does_not_end_the_watch(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch, denied: Callable[..., None]
) -> None:
    del deployed
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            denied("DescribeStacks", "Throttling")
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("spotkeeper_cli.stack_commands.time.sleep", wait)
    code, out, err = run("status", "--watch", "10s")
    assert (code, len(waits), out.count("main-spot")) == (130, 3, 1)
    assert err.count("error: describing stack test: Throttling") == 2


def test_records_of_another_release_are_counted_not_read(deployed: Stage) -> None:
    boto3.client("dynamodb").put_item(
        TableName="spotkeeper",
        Item={
            "pk": {"S": "fleet#main"},
            "sk": {"S": f"decision#{deployed.now.isoformat()}#health#0"},
            "record": {"S": '{"fleet": "main", "controller": "third"}'},
        },
    )
    assert "main: 1 records of another release left out" in answered("status").replace("\n", "")
    assert "1 records of another release are left out" in answered("explain")
    assert "left out    1 records of another release" in answered("observe", "report")


def test_a_fleet_that_never_turned_is_unknown_not_whole(deployed: Stage) -> None:
    deployed.put("night", json.dumps(document("night")))
    out = answered("status", "--fleet", "night")
    assert "night         NOT WHOLE: night-spot and night-on-demand do not exist" in out
    assert answered("explain", "--fleet", "night") == "no decision in this time\n"


def test_a_wrong_document_is_a_trouble_and_an_error(deployed: Stage) -> None:
    deployed.put("night", '{"version": 1}')
    assert "trouble       fleet document night: bounds: Field required" in answered("status")
    assert "ERROR  wrong-document  documents" in answered("doctor")


def test_a_fleet_whose_document_is_wrong_is_named_and_not_said_to_be_unknown(
    deployed: Stage,
) -> None:
    deployed.put("main", '{"version": 1}')
    for command in ("status", "explain", "doctor", "cost"):
        told = refused(command, "--fleet", "main")
        assert told.startswith("error: fleet main has no turns: fleet document main: bounds: ")
    assert refused("mode", "main", "observe").startswith("error: fleet main has no turns: ")
    for command in ("explain", "observe report", "types"):
        code, out, err = run(*command.split())
        assert (code, err.count("fleet document main: bounds: Field required")) == (1, 1)
        assert out.strip()
        assert "this fleet is left out" in err


def test_each_fleet_counts_the_instances_of_its_own_groups(
    stage_of: Callable[..., Stage],
) -> None:
    stage = stage_of(("main", "night"), spot=((0.0, 200),))
    deploy()
    stage.at(stage.cloud.now_s + 60)
    serve(stage)
    fleets = {f["name"]: f for f in json.loads(run("status", "--json")[1])["fleets"]}
    there = {name: fleets[name]["in_service"] for name in ("main", "night")}
    assert min(there.values()) > 0
    assert fleets["main"]["load"]["workers_expected"] == there["main"]
