"""Durations, instants, activities, folded timelines and what was wished for, without AWS."""

import json
import math
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper.domain.decision import (
    FAILED,
    Alarm,
    Answer,
    AvailabilityFigures,
    Controller,
    DecisionRecord,
    HealthFigures,
    RequestKind,
)
from spotkeeper.domain.permission import Permission
from spotkeeper_operator.aws import read_activities
from spotkeeper_operator.drill import Story, updated
from spotkeeper_operator.explain import (
    Decisions,
    explain_text,
    holes,
    records_timeline,
    seen_words,
    timeline,
)
from spotkeeper_operator.observed import Running, observed
from spotkeeper_operator.text import as_json, labelled, parse_instant, shown
from tests.builders import backfilled, done, fleet, held

NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)
HOLD = held(at=NOW)
LOOK = held(at=NOW, controller=Controller.AVAILABILITY)
WRONG = replace(HOLD, rule=FAILED, reason="the turn failed: Throttled: slow down")


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


def test_a_long_name_does_not_run_into_its_text() -> None:
    name = "a-fleet-of-a-long-name"
    assert labelled(name, "whole", indent=0) == [name, "              whole"]
    assert labelled("twelve-chars", "whole") == ["  twelve-chars", "              whole"]
    assert labelled("main", "whole") == ["  main        whole"]
    arn = "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/gpus/0123456789abcdef"
    assert f"{' ' * 14}{arn}" in labelled("main", f"see {arn}")


@pytest.mark.parametrize(
    ("terminal", "columns", "longest"),
    [(False, 200, 80), (True, 100, 100), (True, 250, 200), (True, 80, 80), (True, 20, 60)],
)
def test_text_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, columns: int, longest: int
) -> None:
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: terminal))
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, labelled("main", "a " * 300))) in (longest, longest - 1)


def minutes(*records: DecisionRecord) -> list[DecisionRecord]:
    return [replace(r, at=NOW + timedelta(minutes=i)) for i, r in enumerate(records)]


def test_failures_and_gaps_have_lines_of_their_own_and_midnight_is_marked() -> None:
    """Three turns fail with one error, three leave nothing, and the rule before holds after."""
    late = replace(HOLD, at=NOW + timedelta(minutes=9))
    records = [*minutes(HOLD, HOLD, WRONG, WRONG, WRONG, HOLD), late]
    entries = timeline(records)
    assert [(e.last.rule, e.turns) for e in entries] == [
        ("at target", 2), (FAILED, 3), ("at target", 1), ("at target", 1),
    ]  # fmt: skip
    found = holes(records, NOW, late.at)
    assert [(h.first.minute, h.last.minute) for h in found] == [(31, 35), (35, 39)]
    text = explain_text(Decisions(entries=entries, holes=found))
    assert "15:32:00 to 15:34:00, 3 turns\n  ocr         health: FAILED\n" in text
    assert "15:35:00 to 15:39:00\n  ocr         health: NO TURN SUCCEEDED for 4 min" in text
    first = replace(HOLD, at=NOW.replace(hour=23, minute=59))
    folded = timeline([first, replace(HOLD, at=first.at + timedelta(minutes=1))])
    span = "2026-11-20 23:59:00 to 2026-11-21 00:00:00, 2 turns"
    assert span in explain_text(Decisions(entries=folded))


def test_a_time_without_turns_at_either_end_is_a_gap() -> None:
    found = holes([HOLD], NOW - timedelta(minutes=5), NOW + timedelta(minutes=3))
    assert [round((h.last - h.first).total_seconds()) for h in found] == [300, 180]
    assert holes([HOLD], None, NOW + timedelta(minutes=1)) == ()
    assert holes([], NOW - timedelta(hours=1), NOW) == ()
    assert holes(minutes(HOLD, HOLD, HOLD), NOW, NOW + timedelta(minutes=3)) == ()


def test_a_failed_turn_says_nothing_about_a_drill() -> None:
    seen = AvailabilityFigures(interruptions=1, spot_serving=1, spot_desired=1)
    failed = replace(LOOK, rule=FAILED)
    _, saw = minutes(failed, replace(LOOK, availability=seen))
    story = Story(fleet="ocr", started=NOW, instances=("i-1",))
    assert updated(story, [failed, saw], [], 0.0).warned == saw.at


def test_charts_break_where_no_turn_worked() -> None:
    """A failed turn saw nothing: it must not draw a fleet of none, nor a time without a turn."""
    turn = replace(LOOK, availability=AvailabilityFigures(spot_serving=4))
    wrong = replace(WRONG, controller=Controller.AVAILABILITY)
    late = replace(turn, at=NOW + timedelta(minutes=9))
    drawn = records_timeline([*minutes(turn, turn, wrong), late], NOW, NOW + timedelta(hours=1))
    spot = drawn.charts[0].series[0]
    assert list(zip(spot.t, spot.values, strict=True)) == [(0, 4), (60, 4), (190, None), (540, 4)]
    (notes,) = drawn.notes
    assert any("the turn failed" in text for text in notes.texts)


def test_waits_and_load_have_a_gap_while_logs_are_missing() -> None:
    seen = HealthFigures(offered_load=2.0, workers_live=3, wait_p95_s=0.8, search_log_age_s=-0.2)
    quiet = replace(seen, offered_load=0.0, workers_live=0, search_log_age_s=300.0)
    turns = [replace(HOLD, health=each) for each in (seen, quiet, quiet)]
    turns[2] = replace(turns[2], alarms=(Alarm.STALE_SEARCH_LOGS,))
    _, load, waits = records_timeline(minutes(*turns), NOW, NOW + timedelta(hours=1)).charts
    assert [list(series.values) for series in (*load.series[:2], *waits.series)] == [
        [2.0, 0.0, None], [3, 0, None], [0.8, None, None],
    ]  # fmt: skip
    none = HealthFigures(offered_load=0.0, workers_needed=0, workers_live=0)
    never = replace(HOLD, health=none)
    assert [seen_words(turn) for turn in (*turns, never)] == [
        "2 erlangs, 3 live, 0.8 s waited (p95)",
        "0 erlangs, 300 s since the newest log",
        "300 s since the newest log",
        "nothing",
    ]


def test_expectations_hold_until_the_next_turn() -> None:
    """Three minutes with a backfill wished for, then three with more spot, too.

    A turn that failed ends no wish, and one of a paused fleet is none in observe mode.
    """
    there = AvailabilityFigures(spot_serving=3, spot_launching=1, shortfall_unfilled=2)
    wished = (backfilled(2), *(done(RequestKind.DRAIN, f"i-{g}", group=g) for g in ("spot", "b")))
    backfill = replace(
        LOOK,
        permission=Permission.OBSERVE,
        availability=there,
        outcomes=tuple(replace(each, answer=Answer.OBSERVED) for each in wished),
    )
    failed = replace(backfill, rule=FAILED, availability=None, outcomes=())
    wish = replace(done(RequestKind.RESIZE_SPOT, group="spot", desired=6), answer=Answer.OBSERVED)
    needed = HealthFigures(workers_needed=6)
    size = replace(HOLD, permission=Permission.OBSERVE, health=needed, outcomes=(wish,))
    paused = replace(backfill, permission=Permission.PAUSED)
    turns = ((backfill, 0), (failed, 2), (size, 3), (backfill, 6), (paused, 7))
    found = observed(fleet(), [replace(r, at=NOW + timedelta(minutes=at)) for r, at in turns])
    assert found.turns == 4
    assert found.ran == Running(spot=4 * 0.1, on_demand=0, unfilled=2 * 0.1)
    assert found.would == Running(spot=4 * 0.05 + 6 * 0.05, on_demand=2 * 0.1, unfilled=0)
    wishes = {wish.text: wish.times for wish in found.wishes}
    # Marks in both groups are one kind.
    assert wishes == {"on-demand: desired 2": 2, "spot: desired 6": 1, "drain an instance": 4}


AN_INSTANCE = "an instance was taken out of service in response to"
GONE = f"{AN_INSTANCE} an EC2 health check indicating it has been terminated or stopped."
END, LAUNCH = "Terminating EC2 instance: i-1", "Launching a new EC2 instance: i-2"


@pytest.mark.parametrize(
    ("cause", "what", "taken"),
    [
        (GONE, END, True),
        (f"{AN_INSTANCE} an ELB system health check failure.", END, False),
        (GONE, LAUNCH, False),
    ],
)
def test_what_aws_ended_on_its_own_is_known_by_the_cause_after_hours_of_failures_too(
    cause: str, what: str, taken: bool
) -> None:
    """AWS lists the newest first, and a group in trouble logs a failure every 15 s."""
    later = [(NOW + timedelta(seconds=15 * n), LAUNCH, "x") for n in range(600, 40, -1)]
    history: list[dict[str, Any]] = [
        {
            "AutoScalingGroupName": "spot",
            "Description": what,
            "Cause": f"At 2026-11-20T12:00:00Z {cause}",
            "StartTime": at,
            "StatusCode": "Successful",
        }
        for at, what, cause in (*later, (NOW, what, cause))
    ]

    def paginate(**asked: Any) -> list[Any]:
        bounds = {it["Name"]: datetime.fromisoformat(it["Values"][0]) for it in asked["Filters"]}
        first = bounds["StartTimeLowerBound"]
        last = bounds.get("StartTimeUpperBound", history[0]["StartTime"])
        found = [it for it in history if first <= it["StartTime"] <= last]
        return [{"Activities": found[: asked["PaginationConfig"]["MaxItems"]]}]

    aws = Mock()
    aws.autoscaling.get_paginator().paginate = paginate
    (found,) = read_activities(aws, "spot", NOW, NOW + timedelta(minutes=5))
    assert found.taken is taken


def test_nothing_from_outside_moves_the_cursor_or_turns_the_text() -> None:
    assert shown("a\x1b[2Jb\u202ec\td\n") == "a\ufffd[2Jb\ufffdc\td\n"


def test_json_has_no_number_that_json_does_not_have() -> None:
    answer = json.loads(as_json(figures=[math.nan, math.inf, 1.5]), parse_constant=pytest.fail)
    assert answer["figures"] == [None, None, 1.5]
