"""What an invocation leaves behind: metrics by name, one log line a fleet, and one error."""

import io
import json
import logging
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.decision import (
    Alarm,
    AvailabilityFigures,
    Controller,
    DecisionRecord,
    Failure,
)
from spotkeeper.domain.permission import Permission
from spotkeeper.observability import COUNTS, LEVELS, TurnFailed, _zeros, emit, report, tell_unused
from spotkeeper.ports import FleetError, Throttled
from spotkeeper.turns.turn import TurnReport
from tests.builders import backfilled, held
from tests.functions.conftest import Metrics, metrics, metrics_of

__all__ = ["metrics"]

type Told = Callable[[int], list[dict[str, Any]]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The log records of a level, as they are given to the formatter."""
    caplog.set_level(logging.INFO)
    return lambda level: [vars(each) for each in caplog.records if each.levelno == level]


def record(**changes: Any) -> DecisionRecord:
    seen = AvailabilityFigures(spot_desired=4, spot_serving=4)
    return replace(held(controller=Controller.AVAILABILITY, availability=seen), **changes)


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "spotkeeper-test")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "Spotkeeper")
    _zeros.cache_clear()


@pytest.mark.parametrize(
    ("alarms", "permission", "sent"),
    [
        *(
            ((alarm,), Permission.ACT, {"ConfigurationFailure": 1})
            for alarm in (
                *("configuration", "permission", "bootstrap"),
                *("adopting", "unproven-marks", "group-missing"),
                *("region-gone", "share-expired", "two-homes"),
            )
        ),
        (("both-short",), Permission.ACT, {"BothShort": 1}),
        # Nobody is rung for these: they are in the record alone.
        (("quota",), Permission.ACT, {}),
        # The on-demand instances are their owner's, and nobody is about to end them.
        (("adopting", "both-short"), Permission.OBSERVE, {"BothShort": 1, "Observing": 1}),
        (("adopting", "both-short"), Permission.PAUSED, {"BothShort": 1, "Paused": 1}),
        # Who paused it knows.
        (("nobody-serves", "stale-search-logs"), Permission.PAUSED, {"Paused": 1}),
    ],
)
def test_an_alarm_is_a_metric_while_it_is_raised(
    alarms: tuple[Alarm, ...], permission: Permission, sent: dict[str, float], metrics: Metrics
) -> None:
    report(TurnReport(records=[record(alarms=alarms, availability=None, permission=permission)]))
    assert metrics("ocr") == sent


def sent(values: dict[str, float]) -> dict[str, float]:
    with redirect_stdout(io.StringIO()) as written:
        emit("ocr", values)
    return metrics_of(written.getvalue(), "ocr")


@given(values=st.dictionaries(st.sampled_from([*LEVELS, *COUNTS, "Moonphase"]), st.integers(0, 1)))
def test_levels_are_sent_each_turn_counts_when_they_are_not_zero_and_nothing_else(
    values: dict[str, float],
) -> None:
    _zeros.cache_clear()
    assert sent(values) == {n: v for n, v in values.items() if n in LEVELS or (n in COUNTS and v)}


def test_zeros_follow_a_count_for_as_long_as_an_alarm_looks_back() -> None:
    """Without them an alarm adds up troubles that lie apart."""
    _zeros.cache_clear()
    turns = [sent({"ShortfallUnfilled": value}) for value in (0, 2, *[0] * 30)]
    assert turns == [{}, {"ShortfallUnfilled": 2}, *[{"ShortfallUnfilled": 0}] * 20, *[{}] * 10]


def test_settings_of_an_earlier_release_are_logged_once(told: Told) -> None:
    for settings in (("availability.settle_s",), ("availability.settle_s",), ()):
        tell_unused("of-0.1", settings)
    (warned,) = told(logging.WARNING)
    assert (warned["fleet"], warned["settings"]) == ("of-0.1", ["availability.settle_s"])


def test_errors_are_raised_together_after_every_report(metrics: Metrics, told: Told) -> None:
    turn = TurnReport(
        records=[record(fleet="search", outcomes=(backfilled(1, Failure(kind="x", text="y")),))],
        errors=[Throttled("fleet ocr: slow down")],
    )
    with pytest.raises(TurnFailed) as caught:
        report(turn, [FleetError("fleet document other: version: wrong")])
    assert [str(error) for error in caught.value.exceptions] == [
        "fleet document other: version: wrong",
        "fleet ocr: slow down",
    ]
    told_alone = "not every turn succeeded: fleet document other: version: wrong; fleet ocr: slow"
    assert str(caught.value).startswith(told_alone)
    assert metrics("search") == {"SpotDesired": 4, "SpotServing": 4, "OnDemandDesired": 0}
    assert [line["kind"] for line in told(logging.ERROR)] == ["FleetError", "Throttled"]


def test_an_unforeseen_error_is_shown_with_its_place_after_the_records(
    metrics: Metrics, told: Told
) -> None:
    defect = KeyError("digest")
    defect.add_note("in the turn of fleet ocr")
    with pytest.raises(ExceptionGroup, match="failed by a defect"):
        report(TurnReport(records=[record(fleet="search")], defects=[defect]))
    assert metrics("search")["SpotDesired"] == 4
    (line,) = told(logging.ERROR)
    assert line["msg"] == "a defect in the turn of fleet ocr: KeyError('digest')"
    assert line["exc_info"]


def test_a_metric_has_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    emit("ocr", {"OfferedLoad": 70.0, "WaitP95": 1.5})
    (directive,) = json.loads(capsys.readouterr().out)["_aws"]["CloudWatchMetrics"]
    units = {m["Name"]: m["Unit"] for m in directive["Metrics"]}
    assert units == {"OfferedLoad": "Count", "WaitP95": "Seconds"}
