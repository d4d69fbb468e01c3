"""What an agent tells beside the search logs, read at the border."""

import json
from typing import Any

import pytest

from spotkeeper.border.search_log import MessageRefused, read
from tests.search_logs import SENT, before, sent_log

LOOK = {
    "vhost": "/",
    "name": "anfragen-ü",
    "ready": 5,
    "unacknowledged": 2,
    "at": before(20).isoformat(),
}


def told(**changed: object) -> dict[str, Any]:
    return sent_log(0, agent={"lost": 3, "clamped": 1, "refused": 2} | changed)


def test_a_clock_that_is_ahead_is_not_believed() -> None:
    [(_, note)] = read(json.dumps(told(queue=LOOK | {"at": before(-90).isoformat()}))).notes
    look = note.look(SENT)
    assert look is not None
    assert look.length.seen_at == SENT


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"lost": -1}, r"logs\[0\]\.agent\.lost"),
        ({"lost": "3"}, r"logs\[0\]\.agent\.lost"),
        ({"clamped": None}, r"logs\[0\]\.agent\.clamped"),
        ({"queue": LOOK | {"ready": None}}, r"logs\[0\]\.agent\.queue\.ready"),
        ({"queue": LOOK | {"unacknowledged": 1.5}}, r"agent\.queue\.unacknowledged"),
        ({"queue": LOOK | {"name": ""}}, r"agent\.queue\.name"),
        ({"queue": LOOK | {"vhost": "v" * 256}}, r"agent\.queue\.vhost"),
        ({"queue": LOOK | {"at": "2026-11-20T10:00:00"}}, r"agent\.queue\.at"),
        ({"queue": LOOK | {"at": 1763632800}}, r"agent\.queue\.at"),
        ({"queue": []}, r"agent\.queue"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(MessageRefused, match=why):
        read(json.dumps(told(**wrong)))


@pytest.mark.parametrize(
    "alone",
    [
        {"version": 2, "agent": {"queue": LOOK}},
        {"version": 1},
        {"version": 1, "agent": {"lost": ""}},
    ],
)
def test_what_is_neither_a_log_nor_a_note_is_refused(alone: dict[str, object]) -> None:
    with pytest.raises(MessageRefused, match=r"logs\[0\]"):
        read(json.dumps(alone))
