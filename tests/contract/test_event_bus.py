"""Events out over botocore: what is on the bus is what docs/events.schema.json says."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from spotkeeper.adapters.event_bus import EventBus
from spotkeeper.domain.availability.announcements import REASON_AT_MOST, Announcement, State
from spotkeeper.domain.permission import Permission
from spotkeeper.ports import Refused, Throttled, Unavailable
from tests.builders import at

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "events.schema.json").read_text())


@pytest.fixture
def stubbed() -> tuple[EventBus, Stubber]:
    client = boto3.client("events", region_name="us-east-1")
    stubber = Stubber(client)
    stubber.activate()
    return EventBus(lambda: client, "ops", "spotkeeper"), stubber


def test_every_state_is_an_event_of_the_schema(stubbed: tuple[EventBus, Stubber]) -> None:
    bus, stubber = stubbed
    said = [
        Announcement(fleet="ocr", state=state, at=at(60), reason="x" * REASON_AT_MOST,
                     permission=permission)
        for state, permission in zip(State, [*Permission] * len(State), strict=False)
    ]  # fmt: skip
    expected: dict[str, Any] = {"Entries": ANY}
    stubber.add_response("put_events", {"FailedEntryCount": 0, "Entries": []}, expected)
    sent: list[dict[str, Any]] = []
    events = bus._events().meta.events
    events.register("provide-client-params", lambda params, **_: sent.extend(params["Entries"]))
    bus.send(said)
    assert {e["DetailType"] for e in sent} == {*SCHEMA["properties"]["state"]["enum"]}
    for entry in sent:
        assert (entry["Source"], entry["EventBusName"]) == ("spotkeeper", "ops")
        detail = json.loads(entry["Detail"])
        Draft202012Validator(SCHEMA).validate(detail)
        assert (detail["stack"], detail["state"]) == ("spotkeeper", entry["DetailType"])


def test_what_the_bus_does_not_take_is_an_error(stubbed: tuple[EventBus, Stubber]) -> None:
    bus, stubber = stubbed
    said = [Announcement(fleet="ocr", state=State.SHORT, at=at(60), reason="")]
    failed = {"ErrorCode": "InternalFailure", "ErrorMessage": "again"}
    stubber.add_response("put_events", {"FailedEntryCount": 1, "Entries": [failed]})
    with pytest.raises(Unavailable, match="sending events: InternalFailure: again"):
        bus.send(said)
    for code, kind in (("ThrottlingException", Throttled), ("AccessDeniedException", Refused)):
        stubber.add_client_error("put_events", code)
        with pytest.raises(kind, match="sending events"):
            bus.send(said)
