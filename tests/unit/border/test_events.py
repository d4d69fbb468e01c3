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
from tests.builders import evidence
from tests.laws import JSON

EVENTS = Path(__file__).parents[3] / "events"
ACCOUNT = "123456789012"
SPOT_INSTANCE = "i-0838c23d20458e79c"
CHANGE = "health_scheduled_change"
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
    "refresh_started": found(KIND.REFRESH_STARTED, "10:06:00", **OURS),
    "health_scheduled_change": found(
        KIND.SCHEDULED_CHANGE, "08:00:00", SPOT_INSTANCE, "i-0c1d2e3f4a5b6c7d8", due=DUE
    ),
}
NEEDED = {
    "spot_interruption_warning": ("instance-id",),
    "rebalance_recommendation": ("instance-id",),
    "instance_state_change": ("instance-id", "state"),
    **{name: ("AutoScalingGroupName",) for name, read in EXPECTED.items() if read.group},
    "health_scheduled_change": ("service", "eventTypeCategory", "startTime"),
}


def event(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((EVENTS / f"{name}.json").read_text())
    return loaded


def test_every_event_file_is_expected_here() -> None:
    assert {path.stem for path in EVENTS.glob("*.json")} == EXPECTED.keys() | NOT_FOR_US


@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_event_is_read(name: str) -> None:
    assert parse_event(event(name), ACCOUNT) == EXPECTED[name]


PARTS = ("source", "detail-type", "account", "time", "detail")
ENVELOPE = [("spot_interruption_warning", "", field) for field in PARTS]
DETAIL = [(name, "detail", field) for name, fields in NEEDED.items() for field in fields]


@pytest.mark.parametrize(("name", "part", "field"), [*ENVELOPE, *DETAIL])
def test_a_missing_field_is_named(name: str, part: str, field: str) -> None:
    mangled = event(name)
    del (mangled[part] if part else mangled)[field]
    kind = mangled.get("detail-type", "of no known kind") if part else ""
    with pytest.raises(EventError, match=f"{kind}.*{field}: is missing"):
        parse_event(mangled, ACCOUNT)


NO_IDS = ("", "i-", "i-XYZ", "0838c23d20458e79c", "i-0838c23d20458e79c ")
NO_TIMES: tuple[object, ...] = ("", "yesterday", "2026-11-20T10:02:31", None, {})
NO_STARTS = (
    "", "soon", "2026-13-45", "Sat, 05 Jun 99999999 15:10:09 GMT",
    "Sat, 05 Jun 2016 15:10:99999999999999999999 GMT",
    "Sat, 05 Jun 2016 15:10:09 +9999999999999999999",
)  # fmt: skip


@pytest.mark.parametrize(("name", "field", "wrong"), [
    *(("spot_interruption_warning", "instance-id", wrong) for wrong in NO_IDS),
    *(("spot_interruption_warning", "time", wrong) for wrong in NO_TIMES),
    *((CHANGE, "startTime", wrong) for wrong in NO_STARTS),
])  # fmt: skip
def test_text_that_is_no_instant_is_refused(name: str, field: str, wrong: object) -> None:
    mangled = event(name)
    (mangled if field == "time" else mangled["detail"])[field] = wrong
    with pytest.raises(EventError, match=field):
        parse_event(mangled, ACCOUNT)


@pytest.mark.parametrize("row", evidence("events"), ids=lambda row: row["event"][:90])
def test_an_event_of_aws_is_read_as_what_it_means(row: dict[str, str]) -> None:
    """The second page of a change, a start in ISO 8601, a dummy of an id: each has its row."""
    parsed = parse_event(event(CHANGE) | json.loads(row["event"]), ACCOUNT)
    assert parsed is None or (parsed.due == DUE) == (parsed.kind is KIND.SCHEDULED_CHANGE)
    assert (parsed.kind if parsed else "") == row["kind"]
    assert " ".join(parsed.instance_ids if parsed else ()) == row["instances"]
    assert row["source"]


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
