"""Instants as an operator writes them: `15:10`, `2026-11-20T15:10`, with or without a zone."""

from datetime import UTC, datetime, time, timedelta

EARLIEST = datetime(2006, 1, 1, tzinfo=UTC)


def parse_instant(text: str, now: datetime) -> datetime:
    """Read an instant; without a zone it is UTC, without a date the last such time before now.

    Raises `ValueError` for anything else, for the future, and for before there was AWS.
    """
    at = _clock_time(text.strip(), now) or _whole(text.strip())
    if at < EARLIEST:
        raise ValueError(f"{text!r} is before there was AWS")
    if at > now:
        raise ValueError(f"{text!r} is in the future: it is {now:%Y-%m-%d %H:%M} UTC now")
    return at.astimezone(UTC)


def _clock_time(text: str, now: datetime) -> datetime | None:
    try:
        clock = time.fromisoformat(text)
    except ValueError:
        return None
    at = datetime.combine(now.astimezone(clock.tzinfo or UTC).date(), clock, clock.tzinfo or UTC)
    return at if at <= now else at - timedelta(days=1)


def _whole(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no time; write 15:10, 15:10+09:00 or 2026-11-20T15:10 (UTC)"
        raise ValueError(message) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
