"""What functions call in situations that no other test has; conftest.py notes their rights."""

import json

import boto3
import pytest

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from functions.collect_search_logs.app import handler as collect_search_logs
from functions.keep_ledger.app import handler as keep_ledger
from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.adapters.regions import RegionTables
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.spread import Share
from spotkeeper.observability import TurnFailed
from spotkeeper_lab.cloud.values import Physics, two_groups
from tests.functions.conftest import TABLE, A, B, StageOf, document

LOOK = {"vhost": "/", "name": "requests", "ready": 3, "unacknowledged": 0}
THERE = "arn:aws:dynamodb:us-east-2:123456789012:table/there"


def test_launches_that_aws_suspended_go_on(stage_of: StageOf) -> None:
    dry = ((0.0, 200), (700.0, 0))
    stage = stage_of(("ocr",), spot=dry, physics=Physics(suspend_after_s=3600.0))
    stage.at(6000.0)
    stage.call(check_availability)
    assert stage.counted("autoscaling")["ResumeProcesses"] == 1


def test_a_queue_of_amazon_mq_is_counted_by_its_metrics(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",))
    stage.put("ocr", json.dumps(document("ocr", request_queue_url="amazon-mq://ocr/%2F/requests")))
    stage.restart()
    stage.call(check_health)
    assert stage.counted("cloudwatch") == {"GetMetricData": 1}


@pytest.mark.parametrize("where", [{"home": "eu-west-1"}, {"regions": THERE}])
def test_regions_know_each_others_prices(stage_of: StageOf, where: dict[str, str]) -> None:
    stage = stage_of(("ocr",))
    stage.put("ocr", json.dumps(document("ocr", **where)))
    stage.restart()
    stage.call(check_availability)
    assert stage.counted("ec2")["DescribeSpotPriceHistory"] == 1
    stage.call(check_health)


def test_a_lower_cover_has_availability_turn_at_once(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",))
    stage.put("ocr", json.dumps(document("ocr", home="eu-west-1")))
    stage.restart()
    [fleet] = wiring.fleet_documents().fleets
    table = RegionTables("us-east-1", TABLE, lambda region: boto3.client("dynamodb"))
    for term in (1, 2):
        share = Share(term=term, cover=2 - term, ask=1, written=stage.now)
        table.write(fleet, table.here, share, term - 1)
        stage.call(check_health)
    assert stage.counted("sqs")["SendMessage"] == 1


def test_a_turn_that_another_met_at_work_is_followed_by_one_that_reads_notes(
    stage_of: StageOf,
) -> None:
    stage = stage_of(("ocr",))
    states = FleetStateTable(boto3.client("dynamodb"), TABLE)
    lease = states.acquire("ocr", Controller.HEALTH, stage.now, None)
    assert lease
    stage.call(check_health)
    states.release(lease)
    assert stage.call(check_health).keys() == {"ocr"}


def test_the_ledger_reads_aws_s_lists_of_prices(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",))
    # moto has none.
    with pytest.raises(TurnFailed):
        stage.call(keep_ledger)
    assert stage.counted("pricing", "ec2")["GetProducts"] == 1


def test_an_agents_look_at_a_queue_is_kept_and_its_trouble_sent(
    stage_of: StageOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENT_BUS", "default")
    stage = stage_of(("ocr",))
    queue = LOOK | {"at": stage.now.isoformat()}
    sent = {"SentTimestamp": str(int(stage.now.timestamp() * 1000))}
    body = json.dumps({"version": 1, "agent": {"queue": queue, "trouble": "no"}})
    message = {"messageId": "m", "body": body, "attributes": sent}
    stage.call(collect_search_logs, {"Records": [message]})
    assert sum(stage.counted("dynamodb").values()) > stage.counted("dynamodb")["GetItem"]
    assert stage.counted("events") == {"PutEvents": 1}


def test_a_spot_group_that_is_made_again_gets_its_size(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",))
    stage.call(check_availability)
    again = two_groups("ocr-spot", "x", pools=(A, B), maximum=200, desired=0)[0]
    stage.cloud.delete_group("ocr-spot")
    stage.at(660.0)
    stage.call(check_availability)
    stage.cloud.create_group(again)
    stage.at(720.0)
    stage.call(check_availability)
    assert stage.cloud.group("ocr-spot").desired == 4
