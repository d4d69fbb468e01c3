"""What looks at the request queue prove, and what they do not."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from spotkeeper.domain.load.request_queue import (
    LOOKS,
    MISPLACED,
    QueueLength,
    QueueMemory,
    expects_logs,
    is_blind,
    known_length,
    quiet_s,
    untouched_s,
    watch_queue,
)
from tests.builders import at

EMPTY = QueueLength(waiting=0, in_flight=0)
BUSY = QueueLength(waiting=0, in_flight=1)
DENIED = "Refused: denied"
MEMORIES = TypeAdapter(QueueMemory)

type Answer = QueueLength | str


def watched(
    answers: Iterable[Answer], *, offered: float = 0.0, logged: bool = False
) -> QueueMemory:
    """The memory after a look a minute, the last one at noon."""
    looks = list(answers)
    memory = None
    for minute, answer in enumerate(looks, start=1 - len(looks)):
        newest = at(60 * minute - 10) if logged else None
        memory = watch_queue(memory, answer, newest, offered, at(60 * minute))
    assert memory
    return memory


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        ([EMPTY] * 11, 600),
        ([EMPTY] * LOOKS, 240),
        ([EMPTY] * (LOOKS - 1), 0),
        ([EMPTY] * 11 + [BUSY], 0),
        ([EMPTY] * 11 + [replace(EMPTY, delayed=1)], 0),
        ([EMPTY] * 11 + [BUSY] + [EMPTY] * LOOKS, 240),
        ([EMPTY] * 11 + [DENIED], 0),
        # A look that failed proves nothing and ends nothing, three in a row do.
        ([EMPTY] * 5 + [DENIED] + [EMPTY] * 5, 600),
        ([EMPTY] * 5 + [DENIED] * 3 + [EMPTY] * LOOKS, 240),
        ([DENIED] * 11, 0),
    ],
)
def test_quiet_takes_several_looks_in_a_row(answers: list[Answer], seconds: float) -> None:
    assert quiet_s(watched(answers), at(0)) == seconds


def waits(*counts: int, in_flight: int = 0) -> list[Answer]:
    return [QueueLength(waiting=count, in_flight=in_flight) for count in counts]


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        (waits(3, 3, 4, 9, 9), 240),
        (waits(3, 3, 4, 9), 0),
        # Somebody takes what gets less, and what is in flight.
        (waits(3, 3, 4, 9, 8), 0),
        (waits(3, 3, 4, 9, 8, 8, 8, 8, 8), 240),
        (waits(3, 3, 4, 9, 9, in_flight=1), 0),
        ([*waits(3, 3, 4, 9, 9), BUSY], 0),
        ([*waits(3, 3, 4, 9, 9), EMPTY], 0),
        ([*waits(3, 3, 4, 9), DENIED, DENIED, DENIED, *waits(9, 9)], 0),
        # Nobody can take what is delayed.
        ([QueueLength(waiting=0, in_flight=0, delayed=3)] * 9, 0),
    ],
)
def test_requests_that_no_worker_takes_are_untouched(answers: list[Answer], seconds: float) -> None:
    assert untouched_s(watched(answers), at(0)) == seconds


@pytest.mark.parametrize(
    ("in_flight", "logged_s", "seconds"),
    [((1, 1, 1, 1, 1), None, 240), ((1, 1, 1, 1, 2), None, 0), ((1, 1, 1, 1, 1), -1, 0)],
)
def test_requests_that_workers_hold_are_untouched_until_one_ends(
    in_flight: tuple[int, ...], logged_s: float | None, seconds: float
) -> None:
    looks = [QueueLength(waiting=3, in_flight=count) for count in in_flight]
    memory, newest = watched(looks[:-1]), None if logged_s is None else at(logged_s)
    memory = watch_queue(memory, looks[-1], newest, 0.0, at(60))
    assert (untouched_s(memory, at(60), held=True), untouched_s(memory, at(60))) == (seconds, 0)


def test_quiet_begins_after_the_last_logged_request() -> None:
    memory = watched([EMPTY] * 20)
    logged = watch_queue(memory, EMPTY, at(30), 0.01, at(60))
    assert quiet_s(logged, at(60)) == 30
    forgotten = watch_queue(logged, EMPTY, None, 0.0, at(120))
    assert quiet_s(forgotten, at(120)) == 90


def test_a_queue_that_is_empty_beside_busy_workers_is_not_trusted() -> None:
    few, many = (watched([EMPTY] * n, offered=30.0, logged=True) for n in (4, 5))
    assert known_length(few) == EMPTY
    assert (known_length(many), many.trouble) == (None, MISPLACED)
    silent = many
    for minute in range(1, 30):
        silent = watch_queue(silent, EMPTY, None, 0.0, at(60 * minute))
    assert quiet_s(silent, at(60 * 29)) == 0
    shown = watch_queue(silent, BUSY, None, 0.0, at(60 * 30))
    assert known_length(shown) == BUSY


def test_a_load_that_ended_is_no_contradiction() -> None:
    memory = watched([BUSY])
    for minute in range(1, 12):
        memory = watch_queue(memory, EMPTY, at(0), 50.0 / minute, at(60 * minute))
    assert quiet_s(memory, at(660)) == 600


def test_a_fleet_is_blind_after_five_minutes_without_a_look() -> None:
    assert not is_blind(watched([EMPTY, *[DENIED] * 5]), at(0))
    assert is_blind(watched([EMPTY, *[DENIED] * 6]), at(0))
    assert not is_blind(watched([*[DENIED] * 9, EMPTY]), at(0))


@pytest.mark.parametrize(
    ("looks", "serving", "newest_s", "missing"),
    [
        (None, 0, None, True),
        ([DENIED], 0, None, True),
        ([EMPTY], 3, None, False),
        ([BUSY], 3, None, True),
        ([BUSY], 0, None, False),
        # Looks are a minute apart, the last of them at 0.
        ([BUSY, BUSY, EMPTY, EMPTY], 3, -300, True),
        ([BUSY, BUSY, EMPTY, EMPTY], 3, -180, False),
        ([BUSY, *[EMPTY] * 5], 3, -900, False),
    ],
)
def test_silence_is_missing_logs_unless_requests_or_workers_are_missing(
    looks: list[Answer] | None, serving: int, newest_s: float | None, missing: bool
) -> None:
    memory = watched(looks) if looks else None
    newest = None if newest_s is None else at(newest_s)
    assert expects_logs(memory, serving, newest, 180.0) is missing


answers = st.sampled_from([EMPTY, BUSY, replace(EMPTY, waiting=2), DENIED])


@given(st.lists(answers, min_size=1, max_size=30), st.floats(0, 60), st.booleans())
def test_nothing_but_empty_looks_is_quiet(
    looks: list[Answer], offered: float, logged: bool
) -> None:
    memory = watched(looks, offered=offered, logged=logged)
    seconds = quiet_s(memory, at(0))
    assert 0 <= seconds <= 60 * (len(looks) - 1)
    if seconds:
        backwards = [look for look in reversed(looks) if look != DENIED]
        assert looks[-1] == EMPTY
        assert backwards[:LOOKS] == [EMPTY] * LOOKS
    assert MEMORIES.validate_json(MEMORIES.dump_json(memory)) == memory
    assert timedelta(0) <= at(0) - (memory.empty_since or at(0))


def test_a_repeated_look_of_an_agent_proves_nothing_and_a_log_since_ends_the_quiet() -> None:
    once = watched([replace(EMPTY, seen_at=at(-700))] * 11)
    assert (once.empty_looks, quiet_s(once, at(0))) == (1, 0)
    looks = [replace(EMPTY, seen_at=at(60 * minute - 20)) for minute in range(-10, 0)]
    assert watch_queue(watched(looks), looks[-1], at(-5), 0.0, at(0)).empty_since == at(-5)
