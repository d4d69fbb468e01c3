"""Events become interruptions; what is not one is refused by name or ignored."""

import json
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.border.events import EventError, parse_event
from spotkeeper.domain.interruption import Interruption, InterruptionKind

EVENTS = Path(__file__).parents[3] / "events"
ACCOUNT = "123456789012"
SPOT_INSTANCE = "i-0838c23d20458e79c"
NOT_FOR_US = {"schedule", "search_logs", "wake_up"}


def found(kind: InterruptionKind, clock: str, *ids: str, **more: Any) -> Interruption:
    at = datetime.fromisoformat(f"2026-11-20T{clock}Z")
    return Interruption(kind=kind, at=at, instance_ids=ids, **more)


KIND, OURS = InterruptionKind, {"group": "ocr-spot"}
DUE = datetime(2026, 11, 21, 15, 10, 9, tzinfo=UTC)
EXPECTED = {
    "spot_interruption_warning": found(KIND.INTERRUPTION_WARNING, "10:02:31", SPOT_INSTANCE),
    "rebalance_recommendation": found(KIND.REBALANCE_RECOMMENDATION, "09:58:04", SPOT_INSTANCE),
    "instance_state_change": found(KIND.STATE_CHANGE, "10:04:33", SPOT_INSTANCE),
    "launch_successful": found(KIND.LAUNCH_SUCCESSFUL, "10:08:41", SPOT_INSTANCE, **OURS),
    "launch_unsuccessful": found(KIND.LAUNCH_UNSUCCESSFUL, "10:05:17", **OURS),
    "terminate_successful": found(KIND.TERMINATE_SUCCESSFUL, "10:05:30", SPOT_INSTANCE, **OURS),
    "health_scheduled_change": found(
        KIND.SCHEDULED_CHANGE, "08:00:00", SPOT_INSTANCE, "i-0c1d2e3f4a5b6c7d8", due=DUE
    ),
}
NEEDED = {
    "spot_interruption_warning": ("instance-id",),
    "rebalance_recommendation": ("instance-id",),
    "instance_state_change": ("instance-id", "state"),
    "launch_successful": ("AutoScalingGroupName",),
    "launch_unsuccessful": ("AutoScalingGroupName",),
    "terminate_successful": ("AutoScalingGroupName",),
    "health_scheduled_change": ("service", "eventTypeCategory", "startTime"),
}
NEEDED_FIELDS = [(name, field) for name, fields in NEEDED.items() for field in fields]


def event(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return loaded


def with_detail(name: str, **changes: object) -> dict[str, Any]:
    changed = event(name)
    changed["detail"] |= {key.replace("_", "-"): value for key, value in changes.items()}
    return changed


def test_every_event_file_is_expected_here() -> None:
    assert {path.stem for path in EVENTS.glob("*.json")} == EXPECTED.keys() | NOT_FOR_US


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_event_is_read(name: str) -> None:
    assert parse_event(event(name), ACCOUNT) == EXPECTED[name]


@pytest.mark.parametrize("field", ["source", "detail-type", "account", "time", "detail"])
def test_a_missing_field_of_the_envelope_is_named(field: str) -> None:
    mangled = event("spot_interruption_warning")
    del mangled[field]
    with pytest.raises(EventError, match=f"{field}: Field required"):
        parse_event(mangled, ACCOUNT)


@pytest.mark.parametrize(("name", "field"), NEEDED_FIELDS)
def test_a_missing_field_of_the_detail_is_named(name: str, field: str) -> None:
    mangled = event(name)
    del mangled["detail"][field]
    with pytest.raises(EventError, match=f"{mangled['detail-type']}: .*{field}: Field required"):
        parse_event(mangled, ACCOUNT)


@pytest.mark.parametrize("wrong", ["", "i-", "i-XYZ", "0838c23d20458e79c", "i-0838c23d20458e79c "])
def test_what_is_no_instance_id_is_refused(wrong: str) -> None:
    mangled = with_detail("spot_interruption_warning", instance_id=wrong)
    with pytest.raises(EventError, match="instance-id"):
        parse_event(mangled, ACCOUNT)


@pytest.mark.parametrize("wrong", ["", "yesterday", "2026-11-20T10:02:31", None, {}])
def test_a_time_without_sense_or_zone_is_refused(wrong: object) -> None:
    with pytest.raises(EventError, match="time"):
        parse_event(event("spot_interruption_warning") | {"time": wrong}, ACCOUNT)


@pytest.mark.parametrize("name", ["launch_successful", "launch_unsuccessful"])
@pytest.mark.parametrize("instance_id", [None, ""])
def test_a_launch_may_name_no_instance(name: str, instance_id: str | None) -> None:
    for unnamed in (with_detail(name, EC2InstanceId=instance_id), event(name)):
        if unnamed["detail"]["EC2InstanceId"] == SPOT_INSTANCE:
            del unnamed["detail"]["EC2InstanceId"]
        parsed = parse_event(unnamed, ACCOUNT)
        assert parsed is not None
        assert (parsed.instance_ids, parsed.group) == ((), "ocr-spot")


@pytest.mark.parametrize("state", ["pending", "running", "stopped", "terminated", "dancing"])
def test_an_instance_that_comes_or_has_gone_makes_no_turn(state: str) -> None:
    assert parse_event(with_detail("instance_state_change", state=state), ACCOUNT) is None


def test_aws_health_of_other_services_and_categories_is_ignored() -> None:
    about = "health_scheduled_change"
    assert parse_event(with_detail(about, service="RDS"), ACCOUNT) is None
    assert parse_event(with_detail(about, eventTypeCategory="issue"), ACCOUNT) is None
    other = event(about) | {"detail": {"service": "LAMBDA", "eventTypeCategory": "issue"}}
    assert parse_event(other, ACCOUNT) is None


def test_aws_health_without_instances_is_ignored() -> None:
    for affected in ([], [{"entityValue": "vol-049df61146c4d7901"}]):
        named = with_detail("health_scheduled_change", affectedEntities=affected)
        assert parse_event(named, ACCOUNT) is None
    unnamed = event("health_scheduled_change")
    del unnamed["detail"]["affectedEntities"]
    assert parse_event(unnamed, ACCOUNT) is None


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("Sat, 05 Jun 2016 15:10:09 GMT", datetime(2016, 6, 5, 15, 10, 9, tzinfo=UTC)),
        ("2026-11-21T15:10:09Z", DUE),
        ("2026-11-21T15:10:09", DUE),
        ("2026-11-21T16:10:09+01:00", DUE),
    ],
)
def test_aws_health_writes_times_in_two_ways(text: str, due: datetime) -> None:
    parsed = parse_event(with_detail("health_scheduled_change", startTime=text), ACCOUNT)
    assert parsed is not None
    assert parsed.due == due


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-13-45",
        "Sat, 05 Jun 99999999 15:10:09 GMT",
        "Sat, 05 Jun 2016 15:10:99999999999999999999 GMT",
        "Sat, 05 Jun 2016 15:10:09 +9999999999999999999",
    ],
)
def test_a_start_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(EventError, match="startTime"):
        parse_event(with_detail("health_scheduled_change", startTime=text), ACCOUNT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@given(JSON)
def test_arbitrary_json_raises_nothing_but_an_event_error(anything: object) -> None:
    with pytest.raises(EventError):
        parse_event(anything, ACCOUNT)


@given(st.data())
def test_a_mangled_event_raises_nothing_but_an_event_error(data: st.DataObject) -> None:
    mangled = deepcopy(event(data.draw(st.sampled_from(sorted(EXPECTED)))))
    for part in (mangled, mangled["detail"]):
        for key in data.draw(st.sets(st.sampled_from(sorted(part)), max_size=2)):
            if key not in ("detail", "detail-type", "source"):
                part[key] = data.draw(JSON)
    try:
        parsed = parse_event(mangled, ACCOUNT)
    except EventError as error:
        assert str(error).startswith("event ")
    else:
        assert parsed is None or isinstance(parsed, Interruption)


def test_a_scheduled_change_that_was_called_off_is_ignored() -> None:
    assert parse_event(with_detail("health_scheduled_change", statusCode="closed"), ACCOUNT) is None
