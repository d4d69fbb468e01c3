"""Reads the decisions of a time, of one fleet or all."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.decisions.observed import ObservedReport, observed
from spotkeeper_operator.decisions.timeline import Entry, timeline

if TYPE_CHECKING:
    from spotkeeper.domain.decision import DecisionRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """A timeline and its records; `unreadable` ones were written by another release."""

    entries: tuple[Entry, ...]
    unreadable: int
    records: "tuple[DecisionRecord, ...]" = ()


def read_timeline(
    aws: Aws, stack_name: str, fleet: str | None, first: datetime, last: datetime, rule: str | None
) -> Decisions:
    """Read what was decided between two instants; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    records: list[DecisionRecord] = []
    unreadable = 0
    for each in chosen(aws.documents(stack), fleet):
        found = aws.records(stack).between(each.name, first, last)
        records += found.records
        unreadable += found.unreadable
    return Decisions(entries=timeline(records, rule), unreadable=unreadable, records=tuple(records))


def read_observed(
    aws: Aws, stack_name: str, fleet: str | None, first: datetime, last: datetime
) -> list[ObservedReport]:
    """Sum up what turns that only looked would have done; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    records = aws.records(stack)
    return [
        observed(each, records.between(each.name, first, last).records)
        for each in chosen(aws.documents(stack), fleet)
    ]
