import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from spotkeeper_lab.endpoint.faults.calls import FailingCalls, Message, Receive, Send
from spotkeeper_lab.endpoint.faults.deliveries import Deliveries
from spotkeeper_lab.endpoint.faults.inject import Faults
from spotkeeper_lab.endpoint.lab import LabPages
from spotkeeper_lab.endpoint.machines import Workers
from spotkeeper_lab.endpoint.serve import make_world
from spotkeeper_lab.endpoint.settings import LabSettings

SETTINGS = LabSettings(desired=2, cold_start_s=0.0)


async def behind(_scope: Mapping[str, Any], _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"the endpoint"})


@pytest.fixture
def pages() -> LabPages:
    world = make_world(SETTINGS, lambda: 1_800_000_000.0, lambda: 0.0)
    workers = Workers(world.time)
    calls = FailingCalls(behind, world.seconds)
    faults = Faults(SETTINGS, world, calls, Deliveries(world.seconds), workers)
    return LabPages(calls, world, workers, faults, lambda: {"fleets": [], "why": "no stack"})


def ask(pages: LabPages, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(pages({"type": "http", "method": method, "path": path}, receive, send))
    return sent[0]["status"], sent[1]["body"]


def test_what_is_not_the_labs_is_left_to_the_endpoint(pages: LabPages) -> None:
    assert ask(pages, "POST", "/") == (299, b"the endpoint")


def test_the_page_is_served(pages: LabPages) -> None:
    status, page = ask(pages, "GET", "/_lab/")
    assert (status, page[:15]) == (200, b"<!doctype html>")


def test_the_page_is_told_of_the_stack_and_of_the_lab(pages: LabPages) -> None:
    state = json.loads(ask(pages, "GET", "/_lab/state.json")[1])
    assert state["why"] == "no stack"
    assert state["lab"]["market"] == SETTINGS.pools
    assert state["at"].startswith("2027-01-15")


def test_groups_are_told_with_their_instances(pages: LabPages) -> None:
    state = json.loads(ask(pages, "GET", "/_lab/state")[1])
    spot, on_demand = state["groups"]
    assert (spot["desired"], len(spot["instances"]), on_demand["desired"]) == (2, 2, 0)


def test_an_order_is_carried_out(pages: LabPages) -> None:
    status, _ = ask(pages, "POST", "/_lab/faults", b'{"do": "load", "erlangs": 3}')
    assert (status, pages.workers.erlangs) == (200, 3.0)


@pytest.mark.parametrize("body", [b"", b"{", b'{"do": "earthquake"}', b'{"do": "load"}'])
def test_a_wrong_order_is_refused_with_the_reason(pages: LabPages, body: bytes) -> None:
    status, answer = ask(pages, "POST", "/_lab/faults", body)
    assert status == 400
    assert json.loads(answer)["error"]


def test_an_unknown_page_is_said_to_be_so(pages: LabPages) -> None:
    assert ask(pages, "GET", "/_lab/nothing")[0] == 404


def test_an_unknown_instance_cannot_be_lost(pages: LabPages) -> None:
    order = json.dumps({"do": "loss", "instances": ["i-0f00f00f00f00f00f"]}).encode()
    status, answer = ask(pages, "POST", "/_lab/faults", order)
    assert (status, b"does not exist" in answer) == (400, True)


def test_time_can_be_skipped(pages: LabPages) -> None:
    before = pages.world.seconds()
    assert ask(pages, "POST", "/_lab/skip", b"600")[0] == 200
    assert pages.world.seconds() == before + 600
    assert ask(pages, "POST", "/_lab/skip", b"-1")[0] == 400


def test_a_lab_begins_anew_with_other_groups(pages: LabPages) -> None:
    other = SETTINGS.model_copy(update={"desired": 4, "spot_group": "other"})
    assert ask(pages, "POST", "/_lab/begin", other.model_dump_json().encode())[0] == 200
    state = json.loads(ask(pages, "GET", "/_lab/state")[1])
    assert [len(one["instances"]) for one in state["groups"]] == [4, 0]
    assert state["groups"][0]["name"] == "other"
    wrong = b'{"physics": {"ghosts": 1}}'
    assert b"ghosts" in ask(pages, "POST", "/_lab/begin", wrong)[1]
