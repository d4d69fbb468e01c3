"""A market out of what a running fleet left behind."""

import json
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The command imports it, too; urllib3 tries a socket then, which no test may.
import boto3
import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.domain.decision import AvailabilityFigures, Controller, DecisionRecord
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper_cli.main import app
from spotkeeper_lab.backtest.deployed import replay_of
from spotkeeper_lab.backtest.policies import deployed_settings
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.fakes import FakeStates
from spotkeeper_lab.traces.export import (
    WHOLE_POOL,
    changes_of,
    export_market,
    read_activities,
    read_records,
)
from spotkeeper_lab.traces.market import MarketFileError, market_of, read_market
from tests import builders
from tests.builders import TABLE

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

TEMPLATE = {
    "Resources": {"Alarms": {"Type": "AWS::SNS::Topic"}},
    "Outputs": {"TableName": {"Value": TABLE}},
}
RECORD = TypeAdapter(DecisionRecord)
REFUSED = "capacity: Could not launch Spot Instances."
DRY = (
    "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity "
    "available that matches your request. Launching EC2 instance failed."
)


def record(minute: int, held: int, desired: int = 3, *failures: str) -> str:
    """A decision record of the availability controller."""
    at = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
    turn = builders.held(
        controller=Controller.AVAILABILITY,
        at=at,
        availability=AvailabilityFigures(spot_desired=desired, spot_serving=held),
        failures=tuple(
            LaunchFailure(at=at, failure_class=FailureClass.CAPACITY, message=each)
            for each in failures
        ),
    )
    return RECORD.dump_json(turn).decode()


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def activity(minute: int, words: str, zone: str, **more: str) -> dict[str, Any]:
    """A scaling activity as the AWS CLI prints it."""
    return {
        "StartTime": f"2026-01-01T00:{minute:02}:00+00:00",
        "Description": words,
        "Details": json.dumps({"Subnet ID": "subnet-1", "Availability Zone": zone}),
        "Cause": "an instance was started in response to a difference in capacity.",
        "StatusCode": "Successful",
        **more,
    }


@pytest.mark.parametrize(
    ("lines", "steps"),
    [
        # Held capacity exists; lost capacity is gone until held again. Turns are in any order.
        ([record(1, 2), record(0, 3), record(2, 3), record(3, 3)], [(0, 3), (60, 2), (120, 3)]),
        # A launch that is on its way says nothing, one that was refused does.
        ([record(0, 3), record(1, 3, 5), record(2, 5, 5)], [(0, 3), (120, 5)]),
        ([record(0, 3), record(1, 3, 5, REFUSED), record(2, 3, 5)], [(0, 3)]),
        # A smaller group says nothing of the market.
        ([record(0, 3), record(1, 1, 1), record(2, 3)], [(0, 3)]),
    ],
)
def test_records_tell_what_was_held(
    tmp_path: Path, lines: list[str], steps: list[tuple[float, int]]
) -> None:
    other = RECORD.dump_json(builders.held()).decode()
    failed = RECORD.dump_json(builders.held(controller=Controller.AVAILABILITY)).decode()
    turns = read_records(written(tmp_path / "decisions.jsonl", other, failed, *lines))
    market = export_market("own", turns)
    assert market == market_of("own", market.end_s, {WHOLE_POOL: steps})


def test_activities_tell_the_zones(tmp_path: Path) -> None:
    launch, end = "Launching a new EC2 instance", "Terminating EC2 instance"
    changes = changes_of(
        [
            activity(0, f"{launch}: i-1", "a"),
            activity(0, f"{launch}: i-2", "b"),
            activity(1, launch, "b", StatusCode="Failed", StatusMessage=DRY),
            activity(1, launch, "a", StatusCode="Failed", StatusMessage="no such launch template"),
            activity(1, f"{launch}: i-3", "a"),
            # Asked for: the zone could still hold two.
            activity(2, f"{end}: i-3", "a", Cause="terminated in response to a user request."),
            activity(3, f"{end}: i-1", "a", Cause="taken out of service: it has been terminated."),
            # A warned instance that Spotkeeper detached is taken two minutes later.
            activity(4, "Detaching EC2 instance: i-2", "b", Cause="detached in response to ..."),
            # It was there before the first activity.
            activity(5, f"{end}: i-0", "c", Cause="taken out of service: it has been terminated."),
        ]
    )
    turns = read_records(written(tmp_path / "decisions.jsonl", record(0, 2), record(9, 0)))
    assert export_market("own", turns, changes, "g5.xlarge") == market_of(
        "own",
        540.0,
        {
            "a/g5.xlarge": [(0.0, 1), (60.0, 2), (180.0, 0)],
            "b/g5.xlarge": [(0.0, 1), (360.0, 0)],
            "c/g5.xlarge": [(0.0, 1), (300.0, 0)],
        },
    )


@cache
def replayed() -> list[DecisionRecord]:
    """The records of an hour on a market of one pool: three, then one, then three again."""
    market = market_of("one", 3600.0, {"z/any": [(0.0, 3), (900.0, 1), (2700.0, 3)]})
    states = FakeStates()
    replay_of(market, World(target=3), deployed_settings(), states=states).run(market.end_s)
    return list(states.records)


def assert_exported(out: Path, *source: str) -> None:
    """The command finds that market again."""
    done = CliRunner().invoke(app, ["trace", "export", *source, "--out", str(out)])
    assert done.exit_code == 0, done.output
    seen = read_market(out).of(WHOLE_POOL)
    assert seen.capacities[:2] == (3, 1)
    assert max(seen.capacities) == 3
    assert abs(seen.times[1] - 900.0) < 60.0
    assert 2700.0 <= seen.times[2] < 2780.0


def test_a_replayed_fleet_sees_its_market(tmp_path: Path) -> None:
    lines = [RECORD.dump_json(one).decode() for one in replayed()]
    records = written(tmp_path / "decisions.jsonl", *lines)
    assert_exported(tmp_path / "own.csv", "--records", str(records))


def test_the_table_of_a_stack_holds_the_market_too(
    tmp_path: Path, dynamodb: "DynamoDBClient"
) -> None:
    states = FleetStateTable(dynamodb, TABLE, timedelta(days=30))
    for record in replayed():
        states.record(record)
    fleet, elsewhere = ["--fleet", "backtest"], ["--region", "eu-north-1"]
    assert_exported(tmp_path / "own.csv", "--table", TABLE, *fleet)
    boto3.client("cloudformation").create_stack(StackName="ocr", TemplateBody=json.dumps(TEMPLATE))
    assert_exported(tmp_path / "stack.csv", "--stack", "ocr", *fleet)
    for source, told in (
        (["--stack", "nope", *fleet], "there is no stack nope in us-east-1"),
        (["--stack", "ocr", *fleet, *elsewhere], "there is no stack ocr in eu-north-1"),
        (["--table", TABLE, *fleet, *elsewhere], "ResourceNotFoundException"),
    ):
        assert told in refused(tmp_path, *source)


def test_without_a_region_the_option_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    told = "error: no region: give --region or set AWS_REGION"
    assert told in refused(tmp_path, "--table", "t", "--fleet", "f")


def test_an_export_never_takes_the_place_of_what_it_reads(tmp_path: Path) -> None:
    records = written(tmp_path / "own.csv", record(0, 3), record(1, 2))
    assert "is read too" in refused(tmp_path, "--records", str(records))
    assert record(0, 3) in records.read_text()


def refused(folder: Path, *source: str) -> str:
    """What the command says when it refuses; it wrote nothing."""
    out = folder / "own.csv"
    before = out.read_bytes() if out.exists() else None
    done = CliRunner().invoke(app, ["trace", "export", *source, "--out", str(out)])
    assert done.exit_code == 2, done.output
    assert (out.read_bytes() if out.exists() else None) == before
    return done.stderr


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{}", "{"], "line 1: is no decision record: fleet: Field required"),
        ([record(0, 3), "nonsense"], "line 2: is no decision record: Expecting value"),
        ([record(0, 3)], "has fewer than two records"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, lines: list[str], told: str) -> None:
    records = written(tmp_path / "decisions.jsonl", *lines)
    why = refused(tmp_path, "--records", str(records))
    assert str(records) in why
    assert told in why


def test_an_answer_that_is_none_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"Activities": [{}]}'):
        with pytest.raises(MarketFileError, match="is no answer of describe-scaling-activities"):
            read_activities(written(tmp_path / "activities.json", text))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--table", "t"],
        ["--records", "r", "--fleet", "f"],
        ["--records", "r", "--table", "t", "--fleet", "f"],
        ["--records", "r", "--activities", "a", "--group", "g"],
    ],
)
def test_sources_that_do_not_go_together_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["trace", "export", "--out", "own.csv", *arguments])
    assert done.exit_code == 2
