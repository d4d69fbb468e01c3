"""The documents of a stack in Parameter Store: each stops its own fleet only."""

import json
import logging
from typing import Any

import pytest

from spotkeeper.adapters import fleet_documents
from spotkeeper.adapters.fleet_documents import FleetDocumentStore
from spotkeeper.domain.settings.sizing import Bounds, SizingPolicy
from spotkeeper.ports import Unavailable
from tests.unit.border.documents import LEAST, refused


class _Ssm:
    """Parameter Store with one page of parameters, or out of order."""

    def __init__(self, parameters: dict[str, str], error: Exception | None = None) -> None:
        self._parameters = parameters
        self.error = error

    def get_paginator(self, _name: str) -> "_Ssm":
        return self

    def paginate(self, *, Path: str, **_: object) -> list[dict[str, Any]]:
        if self.error:
            raise self.error
        page = [{"Name": f"{Path}/{n}", "Value": v} for n, v in self._parameters.items()]
        return [{"Parameters": page}]


def store(parameters: dict[str, str], error: Exception | None = None) -> FleetDocumentStore:
    return FleetDocumentStore(_Ssm(parameters, error), "/spotkeeper/test/fleets")  # type: ignore[arg-type]


DEEP = '{"a":' * 1300 + "1" + "}" * 1300


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"asr": json.dumps(LEAST), "asr.overrides": DEEP}, "is nested too deeply"),
        ({"team/asr": json.dumps(LEAST)}, "fleet document team/asr: is no name of a fleet"),
        ({"a" * 65: json.dumps(LEAST)}, "is no name of a fleet: 1 to 64 of A-Z a-z 0-9 _ . -"),
        (
            {"asr": json.dumps(LEAST | {"spot_group": "a\x00b"})},
            "fleet document asr: spot_group: String should match pattern",
        ),
    ],
    ids=["nested", "below a folder", "long name", "a group that AWS refuses to describe"],
)
def test_what_would_stop_every_fleet_stops_its_own(parameters: dict[str, str], told: str) -> None:
    well = json.dumps(LEAST | {"spot_group": "b-spot", "on_demand_group": "b-on-demand"})
    documents = store({"main": well, **parameters}).load()
    assert [fleet.name for fleet in documents.fleets] == ["main"]
    (error,) = documents.errors
    assert told in str(error)


def test_a_parameter_store_that_does_not_answer_is_unavailable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.CRITICAL), pytest.raises(Unavailable, match="/spotkeeper/test"):
        store({}, RuntimeError("no route")).load()


def other(**changes: object) -> str:
    return json.dumps({**LEAST, "spot_group": "b-spot", "on_demand_group": "b-od"} | changes)


def test_while_parameter_store_is_down_the_documents_read_last_stay_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_documents, "CACHE_S", 0)
    ssm = _Ssm({"ocr": json.dumps(LEAST), "broken": "{"})
    documents = FleetDocumentStore(ssm, "/spotkeeper/test/fleets")  # type: ignore[arg-type]
    before = documents.load()
    ssm.error = RuntimeError("no route")
    after = documents.load()
    assert (after.fleets, after.names) == (before.fleets, before.names)
    assert [type(error) for error in after.errors] == [Unavailable, *map(type, before.errors)]
    assert "no route; those that were read last stay in force" in str(after.errors[0])
    ssm.error = None
    assert len(documents.load().errors) == len(before.errors)


def test_a_group_belongs_to_one_fleet() -> None:
    documents = store(
        {
            "a": json.dumps(LEAST),
            "b": other(),
            "c": other(spot_group="ocr-on-demand", on_demand_group="c-od"),
        }
    ).load()
    assert [fleet.name for fleet in documents.fleets] == ["b"]
    assert documents.names == {"a", "b", "c"}
    assert [str(error).partition(";")[0] for error in documents.errors] == [
        "fleet documents a and c: both name the group ocr-on-demand"
    ]


@pytest.mark.parametrize("text", ["AQICAHhBSTC3Bt0wzVqCpVw8", '{"objective": {"share": .95}}'])
def test_what_is_no_json_is_told_what_it_must_be(text: str) -> None:
    assert "one JSON object in a parameter of type String, not SecureString" in refused(text)


def test_overrides_are_laid_over_what_the_stack_wrote() -> None:
    base = LEAST | {"sizing": {"target_load_rate": 0.6, "window_s": 120}}
    over = {"bounds": {"spot_max": 7}, "sizing": {"window_s": None, "stale_after_s": 60}}
    documents = store({"ocr": json.dumps(base), "ocr.overrides": json.dumps(over)}).load()
    assert documents.errors == ()
    (fleet,) = documents.fleets
    assert fleet.bounds == Bounds(spot_min=0, spot_max=7, on_demand_max=10)
    sizing = SizingPolicy(target_load_rate=0.6, stale_after_s=60)
    assert fleet.sizing == sizing
    assert documents.names == {"ocr"}


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("{", "fleet document ocr.overrides: no JSON"),
        ("[]", "fleet document ocr.overrides: must be a JSON object"),
        ('{"bounds": {"spot_mx": 7}}', "bounds.spot_mx: Extra inputs are not permitted"),
        ('{"bounds": null}', "bounds: Field required"),
    ],
)
def test_wrong_overrides_stop_their_fleet_and_name_the_field(overrides: str, told: str) -> None:
    documents = store({"ocr": json.dumps(LEAST), "ocr.overrides": overrides}).load()
    assert documents.fleets == ()
    assert told in str(documents.errors[0])


def test_overrides_of_nothing_are_an_error() -> None:
    documents = store({"ocr": json.dumps(LEAST), "orc.overrides": "{}"}).load()
    assert [f.name for f in documents.fleets] == ["ocr"]
    assert "orc.overrides overrides no document" in str(documents.errors[0])
