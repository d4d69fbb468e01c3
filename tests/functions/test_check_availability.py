"""check_availability as Lambda calls it, on moto: decisions, records, calls."""

import json
import logging
from datetime import datetime, timedelta
from pathlib import Path

import boto3
import pytest
from moto.sqs.models import sqs_backends

from functions.check_availability.app import handler
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.observability import COUNTS, LEVELS, TurnFailed
from spotkeeper.ports import Gone
from spotkeeper_lab.cloud.values import IN_SERVICE, LifecycleHook, Physics, Result, Transition
from tests.builders import TABLE, at
from tests.functions.conftest import ACCOUNT, Metrics, Stage, StageOf, document

EVENTS = Path(__file__).parents[2] / "events"
SCHEDULE = json.loads((EVENTS / "schedule.json").read_text())
WAKE_UP = json.loads((EVENTS / "wake_up.json").read_text().replace("main", "ocr"))
# The control, the lease twice, the memories, the own memory, the record.
TABLE_CALLS = {"GetItem": 1, "UpdateItem": 2, "Query": 1, "PutItem": 2}
MEMORY = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "memory#availability"}}
NEVER_HAD_FOUR = ((0.0, 2),)


def test_a_whole_fleet_is_held_recorded_and_measured(stage_of: StageOf, metrics: Metrics) -> None:
    stage = stage_of()
    answer = stage.call(handler, SCHEDULE)
    assert answer == dict.fromkeys(("ocr", "search"), "spot 4 of 4 serving; nothing is missing")
    (item,) = stage.items("ocr", "decision#")
    lifetime = int(item["expires_at"]["N"]) - stage.now.timestamp()
    assert timedelta(seconds=lifetime) == timedelta(days=30)
    (record,) = stage.records("ocr")
    assert (record["action"], record["rule"]) == ("hold", "at target")
    assert datetime.fromisoformat(record["at"]) == stage.now
    assert stage.leased("ocr") == set()
    emitted = metrics("ocr")
    assert emitted == {"SpotDesired": 4, "SpotServing": 4, "OnDemandDesired": 0}
    assert (record["availability"]["spot_serving"], record["availability"]["shortfall"]) == (4, 0)
    assert LEVELS.keys().isdisjoint(COUNTS)


def test_a_launch_that_a_machine_abandons_rings_in_the_next_turn(
    stage_of: StageOf, metrics: Metrics
) -> None:
    """Whoever has a worker's role may abandon each: the metric is configuration-failure's."""
    stage = stage_of(("ocr",))
    cloud = stage.cloud
    cloud.put_hook("ocr-spot", LifecycleHook(name="ready", transition=Transition.LAUNCHING))
    cloud.set_desired("ocr-spot", 5)
    stage.at(700)
    (new,) = (i for i in cloud.group("ocr-spot").instances if i.state != IN_SERVICE)
    stage.call(handler)
    assert "ConfigurationFailure" not in metrics("ocr")
    cloud.complete("ocr-spot", "ready", new.instance_id, Result.ABANDON)
    stage.call(handler)
    assert "bootstrap" in stage.records("ocr")[-1]["alarms"]
    assert metrics("ocr")["ConfigurationFailure"] == 1


def test_an_unknown_failure_is_reported_counted_and_backfilled(
    stage_of: StageOf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = stage_of(("ocr",))
    stage.call(handler)
    told = "The moon is in the wrong house. Launching EC2 instance failed."
    stage.cloud.fail_launches("ocr-spot", 600, 86_400, told)
    stage.cloud.set_desired("ocr-spot", 6)
    stage.at(660)
    stage.call(handler)
    seen = stage.records("ocr")[-1]["availability"]
    assert seen["unknown_failures"] >= 1
    assert seen["launch_failures"] == seen["unknown_failures"]
    warnings = [line for line in caplog.records if line.levelno == logging.WARNING]
    assert [vars(line)["text"] for line in warnings] == [told]
    assert stage.cloud.group("ocr-on-demand").desired == 2
    # While AWS attempts nothing, the gap keeps its cause.
    monkeypatch.setattr(AutoScalingReader, "failures", lambda *_: ())
    stage.at(720)
    stage.call(handler)
    last = stage.records("ocr")[-1]
    assert [f["message"] for f in last["failures"]] == [told]
    assert last["availability"]["launch_failures"] == 0


def test_an_unreadable_state_costs_its_own_fleet_one_record(stage_of: StageOf) -> None:
    stage = stage_of()
    stage.call(handler)
    (state,) = stage.items("ocr", "state")
    stage.keep(state | {"availability_written": {"S": "2026-11-20T12:00:00"}})
    stage.at(660)
    with pytest.raises(TurnFailed, match=r"fleet ocr: read what was kept: availability_written: "):
        stage.call(handler)
    rules = [record["rule"] for record in stage.records("ocr")]
    assert rules == ["at target", "afresh", "at target"]
    assert len(stage.records("search")) == 2
    stage.at(720)
    assert stage.call(handler).keys() == {"ocr", "search"}


# --- calls of AWS -----------------------------------------------------------------------------


def settle(stage: Stage) -> None:
    """Take turns until one finds the fleet as the turns before left it."""
    for minute in range(10, 14):
        stage.at(60 * minute)
        stage.call(handler)


@pytest.mark.parametrize("desired", [4, 90])
def test_a_quiet_turn_calls_little_however_many_instances_there_are(
    stage_of: StageOf, desired: int
) -> None:
    stage = stage_of(("ocr",), desired=desired)
    settle(stage)
    assert stage.counted("autoscaling", "ec2") == {
        "DescribeAutoScalingGroups": 1,
        "DescribeSpotInstanceRequests": 1,
    }
    assert stage.counted("dynamodb") == TABLE_CALLS


def test_a_lasting_shortage_calls_little_too(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",), desired=40, spot=NEVER_HAD_FOUR)
    stage.cloud.fail_launches("ocr-on-demand", 600, 86_400, "Max vCPU. VcpuLimitExceeded - No.")
    settle(stage)
    assert stage.counted("autoscaling", "ec2").total() <= 5
    assert stage.counted("dynamodb") == TABLE_CALLS


def test_a_lost_memory_does_not_shorten_how_long_on_demand_has_been_in_use(
    stage_of: StageOf, metrics: Metrics
) -> None:
    stage = stage_of(("ocr",), desired=4, spot=NEVER_HAD_FOUR)
    settle(stage)
    stage.at(3 * 3600)
    stage.call(handler)
    before = metrics("ocr")["OnDemandHours"]
    assert before > 2
    boto3.client("dynamodb").delete_item(TableName=TABLE, Key=MEMORY)
    stage.call(handler)
    stage.at(3 * 3600 + 60)
    stage.call(handler)
    assert metrics("ocr")["OnDemandHours"] == pytest.approx(before, abs=0.1)


@pytest.mark.parametrize("many", [2, 5])
def test_the_groups_of_many_fleets_are_read_together(stage_of: StageOf, many: int) -> None:
    stage = stage_of(tuple(f"fleet-{n}" for n in range(many)), desired=2)
    settle(stage)
    assert stage.counted("autoscaling", "ec2").total() == 2
    assert stage.counted("dynamodb").total() == many * sum(TABLE_CALLS.values())


# --- one fleet never stops another ------------------------------------------------------------


def test_a_group_deleted_under_us_fails_its_fleet_by_name(stage_of: StageOf) -> None:
    stage = stage_of()
    stage.cloud.delete_group("ocr-spot")
    with pytest.raises(TurnFailed, match=": fleet ocr: group ocr-spot does not exist") as caught:
        stage.call(handler)
    assert [type(error) for error in caught.value.exceptions] == [Gone]
    assert [r["rule"] for r in stage.records("search")] == ["at target"]
    assert [r["rule"] for r in stage.records("ocr")] == ["failed"]
    assert stage.leased("ocr") == set()


def test_without_any_document_the_turn_fails_and_says_where_they_belong(stage_of: StageOf) -> None:
    stage = stage_of(())
    with pytest.raises(TurnFailed, match="no fleet document under /spotkeeper/test/fleets"):
        stage.call(handler)


# --- wake-ups -----------------------------------------------------------------------------------

# Warned at 720 and at 1380; the first is backfilled at once, which measures a warm start.
LOSES_TWICE = ((0.0, 4), (840.0, 3), (900.0, 4), (1500.0, 3))
WARM = Physics(cold_start_s=120.0, warm_start_s=60.0, warm_pool=4)


def test_a_deferred_backfill_is_requested_by_a_wake_up(stage_of: StageOf) -> None:
    """Of a fleet with a warm pool, when an instance is warned for the second time."""
    stage = stage_of(("ocr",), spot=LOSES_TWICE, physics=WARM)
    settings = {"on_demand_warm": True, "lost_notice_share": 0, "deferral_margin_s": 30}
    stage.put("ocr", json.dumps(document("ocr", availability=settings)))
    for seconds in range(600, 1380, 60):
        stage.at(seconds)
        stage.call(handler)
    boto3.client("sqs").create_queue(QueueName="wake-ups")
    stage.at(1380)
    stage.call(handler)
    assert stage.counted("sqs") == {"SendMessage": 1}
    # What waits in the queue, whatever its delay.
    (message,) = sqs_backends[ACCOUNT]["us-east-1"].queues["wake-ups"]._messages
    asked = {"fleet": "ocr", "look_again_at": at(1410).isoformat(), "woken": 1}
    assert json.loads(message.body) == asked
    assert stage.cloud.group("ocr-on-demand").desired == 0
    record = stage.records("ocr")[-1]
    due = {"what": "backfill_due", "until": "2026-11-20T12:23:30Z"}
    assert (record["rule"], record["awaited"][0]) == ("just in time", due)
    assert record["outcomes"][0]["request"]["at"] == due["until"]
    stage.at(1409)
    assert stage.call(handler)["ocr"].startswith("spot 3 of 4 serving")
    assert stage.counted("sqs").total() == 0
    stage.at(1410)
    stage.call(handler, WAKE_UP)
    assert stage.cloud.group("ocr-on-demand").desired == 1
    assert stage.counted("sqs").total() == 0
