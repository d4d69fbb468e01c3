"""Fleet documents: defaults, every wrong field at once, and one wrong document alone."""

import json
import math
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.adapters import fleet_documents
from spotkeeper.adapters.fleet_documents import FleetDocumentStore
from spotkeeper.border.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import Mode
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy
from spotkeeper.ports import Unavailable
from tests.laws import JSON

LEAST: dict[str, Any] = {
    "version": 1,
    "spot_group": "ocr-spot",
    "on_demand_group": "ocr-on-demand",
    "bounds": {"spot_max": 20, "on_demand_max": 10},
}

SQS = "https://sqs.us-east-1.amazonaws.com/123456789012/requests"


def parsed(**changes: object) -> Fleet:
    return parse_fleet("ocr", json.dumps(LEAST | changes))


def refused(text: str) -> str:
    with pytest.raises(FleetDocumentError) as caught:
        parse_fleet("ocr", text)
    assert str(caught.value).startswith("fleet document ocr: ")
    return str(caught.value)


@pytest.mark.parametrize("value", [0, 1.5, "long", None])
def test_a_setting_of_an_earlier_release_is_passed_over_and_named(value: object) -> None:
    old = {
        "availability": {"settle_s": value, "elevated_risk_s": value, "busy_patience_s": 60},
        "worker_health": {"peers_finished": value},
    }
    for read in (parsed(**old), parse_fleet("ocr", json.dumps(LEAST), json.dumps(old))):
        assert read.availability == AvailabilityPolicy(busy_patience_s=60)
        assert read.worker_health == WorkerHealthPolicy()
        named = {
            "availability.settle_s",
            "availability.elevated_risk_s",
            "worker_health.peers_finished",
        }
        # A null among the overrides takes a setting out.
        assert named <= {*read.unused} or value is None
    assert parsed().unused == ()


def test_an_objective_and_a_mode_are_read_and_a_wait_of_nothing_is_none() -> None:
    assert parsed().objective is None
    assert parsed(objective={"wait_s": 0, "share": 0.95}).objective is None
    slow = parsed(objective={"wait_s": 2.5, "share": 0.99, "start_up_s": 600}).objective
    assert slow == Objective(wait_s=2.5, share=0.99, start_up_s=600)
    assert parsed(mode="observe").mode is Mode.OBSERVE


@pytest.mark.parametrize(
    "url",
    [
        SQS,
        "https://sqs.cn-north-1.amazonaws.com.cn/123456789012/ocr_requests-2.fifo",
        "https://sqs.eusc-de-east-1.amazonaws.eu/123456789012/requests",
        None,
    ],
)
def test_a_request_queue_is_named_by_its_url(url: str | None) -> None:
    assert parsed(request_queue_url=url).request_queue_url == url


NO_QUEUES = (
    "", "arn:aws:sqs:us-east-1:123456789012:requests", SQS.replace("https", "http"), f"{SQS}?x",
    "https://sqs.us-east-1.amazonaws.com/requests", SQS.replace(".com", ".com.example.org"),
)  # fmt: skip


def objective(**changes: object) -> dict[str, object]:
    return {"objective": {"wait_s": 10, "share": 0.95} | changes}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"objective": {"wait_s": 10}}, "objective.share: "),
        (objective(wait_s=-1), "objective.wait_s: "),
        (objective(share=1.0), "objective.share: "),
        (objective(start_up_s=0), "objective.start_up_s: "),
        *(({"request_queue_url": url}, "request_queue_url: ") for url in NO_QUEUES),
        ({"mode": "watch"}, "mode: must be 'act' or 'observe'"),
        ({"slots": "4"}, "slots: must be a whole number, without quotes"),
        ({"sizing": []}, "sizing: must be an object"),
        ({"worker_health": {"enabled": 1}}, "worker_health.enabled: "),
        ({"spot_group": "a\x00b"}, "spot_group: does not have the form"),
        ({"maintenance": "sun 3-4"}, "form of this field: an example is Sat 22:00-02:00"),
        ({"egress_usd": math.inf}, "egress_usd: must be a finite number"),
        ({"sizing.enabled": True}, "sizing.enabled: is not known here: sizing is an object"),
        ({"on_demand_group": "ocr-spot"}, "spot_group and on_demand_group must be two groups"),
        (
            {"bounds": {"spot_min": 5, "spot_max": 4, "on_demand_max": 1}, "version": 3},
            "bounds: spot_min 5 is above spot_max 4",
        ),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes: dict[str, object], told: str) -> None:
    assert told in refused(json.dumps(LEAST | changes))


def test_every_wrong_field_is_named_at_once() -> None:
    wrong = {
        "version": 2,
        "spot_group": "",
        "on_demand_group": 7,
        "workers_per_instance": 0,
        "onprem_workers": "two",
        "bounds": {"spot_max": -1, "on_demand_max": 3.5, "spot_low": 1},
        "sizing": {"target_load_rate": 1.5, "quiet_after_s": 60},
        "availability": {"rebalance": "panic", "busy_patience_s": True},
        "worker_health": {"silent_after_s": 1},
        "colour": "blue",
    }
    told = refused(json.dumps(wrong))
    for name, value in wrong.items():
        for inner in value if isinstance(value, dict) else [""]:
            assert f"{name}.{inner}".strip(".") + ": " in told


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", '"ocr"', "version: 1", "\0", "{}}", "AQICAHhBSTC3Bt0wzVqCpVw8",
     '{"objective": {"share": .95}}', "// a comment\n{}"],
)  # fmt: skip
def test_text_that_is_no_json_object_gets_an_error_that_says_what_is_expected(text: str) -> None:
    told = refused(text)
    if text in ("null", "[]", '"ocr"'):
        assert told.endswith("must be a JSON object")
    elif text.startswith("AQ"):
        assert "its parameter must be of type String, not SecureString" in told
    else:
        assert told.endswith("write one object, without comments" if text else "is empty")


@pytest.mark.parametrize("rate", ["NaN", "Infinity", "-Infinity", "1e999", "0"])
def test_a_rate_is_a_real_share(rate: str) -> None:
    text = json.dumps(LEAST | {"sizing": {"target_load_rate": 0}}).replace(": 0}", f": {rate}}}")
    assert "sizing.target_load_rate: " in refused(text)


@given(st.dictionaries(st.sampled_from([*LEAST, "sizing", "availability", "x"]), JSON, max_size=3))
def test_arbitrary_fields_raise_nothing_but_a_document_error(changes: dict[str, Any]) -> None:
    try:
        parsed(**changes)
    except FleetDocumentError as error:
        assert str(error).startswith("fleet document ocr: ")


# --- the documents of a stack in Parameter Store --------------------------------------------------


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


def store(parameters: dict[str, str]) -> FleetDocumentStore:
    client: Any = _Ssm(parameters)
    return FleetDocumentStore(client, "/spotkeeper/test/fleets")


DEEP = '{"a":' * 1300 + "1" + "}" * 1300
LONG = f'{{"availability": {{"settle_s": {"9" * 5000}}}}}'


MAIN = {
    "main": json.dumps(LEAST | {"spot_group": "b-spot", "on_demand_group": "b-on-demand"}),
    "asr": json.dumps(LEAST),
}


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"asr.overrides": DEEP}, "is nested too deeply"),
        ({"asr.overrides": LONG}, "asr.overrides: is not JSON"),
        ({"asr.overrides": "{"}, "fleet document asr.overrides: is not JSON"),
        (
            {"asr.overrides": '{"bounds": {"spot_mx": 7}}'},
            "bounds.spot_mx: is not known here: did you mean bounds.spot_max?",
        ),
        ({"asr.overrides": '{"bounds": null}'}, "bounds: is missing"),
        ({"asr": "{"}, "fleet document asr: "),
        ({"asr": '{"a":' * 900 + "1" + "}" * 900}, "fleet document asr: "),
    ],
)
def test_a_wrong_field_stops_only_its_own_fleet(parameters: dict[str, str], told: str) -> None:
    documents = store(MAIN | parameters).load()
    assert [fleet.name for fleet in documents.fleets] == ["main"]
    (error,) = documents.errors
    assert told in str(error)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("team/asr", "fleet document team/asr: is not the name of a fleet"),
        ("a" * 65, "is not the name of a fleet: use 1 to 64 of A-Z a-z 0-9 _ . -"),
        ("orc.overrides", "orc.overrides overrides no document"),
    ],
)
def test_what_belongs_to_no_fleet_is_named(name: str, told: str) -> None:
    documents = store({"main": MAIN["main"], name: MAIN["asr"]}).load()
    assert [fleet.name for fleet in documents.fleets] == ["main"]
    assert told in str(documents.errors[0])


def test_while_parameter_store_is_down_the_documents_read_last_stay_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet_documents, "CACHE_S", 0)
    ssm = _Ssm(
        {"ocr": json.dumps(LEAST), "broken": "{"},
        ClientError({"Error": {"Code": "InternalServerError", "Message": "no route"}}, ""),
    )
    documents = FleetDocumentStore(ssm, "/spotkeeper/test/fleets")  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="/spotkeeper/test"):
        documents.load()
    ssm.error, down = None, ssm.error
    before = documents.load()
    ssm.error = down
    after = documents.load()
    assert (after.fleets, after.names) == (before.fleets, before.names)
    assert [type(error) for error in after.errors] == [Unavailable, *map(type, before.errors)]
    assert "no route; those that were read last stay in force" in str(after.errors[0])
    ssm.error = None
    assert len(documents.load().errors) == len(before.errors)


def test_a_group_belongs_to_one_fleet() -> None:
    both = LEAST | {"spot_group": "ocr-on-demand", "on_demand_group": "c-od"}
    documents = store({**MAIN, "c": json.dumps(both)}).load()
    assert [fleet.name for fleet in documents.fleets] == ["main"]
    assert documents.names == {"main", "asr", "c"}
    for name, error in zip(("asr", "c"), documents.errors, strict=True):
        told = f"fleet document {name}: names the group ocr-on-demand, which asr and c name; no"
        assert str(error).startswith(told)


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
