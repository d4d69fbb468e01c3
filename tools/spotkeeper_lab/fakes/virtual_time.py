"""The simulated cloud's seconds as instants."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant that the cloud calls 0."""


def instant(seconds: float) -> datetime:
    """The instant of a cloud's time."""
    return EPOCH + timedelta(seconds=seconds)


def seconds(at: datetime) -> float:
    """The cloud's time of an instant."""
    return (at - EPOCH).total_seconds()
