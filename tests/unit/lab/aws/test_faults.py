"""The lab's pages, the faults that they order, and the calls that fail meanwhile."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from spotkeeper.adapters.errors import classify
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_lab.faults import Kind
from spotkeeper_lab.run.serve import (
    ORDERS,
    Faults,
    Front,
    Message,
    Receive,
    Send,
    Workers,
    make_world,
)
from spotkeeper_lab.run.up import LabSettings

SETTINGS = LabSettings(desired=2, physics=Physics(cold_start_s=0.0, event_delay_s=1.0))
ROLE = "AWS4-HMAC-SHA256 Credential=ASIA0123456789ABCDEF/20261120/us-east-1/{}/aws4_request, x"
OPERATOR = "AWS4-HMAC-SHA256 Credential=123456789012/20261120/us-east-1/{}/aws4_request, x"
SET = b"Action=SetDesiredCapacity&DesiredCapacity=3"


class Lab:
    """A lab whose clock is set by hand, and the endpoint behind it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.served: list[bytes] = []
        self.world = make_world(SETTINGS, lambda: 1_800_000_000.0, lambda: self.now_s)
        self.workers = Workers(self.world.time)
        faults = Faults(SETTINGS, self.world, self.workers)
        look = {"fleets": [], "why": "no stack"}
        self.pages = Front(self._behind, faults, lambda: dict(look))
        self.now_s = 1.0

    async def _behind(self, _scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self.served.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"the endpoint"})

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Send a request in two parts."""
        sent: list[Message] = []
        parts = [body[:4], body[4:]]

        async def receive() -> Message:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Message) -> None:
            sent.append(message)

        named = [(name.replace("_", "-").encode(), it.encode()) for name, it in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": named}
        asyncio.run(self.pages(scope, receive, send))
        return sent[0]["status"], sent[1]["body"]

    def order(self, do: str, **rest: object) -> str:
        status, answer = self.ask("POST", "/_lab/faults", json.dumps({"do": do, **rest}).encode())
        assert status == 200, answer
        return str(json.loads(answer)["done"])

    def call(
        self, body: bytes = SET, service: str = "autoscaling", target: str = "", by: str = ROLE
    ) -> tuple[int, str]:
        """Call AWS as a function does; status and answer."""
        headers = {"authorization": by.format(service), "x_amz_target": target}
        status, answer = self.ask("POST", "/", body, **headers)
        return status, answer.decode()

    def state(self) -> Any:
        return json.loads(self.ask("GET", "/_lab/state")[1])

    def spot(self) -> list[str]:
        return [one["id"] for one in self.state()["groups"][0]["instances"]]


@pytest.fixture
def lab() -> Lab:
    return Lab()


# --- pages ----------------------------------------------------------------------------------------


def test_the_pages_show_the_lab_and_leave_the_rest_to_the_endpoint(lab: Lab) -> None:
    assert lab.ask("POST", "/")[0] == 299
    assert lab.ask("GET", "/_lab/nothing")[0] == 404
    assert lab.ask("GET", "/_lab/")[1].startswith(b"<!doctype html>")
    page = json.loads(lab.ask("GET", "/_lab/state.json")[1])
    assert (page["why"], page["lab"]["market"]) == ("no stack", SETTINGS.pools | SETTINGS.elsewhere)
    assert page["at"].startswith("2027-01-15")
    spot, on_demand, *_ = lab.state()["groups"]
    assert (spot["desired"], len(spot["instances"]), on_demand["desired"]) == (2, 2, 0)


# --- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("button", ORDERS, ids=lambda one: one["label"])
def test_every_button_of_the_page_is_carried_out(lab: Lab, button: dict[str, Any]) -> None:
    assert lab.order(**button["fault"])


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({}, "do"),
        ({"do": "earthquake"}, "do"),
        ({"do": Kind.LOSS, "cuont": 1}, "cuont"),
        ({"do": Kind.LOSS, "value": -1}, "value"),
        ({"do": Kind.LOSS, "instances": ["i-0f00f00f00f00f00f"]}, "does not exist"),
        ({"do": Kind.STATE_LOST}, "not simulated"),
    ],
)
def test_a_wrong_order_is_refused_with_the_reason(lab: Lab, order: object, why: str) -> None:
    status, answer = lab.ask("POST", "/_lab/faults", json.dumps(order).encode())
    assert status == 400
    assert why in json.loads(answer)["error"]


def test_a_loss_is_warned_and_an_unwarned_one_takes_the_named_instance(lab: Lab) -> None:
    oldest, newest = lab.spot()
    assert lab.order(Kind.LOSS) == newest
    assert [one["warned"] for one in lab.state()["groups"][0]["instances"]] == [False, True]
    assert lab.order(Kind.UNWARNED_LOSS, instances=[oldest]) == oldest
    assert oldest not in lab.spot()
    lab.now_s += SETTINGS.physics.notice_s
    assert newest not in lab.spot()


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (Kind.ON_DEMAND_DRY, 0.0, "capacity"),
        (Kind.LAUNCH_REFUSED, 0.5, "quota"),
        (Kind.LAUNCH_REFUSED, 0.6, "configuration"),
    ],
)
def test_the_text_of_a_refused_launch_has_the_ordered_class(
    lab: Lab, kind: Kind, value: float, found: str
) -> None:
    assert classify(lab.order(kind, value=value)) == (found, True)


# --- calls that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "service", "status", "code"),
    [
        (Kind.THROTTLED, "autoscaling", 400, "<Code>Throttling</Code>"),
        (Kind.THROTTLED, "ec2", 503, "<Code>RequestLimitExceeded</Code>"),
        (Kind.TABLE_THROTTLED, "dynamodb", 500, "ProvisionedThroughputExceededException"),
        (Kind.FAULTY, "dynamodb", 500, "InternalServerError"),
        (Kind.FAULTY, "autoscaling", 500, "<Code>InternalFailure</Code>"),
        (Kind.FORBIDDEN, "autoscaling", 403, "<Code>AccessDenied</Code>"),
        (Kind.FORBIDDEN, "ec2", 403, "<Code>UnauthorizedOperation</Code>"),
        (Kind.TABLE_DOWN, "dynamodb", 500, "ServiceUnavailable"),
    ],
)
def test_a_call_fails_in_the_words_of_its_service(
    lab: Lab, kind: Kind, service: str, status: int, code: str
) -> None:
    tags = service == "ec2" and kind is Kind.FORBIDDEN
    lab.order(kind, value=0.4 if tags else 0.0 if kind is Kind.FORBIDDEN else 1.7)
    body = b"Action=CreateTags" if tags else SET
    target = "DynamoDB_20120810.PutItem" if service == "dynamodb" else ""
    assert lab.call(body, service, target)[0] == status
    assert code in lab.call(body, service, target)[1]
    assert lab.served == []


def test_a_lost_answer_has_had_its_effect(lab: Lab) -> None:
    lab.order(Kind.ANSWERS_LOST, value=1)
    assert lab.call()[0] == 500
    assert lab.served == [SET]


def test_whoever_deploys_is_not_disturbed_other_calls_pass_and_a_fault_ends(lab: Lab) -> None:
    lab.order(Kind.FORBIDDEN, value=0.0, length_s=60)
    assert lab.call()[0] == 403
    assert lab.call(by=OPERATOR)[0] == 299
    assert lab.call(b"Action=DetachInstances")[0] == 299
    assert lab.served == [SET, b"Action=DetachInstances"]
    lab.now_s += 60.0
    assert lab.call()[0] == 299
