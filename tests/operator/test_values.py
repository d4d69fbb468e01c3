"""Durations, instants and folded timelines, without AWS."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from spotkeeper.domain.decision import FAILED, Controller, DecisionRecord
from spotkeeper_operator.drill import Story, told
from spotkeeper_operator.explain import (
    Decisions,
    explain_text,
    holes,
    records_timeline,
    seen_words,
    timeline,
)
from spotkeeper_operator.text import labelled, parse_instant, spoken
from tests.builders import held

NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
HOLD = held(at=NOW)
# What a drill reads of a turn.
FIGURES = ("Interruptions", "SpotAtRisk", "EarlyReplacements", "Backfilled", "SpotServing",
           "OnDemandServing", "SpotDesired", "OnDemandDesired")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15:10", "2026-11-20T15:10+00:00"),
        ("15:31", "2026-11-19T15:31+00:00"),
        ("00:20+09:00", "2026-11-20T15:20+00:00"),
        ("2026-11-20T15:10", "2026-11-20T15:10+00:00"),
        ("2026-11-20T15:10+09:00", "2026-11-20T06:10+00:00"),
        ("2026-11-20", "2026-11-20T00:00+00:00"),
    ],
)
def test_an_instant_without_a_zone_is_utc_and_past(text: str, expected: str) -> None:
    assert parse_instant(text, NOW) == datetime.fromisoformat(expected)


@pytest.mark.parametrize(
    ("seconds", "said"), [(40, "40 s"), (720, "12 min"), (12_600, "3.5 h"), (777_600, "9 d")]
)
def test_a_duration_as_it_is_said(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


def minutes(*records: DecisionRecord) -> list[DecisionRecord]:
    return [replace(r, at=NOW + timedelta(minutes=i)) for i, r in enumerate(records)]


def explained(*records: DecisionRecord) -> str:
    return explain_text(Decisions(entries=timeline(records)))


def test_holds_that_are_folded_over_midnight_say_both_days() -> None:
    first = replace(HOLD, at=NOW.replace(hour=23, minute=59))
    last = replace(HOLD, at=first.at + timedelta(minutes=1))
    assert "2026-11-20 23:59:00 to 2026-11-21 00:00:00, 2 turns" in explained(first, last)
    soon = replace(HOLD, at=NOW + timedelta(minutes=1))
    assert "2026-11-20 15:30:00 to 15:31:00, 2 turns" in explained(HOLD, soon)


def test_a_long_name_does_not_run_into_what_is_said_of_it() -> None:
    assert labelled("a-fleet-of-a-long-name", "whole", indent=0) == [
        "a-fleet-of-a-long-name",
        "              whole",
    ]
    assert labelled("twelve-chars", "whole") == ["  twelve-chars", "              whole"]
    assert labelled("main", "whole") == ["  main        whole"]


@pytest.mark.parametrize(
    ("terminal", "columns", "longest"),
    [(False, 200, 80), (True, 100, 100), (True, 200, 120), (True, 80, 80), (True, 20, 60)],
)
def test_text_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, columns: int, longest: int
) -> None:
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, labelled("main", "a " * 300))) in (longest, longest - 1)


def test_failures_and_holes_are_lines_of_their_own() -> None:
    """Three turns fail with one error, three leave nothing, and the rule before holds after."""
    wrong = replace(HOLD, rule=FAILED, reason="the turn failed: Throttled: slow down")
    records = minutes(HOLD, HOLD, wrong, wrong, wrong, HOLD)
    late = replace(HOLD, at=NOW + timedelta(minutes=9))
    entries = timeline([*records, late])
    assert [(e.last.rule, e.turns) for e in entries] == [
        ("at target", 2), (FAILED, 3), ("at target", 1), ("at target", 1),
    ]  # fmt: skip
    found = holes([*records, late], NOW, NOW + timedelta(minutes=9))
    assert [(h.first.minute, h.last.minute) for h in found] == [(31, 35), (35, 39)]
    text = explain_text(Decisions(entries=entries, holes=found))
    assert "15:32:00 to 15:34:00, 3 turns\n  ocr         health: FAILED\n" in text
    assert "15:35:00 to 15:39:00\n  ocr         health: NO TURN WORKED for 4 min" in text


def test_a_time_that_begins_or_ends_without_a_turn_is_a_hole() -> None:
    found = holes([HOLD], NOW - timedelta(minutes=5), NOW + timedelta(minutes=3))
    assert [round((h.last - h.first).total_seconds()) for h in found] == [300, 180]
    assert holes([HOLD], None, NOW + timedelta(minutes=1)) == ()
    assert holes([], NOW - timedelta(hours=1), NOW) == ()
    assert holes(minutes(HOLD, HOLD, HOLD), NOW, NOW + timedelta(minutes=3)) == ()


def test_a_turn_that_failed_says_nothing_of_a_drill() -> None:
    look = replace(HOLD, controller=Controller.AVAILABILITY)
    failed = replace(look, rule=FAILED, seen={"TurnsFailed": 1})
    saw = replace(look, at=NOW + timedelta(minutes=1), seen=dict.fromkeys(FIGURES, 1.0))
    story = Story(fleet="ocr", started=NOW, instances=("i-1",))
    assert told(story, [failed, saw], [], 0.0).warned == saw.at


def test_charts_break_where_no_turn_worked() -> None:
    """A failed turn saw nothing: it must not draw a fleet of none, nor a time without a turn."""
    turn = replace(HOLD, controller=Controller.AVAILABILITY, seen={"SpotServing": 4})
    wrong = replace(turn, rule=FAILED, seen={"TurnsFailed": 1}, reason="the turn failed")
    late = replace(turn, at=NOW + timedelta(minutes=9))
    drawn = records_timeline([*minutes(turn, turn, wrong), late], NOW, NOW + timedelta(hours=1))
    fleet, *_ = drawn.charts
    spot, *_ = fleet.series
    assert list(zip(spot.t, spot.values, strict=True)) == [(0, 4), (60, 4), (190, None), (540, 4)]
    (notes,) = drawn.notes
    assert any("the turn failed" in text for text in notes.texts)


def test_waits_and_load_have_a_gap_while_no_log_tells_of_them() -> None:
    seen = {"OfferedLoad": 2.0, "WorkersLive": 3, "WaitP95": 0.8, "SearchLogAge": -0.2}
    quiet = seen | {"OfferedLoad": 0.0, "WorkersLive": 0, "SearchLogAge": 300.0}
    turns = [replace(HOLD, seen=each) for each in (seen, quiet, quiet | {"StaleSearchLogs": 1})]
    _, load, waits = records_timeline(minutes(*turns), NOW, NOW + timedelta(hours=1)).charts
    assert [list(series.values) for series in (*load.series[:2], *waits.series)] == [
        [2.0, 0.0, None], [3, 0, None], [0.8, None, None],
    ]  # fmt: skip
    never = replace(HOLD, seen={"OfferedLoad": 0.0, "WorkersNeeded": 0, "WorkersLive": 0})
    assert [seen_words(turn) for turn in (*turns, never)] == [
        "2 erlangs, 3 live, 0.8 s waited (p95)",
        "0 erlangs, 300 s since the newest log",
        "300 s since the newest log",
        "nothing",
    ]
