"""A turn has the next one happen when a warm backfill is due: through the queue, on moto."""

import json
from pathlib import Path

import boto3
from moto.sqs.models import sqs_backends

from functions.check_availability.app import handler
from spotkeeper_lab.cloud.values import Physics
from tests.builders import at
from tests.functions.conftest import ACCOUNT, StageOf, document

EVENTS = Path(__file__).parents[2] / "events"
WAKE_UP = json.loads((EVENTS / "wake_up.json").read_text().replace("main", "ocr"))
# Warned at 720 and at 1380; the first is backfilled at once, which measures a warm start.
LOSES_TWICE = ((0.0, 4), (840.0, 3), (900.0, 4), (1500.0, 3))
WARM = Physics(cold_start_s=120.0, warm_start_s=60.0, warm_pool=4)


def test_a_backfill_that_can_wait_is_asked_for_by_a_wake_up(stage_of: StageOf) -> None:
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
    told = (record["rule"], record["outcomes"][0]["asked"])
    assert told == ("just in time", "look again at 12:23:30")
    stage.at(1409)
    assert stage.call(handler)["ocr"].startswith("spot 3 of 4 serving")
    assert stage.counted("sqs").total() == 0
    stage.at(1410)
    stage.call(handler, WAKE_UP)
    assert stage.cloud.group("ocr-on-demand").desired == 1
    assert stage.counted("sqs").total() == 0
