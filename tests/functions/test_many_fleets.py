"""Many fleets in one stack: the tick turns a few, and messages have the others turned."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import boto3
import pytest
from moto.sqs.models import sqs_backends

from functions.check_availability.app import handler as availability
from functions.check_health.app import handler as health
from spotkeeper.observability import TurnFailed
from spotkeeper.turns.turn import FLEETS_AN_INVOCATION, own_share
from tests.builders import at, fleet
from tests.functions.conftest import ACCOUNT, Stage, StageOf, slow_down

type Handler = Callable[..., Any]

CONTROLLERS = pytest.mark.parametrize(
    ("handler", "queue"), [(availability, "wake-ups"), (health, "health")]
)
MANY = tuple(f"fleet-{n:03}" for n in range(13))


@pytest.fixture
def stage(stage_of: StageOf) -> Stage:
    """Thirteen fleets and the queues of both controllers."""
    made = stage_of(MANY, desired=1)
    for name in ("wake-ups", "health"):
        boto3.client("sqs").create_queue(QueueName=name)
    return made


def take(queue: str) -> list[dict[str, Any]]:
    """Take the messages out of a queue, as the events that Lambda makes of them."""
    waiting = sqs_backends[ACCOUNT]["us-east-1"].queues[queue]
    taken, waiting._messages = waiting._messages, []
    return [{"Records": [{"messageId": it.id, "body": it.body}]} for it in taken]


def named(message: dict[str, Any]) -> list[str]:
    """The fleets that a message names."""
    return list(json.loads(message["Records"][0]["body"])["fleets"])


@CONTROLLERS
def test_every_fleet_has_one_turn_each_minute_and_no_invocation_has_more_than_a_share(
    stage: Stage, handler: Handler, queue: str
) -> None:
    shares = set()
    for minute in (10, 11, 12):
        stage.at(60 * minute)
        own, turned = stage.call(handler), list[str]()
        for message in take(queue):
            turned += named(message)
            assert len(named(message)) <= FLEETS_AN_INVOCATION
            assert stage.call(handler, message) == {"batchItemFailures": []}
        assert sorted([*own, *turned]) == list(MANY)
        assert all(
            stage.records(name)[-1]["at"].startswith(f"{stage.now:%Y-%m-%dT%H:%M}") for name in MANY
        )
        assert take(queue) == []
        shares.add(frozenset(own))
    assert len(shares) == 3, "another share stays with the tick each minute"


@pytest.mark.parametrize(("fleets", "reached", "longest"), [(100, 8, 5), (100, 20, 1), (23, 2, 4)])
def test_where_a_minute_reaches_some_fleets_only_each_has_a_turn_every_few_minutes(
    fleets: int, reached: int, longest: int
) -> None:
    """Messages are received about in the order in which they were sent."""
    every, queue = [replace(fleet(), name=f"{n}") for n in range(fleets)], Mock()
    last = {each.name: -1 for each in every}
    for minute in range(60):
        own, _ = own_share(every, lambda: queue, at(60 * minute))
        (handed_on, _) = queue.hand_on.call_args.args
        shares = [[each.name for each in own], *handed_on]
        assert sorted(name for share in shares for name in share) == sorted(last)
        last |= {name: minute for share in shares[:reached] for name in share}
        assert minute - min(last.values()) <= longest


def test_few_fleets_are_turned_without_a_message(stage_of: StageOf) -> None:
    stage = stage_of(MANY[:FLEETS_AN_INVOCATION], desired=1)
    assert len(stage.call(availability)) == FLEETS_AN_INVOCATION
    assert stage.counted("sqs").total() == 0


@CONTROLLERS
def test_fleets_that_cannot_be_handed_on_have_their_turn_at_once_and_an_alarm(
    stage: Stage, handler: Handler, queue: str
) -> None:
    stage.during["SendMessageBatch"] = slow_down
    with pytest.raises(TurnFailed, match="handing fleets on"):
        stage.call(handler)
    assert all(stage.records(name) for name in MANY)


@CONTROLLERS
def test_a_broken_fleet_costs_the_messages_of_the_others_nothing(
    stage: Stage, handler: Handler, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lambda takes concurrency from all for an error: the failed message is named instead."""
    stage.call(handler)
    first, *others = take(queue)
    broken = named(first)[0]
    for group in (f"{broken}-spot", f"{broken}-on-demand"):
        stage.cloud.delete_group(group)
    failed = {"batchItemFailures": [{"itemIdentifier": first["Records"][0]["messageId"]}]}
    assert stage.call(handler, first) == failed
    assert '"MessagesFailed":[1.0]' in capsys.readouterr().out
    assert all(stage.call(handler, each) == {"batchItemFailures": []} for each in others)
    foreign = {"Records": [{"messageId": "m", "body": "{"}]}
    assert stage.call(handler, foreign) == {"batchItemFailures": [{"itemIdentifier": "m"}]}


@CONTROLLERS
def test_fleets_that_a_minute_did_not_reach_are_left_to_the_next(
    stage: Stage, handler: Handler, queue: str
) -> None:
    stage.call(handler)
    (message, *_) = take(queue)
    stage.at(stage.cloud.now_s + 61)
    assert stage.call(handler, message) == {"batchItemFailures": []}
    assert stage.counted("dynamodb").total() == 0
