"""What of the seams can be tested without ministack; tests/endpoint tests the rest."""

import time
from typing import Any

import pytest

from spotkeeper_lab.aws import ministack
from spotkeeper_lab.aws.ministack import EXHAUSTED, TOO_OLD, Invocation

FAILED: dict[str, Any] = {"error": True}
THROTTLED: dict[str, Any] = {"error": True, "throttle": True}


def invocation(age_s: float = 0.0, **limits: int) -> Invocation:
    began_s = time.monotonic() - age_s
    return Invocation({"config": {}, "event_invoke_config": limits}, {}, began_s)


def test_another_release_is_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ministack, "version", lambda _: "9.9.9")
    with pytest.raises(ministack.SeamError, match=f"9.9.9 is installed and {ministack.MINISTACK}"):
        ministack.check_release()


def test_a_failure_is_tried_again_after_one_minute_and_after_two() -> None:
    one = invocation()
    assert [one.after(FAILED) for _ in range(3)] == [("", 60.0), ("", 120.0), (EXHAUSTED, 0.0)]
    assert invocation(MaximumRetryAttempts=0).after(FAILED) == (EXHAUSTED, 0.0)


def test_what_is_throttled_waits_ever_longer_and_is_no_attempt() -> None:
    one = invocation(MaximumRetryAttempts=0)
    waits_s = [one.after(THROTTLED)[1] for _ in range(10)]
    assert waits_s == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]
    assert one.failures == 0


@pytest.mark.parametrize(
    ("result", "age_s"), [(FAILED, 61.0), (THROTTLED, 119.5)], ids=["failed", "throttled"]
)
def test_an_event_that_would_be_too_old_is_given_up(result: dict[str, Any], age_s: float) -> None:
    assert invocation(age_s, MaximumEventAgeInSeconds=120).after(result) == (TOO_OLD, 0.0)
    assert invocation(age_s, MaximumEventAgeInSeconds=3600).after(result)[0] == ""
