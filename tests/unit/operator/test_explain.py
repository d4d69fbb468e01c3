"""What `explain` prints of turns that AWS refuses: once, with all that they have in common."""

from dataclasses import replace
from datetime import timedelta

import pytest

from spotkeeper.domain.decision import (
    FAILED,
    Action,
    Answer,
    Controller,
    DecisionRecord,
    Failure,
    RequestKind,
)
from spotkeeper_operator.explain import Decisions, answered, explain_text, timeline
from tests.builders import NOON, backfilled, done

ARN = "arn:aws:ec2:us-east-1:123456789012:instance"
NAMES = [f"i-{n:017x}" for n in range(9)]


def refusal(instance: str, turn: int = 0) -> Failure:
    """The text of a refusal, with what EC2 encodes anew for each call."""
    text = (
        "ec2:CreateTags: UnauthorizedOperation: You are not authorized to perform this "
        f"operation. User: me is not authorized to perform: ec2:CreateTags on resource: "
        f"{ARN}/{instance} because no policy allows it. "
        f"Encoded authorization failure message: {instance}{turn}{'x' * 400}"
    )
    return Failure(kind="Refused", text=text)


def turn(number: int, names: list[str] = NAMES, **changes: object) -> DecisionRecord:
    refused = [
        replace(done(RequestKind.DRAIN, i), answer=Answer.REFUSED, error=refusal(i, number))
        for i in names
    ]
    denied = Failure(kind="Refused", text=f"AccessDenied (RequestId: a-{number})")
    desired = backfilled(9, denied, "od")
    record = DecisionRecord(
        fleet="main", controller=Controller.AVAILABILITY, action=Action.BACKFILL, rule="backfill",
        at=NOON + timedelta(seconds=20 * number), reason=f"{number} short",
        outcomes=(desired, *refused),
    )  # fmt: skip
    return replace(record, **changes)  # type: ignore[arg-type]


def test_equal_refusals_of_a_turn_are_one_line() -> None:
    some = [done(RequestKind.DRAIN, f"i-0{n}") for n in range(2)]
    desired, drains, first, second = answered((*turn(0).outcomes, *some))
    assert desired == "od: desired 9 -> Refused: AccessDenied"
    assert drains.startswith(f"drain {NAMES[0]}, {NAMES[1]}, {NAMES[2]} and 6 more -> Refused: ")
    assert drains.endswith(f"{NAMES[0]} because no policy allows it.")
    assert (first, second) == ("drain i-00 -> done", "drain i-01 -> done")


@pytest.mark.parametrize("rule", ["backfill", FAILED])
def test_two_minutes_of_refused_turns_are_a_few_lines(rule: str) -> None:
    records = [
        turn(n, NAMES[n % 2 :], rule=rule, reason=f"Refused: no (RequestId: b-{n})")
        for n in range(6)
    ]
    (entry,) = timeline(records)
    assert entry.turns == 6
    text = explain_text(Decisions(entries=(entry,), unreadable=0, holes=()))
    assert len(text.splitlines()) < 15
    assert "x" * 20 not in text


@pytest.mark.parametrize(
    "other",
    [
        turn(1, outcomes=(backfilled(9, group="od"),)),
        turn(1, outcomes=(backfilled(9, Failure(kind="Throttled", text="later"), "od"),)),
        turn(1, rule="on-demand maximum"),
        turn(1, action=Action.RELEASE),
    ],
    ids=["done", "another refusal", "another rule", "another action"],
)
def test_turns_that_differ_are_not_folded(other: DecisionRecord) -> None:
    assert len(timeline([turn(0), other])) == 2
