"""Times of maintenance, and what a fleet does not do within them (docs/hours.md)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from spotkeeper.domain.health.diagnosis import OBSERVATIONS_APART, diagnose
from tests.builders import at, fleet
from tests.unit.health.test_worker_health import HUNG, LONG_AGO, SIX, SPOT, busy, load

SATURDAY = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    ("times", "within", "outside"),
    [
        ("", [], [0, 720]),
        ("03:00-03:30", [180, 209, 1620], [179, 210]),
        ("Sat 22:00-02:00", [1320, 1439, 1440, 1559], [0, 119, 1319, 1560, 1320 + 1440]),
        ("Sun 00:00-00:10, Sat 05:00-06:00", [300, 1440], [299, 360, 1450, 0]),
    ],
)
def test_times_of_maintenance(times: str, within: list[int], outside: list[int]) -> None:
    one = replace(fleet(), maintenance=times)
    for minutes in (*within, *outside):
        now = SATURDAY + timedelta(minutes=minutes)
        until = one.maintenance_until(now)
        assert (until is not None) is (minutes in within), now
        assert one.maintenance_until(now.astimezone(timezone(timedelta(hours=9)))) == until


@pytest.mark.parametrize(
    ("times", "replaced", "at_s"),
    [("11:00-11:59", SPOT[:1], None), ("Fri 11:59-13:00", [], 3600)],
)
def test_nothing_is_replaced_for_health_within_them(
    times: str, replaced: list[str], at_s: float | None
) -> None:
    memory = replace(HUNG, suspects={SPOT[0]: LONG_AGO})
    of = replace(fleet(), maintenance=times)
    diagnosis = diagnose(load(*busy(*SPOT[1:])), SIX, of, memory, at(0))
    assert ([*diagnosis.reasons], [*diagnosis.replace]) == ([SPOT[0]], [*replaced])
    assert diagnosis.replaces_at == (at_s and at(at_s))
    # So it is before the second observation, too.
    first = diagnose(load(*busy(*SPOT[1:])), SIX, of, HUNG, at(0))
    assert first.replaces_at == (at(3600) if at_s else at(OBSERVATIONS_APART.total_seconds()))
