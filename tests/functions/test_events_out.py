"""Events out of whole turns: after what matters, and again where the bus did not take them."""

import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from functions.check_availability.app import handler
from spotkeeper_lab.world import Killed
from tests.functions.conftest import Stage

# Warned two minutes before, at minute 13.
LOSES_TWO = ((0.0, 4), (900.0, 2))


class Bus:
    """What was put on the bus; `refuses` and `kills` happen to the next calls."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.dies = False

    def take(self, params: Any, **_: object) -> None:
        self.sent += [json.loads(entry["Detail"]) for entry in params["Entries"]]
        if self.dies:
            raise Killed

    def states(self) -> list[str]:
        taken, self.sent = self.sent, []
        return [event["state"] for event in taken]


@pytest.fixture
def stage(stage_of: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("EVENT_BUS", "default")
    monkeypatch.setenv("STACK_NAME", "ours")
    return stage_of(("ocr",), spot=LOSES_TWO)


@pytest.fixture
def bus(stage: Stage) -> Bus:
    made = Bus()
    assert boto3.DEFAULT_SESSION
    boto3.DEFAULT_SESSION.events.register("before-parameter-build.events.PutEvents", made.take)
    return made


def turn(stage: Stage, minute: int) -> None:
    stage.at(60.0 * minute)
    stage.call(handler)


def test_a_shortage_is_announced_after_its_backfill(stage: Stage, bus: Bus) -> None:
    turn(stage, 11)
    assert bus.states() == ["whole", "released", "awake"]
    turn(stage, 12)
    assert not bus.sent
    turn(stage, 13)
    assert set(bus.states()) == {"short", "backfilled"}
    order = [call for call in stage.calls if call.endswith(("SetDesiredCapacity", "PutEvents"))]
    assert order == sorted(order)
    for minute in range(14, 20):
        turn(stage, minute)
    assert bus.states() == ["whole"]
    assert stage.counted("dynamodb")["PutItem"] == 2  # a quiet turn writes no more than before


def test_a_hanging_bus_stops_nothing_and_gets_the_event_later(
    stage: Stage, bus: Bus, metrics: Callable[[str], dict[str, float]]
) -> None:
    turn(stage, 11)
    bus.sent.clear()
    stage.hang = {"events"}
    turn(stage, 13)
    turn(stage, 14)
    assert stage.cloud.group("ocr-on-demand").desired == 2
    assert stage.took_s < 5
    record = stage.records("ocr")[-1]
    assert any(text.startswith("events: TimedOut") for text in record["unread"])
    assert record["availability"]["events_unsent"] == metrics("ocr")["EventsUnsent"] == 2
    stage.hang = set()
    bus.sent.clear()
    turn(stage, 15)
    assert sorted(event["state"] for event in bus.sent) == ["backfilled", "short", "whole"]
    assert stage.records("ocr")[-1]["availability"]["events_unsent"] == 0
    asked = {each["at"]: each["reason"] for each in stage.records("ocr")}
    for event in bus.sent:
        when = event["at"].replace("+00:00", "Z")
        assert event["reason"] == asked[when][:500]


def test_a_turn_that_dies_after_sending_is_followed_by_the_same_ids(stage: Stage, bus: Bus) -> None:
    bus.dies = True
    with pytest.raises(Killed):
        turn(stage, 11)
    first = {event["id"] for event in bus.sent}
    bus.dies = False
    bus.sent.clear()
    turn(stage, 12)
    assert {event["id"] for event in bus.sent} == first
    bus.sent.clear()
    turn(stage, 13)
    assert not {event["id"] for event in bus.sent} & first
