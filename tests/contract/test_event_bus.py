"""Events out over botocore: what is on the bus is what docs/events.schema.json says."""

import json
from collections.abc import Iterator
from itertools import batched
from pathlib import Path
from typing import Any, cast

import boto3
import pytest
from botocore.stub import ANY, Stubber
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from spotkeeper.adapters.event_bus import EventBus
from spotkeeper.domain.availability.announcements import REASON_AT_MOST, Announcement, State
from spotkeeper.domain.permission import Permission
from spotkeeper.ports import Throttled, Unavailable
from tests.builders import at

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "events.schema.json").read_text())


@pytest.fixture
def stub() -> Iterator[Stubber]:
    with Stubber(boto3.client("events", region_name="us-east-1")) as stub:
        yield stub


def send(stub: Stubber, *announcements: Announcement) -> None:
    EventBus(lambda: cast("Any", stub.client), "ops", "spotkeeper").send(announcements)


def test_every_state_is_an_event_of_the_schema(stub: Stubber) -> None:
    sent: list[dict[str, Any]] = []

    def note(params: dict[str, Any], **_: object) -> None:
        sent.extend(params["Entries"])

    stub.client.meta.events.register("provide-client-params", note)
    said = [
        Announcement(fleet="ocr", state=state, at=at(60), reason="x" * REASON_AT_MOST,
                     permission=permission)
        for state, permission in zip(State, [*Permission] * len(State), strict=False)
    ]  # fmt: skip
    for some in batched(said, 10, strict=False):  # AWS takes as many in one call.
        stub.add_response("put_events", {"FailedEntryCount": 0, "Entries": []}, {"Entries": ANY})
        send(stub, *some)
    assert {e["DetailType"] for e in sent} == {*SCHEMA["properties"]["state"]["enum"]}
    for entry in sent:
        assert (entry["Source"], entry["EventBusName"]) == ("spotkeeper", "ops")
        detail = json.loads(entry["Detail"])
        Draft202012Validator(SCHEMA).validate(detail)
        assert (detail["stack"], detail["state"]) == ("spotkeeper", entry["DetailType"])


def test_what_the_bus_does_not_take_is_an_error(stub: Stubber) -> None:
    short = Announcement(fleet="ocr", state=State.SHORT, at=at(60), reason="")
    failed = {"ErrorCode": "InternalFailure", "ErrorMessage": "again"}
    stub.add_response("put_events", {"FailedEntryCount": 1, "Entries": [failed]})
    with pytest.raises(Unavailable, match="sending events: InternalFailure: again"):
        send(stub, short)
    stub.add_client_error("put_events", "ThrottlingException")
    with pytest.raises(Throttled, match="sending events"):
        send(stub, short)
