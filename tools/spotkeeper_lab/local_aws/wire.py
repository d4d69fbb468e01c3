"""What every stand-in says alike: parameters in, answers out, pages, virtual time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

REGION = "us-east-1"
ACCOUNT = "123456789012"

type Get = Callable[..., Any]
type Answer = Mapping[str, object]
type Respond = Callable[[Mapping[str, Any]], Answer]
"""What answers to the parameters of a call."""


@dataclass(frozen=True, slots=True)
class VirtualTime:
    """Virtual seconds as instants: second 0 is `start`, an aware datetime."""

    start: datetime

    def at(self, seconds: float) -> datetime:
        return self.start + timedelta(seconds=seconds)

    def seconds(self, instant: datetime) -> float:
        return (instant - self.start).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The default and the largest size of a page, and the parameter that sets it."""

    usual: int
    most: int
    asked_by: str = "MaxRecords"


@dataclass(frozen=True, slots=True)
class WireAction:
    """One action: how it answers, and the sizes of its pages if it has any."""

    answer: Callable[[Get], Answer]
    page: Page | None = None

    def respond(self, get: Get) -> Answer:
        """Answer to a call, its parameters read by `get`."""
        answer = self.answer(get)
        return page(answer, get, self.page) if self.page else answer

    def __call__(self, params: Mapping[str, Any]) -> Answer:
        return self.respond(params.get)


def page(answer: Answer, get: Get, size: Page) -> Answer:
    """One page of an answer that is a list; the token is where the next one begins."""
    ((name, items),) = answer.items()
    assert isinstance(items, list)
    first = int(get("NextToken") or 0)
    stop = first + min(size.most, int(get(size.asked_by) or size.usual))
    token = {"NextToken": str(stop)} if stop < len(items) else {}
    return {name: items[first:stop], **token}


def group_arn(name: str) -> str:
    return (
        f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:"
        f"00000000-0000-0000-0000-000000000000:autoScalingGroupName/{name}"
    )


def aws_time(instant: datetime) -> str:
    """An instant as AWS writes it in events: whole seconds, UTC."""
    return f"{instant.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"
