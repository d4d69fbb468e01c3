"""A turn has the next one happen when a warm backfill is due: through the queue, on moto."""

import json
from pathlib import Path

import boto3
import pytest
from moto.sqs.models import sqs_backends

from functions.check_availability.app import handler
from spotkeeper_lab.cloud.values import Physics
from tests.builders import at
from tests.functions.conftest import ACCOUNT, Stage, StageOf, document

EVENTS = Path(__file__).parents[2] / "events"
WAKE_UP = json.loads((EVENTS / "wake_up.json").read_text().replace("main", "ocr"))
# Warned at 720 and at 1380; the first is backfilled at once, which measures a warm start.
LOSES_TWICE = ((0.0, 4), (840.0, 3), (900.0, 4), (1500.0, 3))
WARM = Physics(cold_start_s=120.0, warm_start_s=60.0, warm_pool=4)


@pytest.fixture
def stage(stage_of: StageOf) -> Stage:
    """A fleet with a warm pool, one of whose instances was just warned for the second time."""
    made = stage_of(("ocr",), spot=LOSES_TWICE, physics=WARM)
    settings = {"on_demand_warm": True, "lost_notice_share": 0, "deferral_margin_s": 30}
    made.put("ocr", json.dumps(document("ocr", availability=settings)))
    for seconds in range(600, 1380, 60):
        made.at(seconds)
        made.call(handler)
        if made.cloud.group("ocr-on-demand").desired:
            assert seconds >= 720
    made.at(1380)
    return made


def messages() -> list[dict[str, str]]:
    """What waits in the queue, whatever its delay."""
    queue = sqs_backends[ACCOUNT]["us-east-1"].queues["wake-ups"]
    return [json.loads(message.body) for message in queue._messages]


def test_a_backfill_that_can_wait_is_asked_for_by_a_wake_up(stage: Stage) -> None:
    boto3.client("sqs").create_queue(QueueName="wake-ups")
    stage.call(handler)
    assert stage.counted("sqs") == {"SendMessage": 1}
    assert messages() == [{"fleet": "ocr", "look_again_at": at(1410).isoformat(), "woken": 1}]
    assert stage.cloud.group("ocr-on-demand").desired == 0
    record = stage.records("ocr")[-1]
    assert (record["rule"], record["outcomes"][0]["asked"]) == (
        "just in time",
        "look again at 12:23:30",
    )
    stage.at(1409)
    assert stage.call(handler)["ocr"].startswith("spot 3 of 4 serving")
    assert stage.counted("sqs").total() == 0
    stage.at(1410)
    stage.call(handler, WAKE_UP)
    assert stage.cloud.group("ocr-on-demand").desired == 1
    assert stage.counted("sqs").total() == 0
