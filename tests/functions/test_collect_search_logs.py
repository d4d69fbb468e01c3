"""collect_search_logs as Lambda calls it, on moto: batches, poison, and counting once."""

import json
import logging
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import boto3
import pytest

from functions.collect_search_logs.app import handler
from spotkeeper import wiring
from spotkeeper.adapters.regions import forward
from spotkeeper.border.events import EventError
from spotkeeper.domain.load.load import milliseconds
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.ports import Unavailable
from spotkeeper_lab.world import Context
from tests.functions.conftest import Metrics, Stage, StageOf
from tests.search_logs import FLEET, SENT, before, sent_log

EVENT = Path(__file__).parents[2] / "events" / "search_logs.json"


@pytest.fixture(autouse=True)
def stage(stage_of: StageOf) -> Stage:
    """One fleet, which logs that name none belong to."""
    return stage_of((FLEET,))


def record(message_id: str, body: str, sent_at: datetime = SENT) -> dict[str, Any]:
    attributes = {"SentTimestamp": str(milliseconds(sent_at)), "ApproximateReceiveCount": "1"}
    return {"messageId": message_id, "body": body, "attributes": attributes}


def deliver(*records: dict[str, Any]) -> list[str]:
    """Call the handler; answers the ids of the messages that failed."""
    context: Any = Context()
    answer: Any = handler({"Records": list(records)}, context)
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def finished(now: datetime = SENT) -> int:
    return summarise(wiring.load_table().since(FLEET, before(300)), now, 300).finished


def test_the_event_file_is_counted() -> None:
    event = json.loads(EVENT.read_text(encoding="utf-8"))
    assert deliver(*event["Records"]) == []
    sent_at = datetime.fromisoformat("2026-11-20T10:00:35Z")
    digests = wiring.load_table().since(FLEET, datetime.fromisoformat("2026-11-20T10:00:00Z"))
    assert summarise(digests, sent_at, 300).finished >= 2


def test_a_poison_message_fails_alone_and_is_named(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    good = [record(f"good-{n}", json.dumps(sent_log(n))) for n in range(2)]
    poison = record("poison", json.dumps(sent_log(9, worker_id=None)))
    assert deliver(good[0], poison, good[1]) == ["poison"]
    assert finished() == 2
    [named] = [vars(line) for line in caplog.records if line.levelname == "ERROR"]
    assert named["message_id"] == "poison"
    assert named["why"].startswith("logs[0].worker_id: ")
    [counted] = [vars(line) for line in caplog.records if line.getMessage() == "counted"]
    assert (counted["fleet"], counted["SearchLogs"], counted["MessagesRefused"]) == (FLEET, 2, 1)
    # These counts are logged but not emitted as metrics, which cost money.
    assert "_aws" not in capsys.readouterr().out


def test_a_fleet_whose_document_is_wrong_keeps_its_search_logs(stage: Stage) -> None:
    stage.put(FLEET, json.dumps({"version": 1}))
    stage.restart()
    assert deliver(record("a", json.dumps(sent_log()))) == []
    assert finished() == 1


def test_an_event_of_another_kind_is_refused_by_name() -> None:
    context: Any = Context()
    with pytest.raises(EventError, match="Records: is missing"):
        handler({"source": "aws.ec2"}, context)


def test_logs_lost_on_a_machine_are_a_metric(metrics: Metrics) -> None:
    assert deliver(record("a", json.dumps(sent_log(0, agent={"lost": 3, "refused": 1})))) == []
    assert metrics(FLEET)["SearchLogsLost"] == 4
    assert deliver(record("b", json.dumps(sent_log(1)))) == []
    assert metrics(FLEET)["SearchLogsLost"] == 0, "the alarm is not kept by an old datapoint"


@pytest.mark.parametrize("refusal", [None, Unavailable("sending events: no")])
def test_what_failed_on_a_machine_is_an_event(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception | None
) -> None:
    """The counts do not depend on the bus."""
    bus = Mock(send=Mock(side_effect=refusal))
    monkeypatch.setattr(wiring, "announcements", lambda _: bus)
    told = {"trouble": "on_drain: \x1bfalse failed with status 1"}
    assert deliver(record("a", json.dumps(sent_log(0, agent=told)))) == []
    [[event]] = bus.send.call_args.args
    assert (event.fleet, event.state, event.at) == (FLEET, "command-failed", SENT)
    assert event.reason == "on_drain: false failed with status 1"
    assert finished() == 1


def test_a_region_forwards_what_it_has_counted_and_its_home_keeps_it_apart(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home counts by the time of the region's queue; digests of a workers' queue are none."""
    sqs = boto3.client("sqs")
    url = sqs.create_queue(QueueName="spotkeeper-regions")["QueueUrl"]
    monkeypatch.setattr(wiring, "to_home", lambda: partial(forward, sqs, url, "us-east-2"))
    body = json.dumps([sent_log()])
    assert deliver(record("1", body), record("2", "{")) == ["2"]
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    monkeypatch.setattr(wiring, "to_home", lambda: None)
    for source, refused, kept in (("logs", ["3", "4"], []), ("regions", ["4"], [(SENT, 1)])):
        arn = {"eventSourceARN": f"arn:aws:sqs:us-west-2:123456789012:spotkeeper-{source}"}
        sent = record("3", message["Body"], SENT + timedelta(seconds=240)) | arn
        assert deliver(sent, record("4", "[1]") | arn) == refused
        there = wiring.load_table().since(f"{FLEET}@us-east-2", SENT - timedelta(hours=1))
        assert [(digest.sent_at, digest.count) for digest in there] == kept


def test_what_the_home_does_not_take_is_delivered_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqs = boto3.client("sqs")
    gone = "https://sqs.us-east-1.amazonaws.com/123456789012/spotkeeper-regions"
    monkeypatch.setattr(wiring, "to_home", lambda: partial(forward, sqs, gone, "us-east-2"))
    assert deliver(record("1", json.dumps([sent_log()]))) == ["1"]
    assert wiring.load_table().since(FLEET, SENT - timedelta(hours=1))
