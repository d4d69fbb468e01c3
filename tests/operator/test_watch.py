"""The live page of a stack: what it shows, how often it reads, and to whom it answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from spotkeeper import wiring
from spotkeeper_operator import watch as module
from spotkeeper_operator.aws import Aws, OperatorError
from spotkeeper_operator.watch import Watch, server
from tests.functions.conftest import Stage
from tests.operator.command import STACK

HOST = "127.0.0.1:8080"


@pytest.fixture
def watching(deployed: Stage) -> Watch:
    return Watch(Aws("us-east-1"), STACK, None, wiring.now)


def state(watch: Watch, query: str = "") -> dict[str, Any]:
    status, kind, body = watch.answer(HOST, f"/state.json{query}")
    assert (status, kind) == (200, "application/json")
    return dict(json.loads(body))


def test_the_page_shows_what_status_and_explain_show(watching: Watch) -> None:
    seen = state(watching)
    (fleet,) = seen["fleets"]
    assert fleet["status"]["state"] == "whole"
    rows = dict(fleet["status"]["rows"])
    assert rows["spot"] == "3 of 4 in service  (main-spot)"
    assert "workers served in the last minute" in rows["load"]
    spot, on_demand = fleet["groups"]
    assert {one["why"] for one in (*spot["instances"], *on_demand["instances"])} == {"it serves"}
    assert any(d["reason"].startswith("spot 3 of 4 serving") for d in fleet["decisions"])
    assert seen["troubles"] == ["alarm rings: both-short"]
    page = watching.answer(HOST, "/")[2]
    assert page.startswith("<!doctype html>")
    charts = watching.answer("localhost:8080", "/" + seen["charts"])[2]
    assert "make before break" in charts


def test_many_browsers_are_one_reader(
    watching: Watch, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    state(watching)
    once = len(calls)
    assert 0 < once < 20
    clock[0] += 4.9
    state(watching, "?x=1")
    assert len(calls) == once
    clock[0] += 0.2
    state(watching)
    assert len(calls) == 2 * once


def test_failed_reads_are_shown_and_tried_again(
    watching: Watch, denied: Callable[..., None]
) -> None:
    denied("DescribeStacks", "Throttling")
    assert "Throttling" in state(watching)["why"]
    assert "Throttling" in watching.answer(HOST, "/charts.html")[2]


def test_only_this_machine_is_answered(watching: Watch) -> None:
    for host, path, status in (
        (HOST, "/", 200),
        ("127.0.0.1", "/", 200),
        (HOST, "/nothing", 404),
        ("evil.example:8080", "/state.json", 403),
        ("", "/", 403),
    ):
        assert watching.answer(host, path)[0] == status, (host, path)


def test_it_listens_on_this_machine_alone(watching: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def taken(address: tuple[str, int], handler: object) -> None:
        asked.append(address)
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(module, "Server", taken)
    with pytest.raises(OperatorError, match="give another --port"):
        server(watching, 8080)
    assert asked == [("127.0.0.1", 8080)]


def test_a_page_that_is_closed_while_it_is_written_leaves_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed: Any = object.__new__(module.Server)
    for error in (BrokenPipeError(), ConnectionResetError(), ConnectionAbortedError()):
        try:
            raise error
        except OSError:
            closed.handle_error(None, (HOST, 1))
    assert capsys.readouterr().err == ""
    try:
        raise ValueError("a defect")
    except ValueError:
        closed.handle_error(None, (HOST, 1))
    assert "a defect" in capsys.readouterr().err
