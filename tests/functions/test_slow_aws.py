"""What calls of AWS that hang do to turns: real handlers, virtual time, the clients' time-outs."""

import json
from collections.abc import Callable
from contextlib import suppress

import pytest

from functions.check_availability.app import handler as availability
from functions.check_health.app import handler as health
from spotkeeper.observability import TurnFailed
from tests.functions.conftest import Stage, StageOf, document, slow_down

# All spot capacity goes at minute 16.
LOSES_ALL = ((0.0, 40), (960.0, 0))
LOST = (900, 960, 1020)
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"
FIVE = tuple(f"fleet-{n}" for n in range(5))


def turn(
    stage: Stage, seconds: float, handler: Callable[..., object] = availability, fails: str = ""
) -> None:
    """Call a function at an instant; it ends in time, and fails where that is expected."""
    stage.at(seconds)
    if fails:
        with pytest.raises(TurnFailed, match=fails):
            stage.call(handler)
    else:
        stage.call(handler)
    assert stage.took_s <= 20


def on_demand(stage: Stage, *fleets: str) -> list[int]:
    return [stage.cloud.group(f"{fleet}-on-demand").desired for fleet in fleets]


@pytest.mark.parametrize("names", [FIVE[:1], FIVE])
@pytest.mark.parametrize(
    "hang", [{"ec2"}, {"ec2", "DescribeScalingActivities"}], ids=["EC2", "EC2 and activities"]
)
def test_an_api_that_does_not_answer_stops_no_backfill(
    stage_of: StageOf, names: tuple[str, ...], hang: set[str]
) -> None:
    stage = stage_of(names, spot=LOSES_ALL)
    stage.call(availability)
    stage.hang |= hang
    for seconds in LOST:
        turn(stage, seconds)
    assert min(on_demand(stage, *names)) >= 4
    for name in names:
        first, *later = stage.records(name)
        assert (first["unread"], later[-1]["at"][:19]) == ([], "2026-11-20T12:17:00")
        assert any("spot requests: TimedOut" in why for r in later for why in r["unread"])


def test_a_hanging_tag_call_is_made_once_and_not_for_each_instance(stage_of: StageOf) -> None:
    stage = stage_of(("ocr",), desired=40, spot=((0.0, 40), (1020.0, 20)))
    stage.call(availability)
    stage.hang.add("CreateTags")
    turn(stage, 900, fails="TimedOut")
    assert stage.counted("ec2")["CreateTags"] == 1
    assert on_demand(stage, "ocr") == [20]


@pytest.mark.parametrize("handler", [availability, health])
def test_groups_that_hang_leave_a_record_in_every_fleet(
    stage_of: StageOf, handler: Callable[..., object]
) -> None:
    stage = stage_of()
    stage.hang.add("autoscaling")
    turn(stage, 600, handler, fails="TimedOut|Read timeout")
    for name in ("ocr", "search"):
        (record,) = stage.records(name)
        assert record["rule"] == "failed"
        assert record["error"]["text"].startswith("describing Auto Scaling groups: Read timeout")


def test_a_hanging_request_queue_delays_other_fleets_for_one_turn_at_most(
    stage_of: StageOf,
) -> None:
    stage = stage_of(FIVE)
    for name in FIVE:
        stage.put(name, json.dumps(document(name, request_queue_url=QUEUE + name)))
    stage.restart()
    stage.hang.add("sqs")
    turned = dict.fromkeys(FIVE, 0)
    for minute in range(11, 21):
        turn(stage, 60 * minute, health, fails="not every turn succeeded")
        for name in FIVE:
            turned[name] += stage.records(name)[-1]["rule"] != "failed"
    assert min(turned.values()) >= 3


def test_a_table_that_hangs_stops_no_backfill(stage_of: StageOf) -> None:
    stage = stage_of(FIVE, spot=LOSES_ALL)
    stage.call(availability)
    stage.hang.add("dynamodb")
    for seconds in LOST:
        turn(stage, seconds, fails=r"TimedOut|Read timeout")
    assert set(on_demand(stage, *FIVE)) == {4}
    assert {stage.cloud.group(f"{name}-spot").desired for name in FIVE} == {4}
    stage.hang.clear()
    turn(stage, 1080)
    assert stage.records("fleet-0")[-1]["rule"] == "make before break"


@pytest.mark.parametrize("item", ["control", "state"])
@pytest.mark.parametrize("handler", [availability, health])
def test_an_item_that_the_table_cannot_read_stops_its_own_fleet_only(
    stage_of: StageOf, handler: Callable[..., object], item: str
) -> None:
    """Each fleet is the first of some minute."""
    stage = stage_of(FIVE)
    stage.down.add(f"fleet-2 {item}")
    for minute in range(11, 16):
        turn(stage, 60 * minute, handler, fails=r"fleet-2: .*Service unavailable")
    failed = {name: [r["error"] is not None for r in stage.records(name)] for name in FIVE}
    assert failed == {name: [name == "fleet-2"] * 5 for name in FIVE}


@pytest.mark.parametrize("answer", ["hangs", "throttles"])
def test_a_function_that_starts_without_the_parameter_store_takes_the_copy(
    stage_of: StageOf, answer: str
) -> None:
    stage = stage_of(("ocr",), spot=LOSES_ALL)
    stage.call(availability)
    if answer == "hangs":
        stage.hang.add("ssm")
    else:
        stage.during["GetParametersByPath"] = slow_down
    stage.restart()
    turn(stage, 1020, fails="those that were read last stay in force")
    assert on_demand(stage, "ocr") == [4]


def test_a_large_release_takes_several_turns_and_delays_no_other_fleet(stage_of: StageOf) -> None:
    stage = stage_of(desired=80, spot=((0.0, 200), (960.0, 0), (2400.0, 200)))
    for minute in range(10, 40):
        turn(stage, 60 * minute)
    stage.latency_s = 0.25
    left: list[list[int]] = []
    for minute in range(40, 65):
        turn(stage, 60 * minute)
        left.append(on_demand(stage, "ocr", "search"))
    assert (left[0][0], left[-1]) == (80, [0, 0])
    assert len({ocr for ocr, _ in left}) > 4


def test_a_large_scale_in_takes_several_turns_and_delays_no_other_fleet(stage_of: StageOf) -> None:
    stage = stage_of(desired=80)
    bounds = {"spot_min": 2, "spot_max": 2, "on_demand_max": 9}
    for name in ("ocr", "search"):
        stage.put(name, json.dumps(document(name, bounds=bounds)))
    stage.restart()
    stage.latency_s = 0.25
    left: list[int] = []
    for minute in range(11, 22):
        turn(stage, 60 * minute, health)
        left.append(stage.cloud.group("ocr-spot").desired)
    assert (left[0] > 40, left[-1]) == (True, 2)
    assert stage.cloud.group("search-spot").desired == 2


def test_a_table_and_queues_that_are_down_stop_no_invocation_of_many_fleets(
    stage_of: StageOf,
) -> None:
    names = tuple(f"fleet-{n:02}" for n in range(40))
    stage = stage_of(names, desired=1, spot=LOSES_ALL)
    for _ in range(8):
        handed_on = {"fleets": list(names), "minute": stage.now.isoformat()}
        with suppress(TurnFailed):
            stage.call(availability, {"Records": [{"body": json.dumps(handed_on)}]})
    stage.down |= {"sqs", "dynamodb"}
    for seconds in LOST:
        turn(stage, seconds, fails="not every turn succeeded")
    assert set(on_demand(stage, *names)) == {1}


@pytest.mark.parametrize("handler", [availability, health])
@pytest.mark.parametrize("hang", ["dynamodb", "PutItem"])
def test_a_table_that_hangs_during_a_turn_ends_no_function(
    stage_of: StageOf, handler: Callable[..., object], hang: str
) -> None:
    stage = stage_of(FIVE, spot=LOSES_ALL)
    stage.call(handler)
    stage.at(1020)
    stage.during["DescribeAutoScalingGroups"] = lambda: stage.hang.add(hang)
    with pytest.raises(TurnFailed, match=r"TimedOut|Read timeout"):
        stage.call(handler)
    assert stage.took_s < 30
