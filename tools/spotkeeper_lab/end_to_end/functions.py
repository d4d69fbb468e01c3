"""The deployed functions, called as Lambda would: same handlers, events and environment.

Only the clock is exchanged. Standard output is what CloudWatch would get: the metrics are read off
it. Every AWS call is counted.
"""

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

import boto3
from aws_lambda_powertools import Logger

from spotkeeper import observability, wiring
from spotkeeper.ports import FleetError
from spotkeeper_lab.checkout import Handler, load_handler
from spotkeeper_lab.local_aws.answers import ACCOUNT, REGION

COLLECT, HEALTH = "collect_search_logs", "check_health"
AVAILABILITY, INTERRUPTION = "check_availability", "handle_interruption"
LEDGER = "keep_ledger"
NAMES = (COLLECT, HEALTH, AVAILABILITY, INTERRUPTION, LEDGER)

EXPECTED = (FleetError, observability.TurnFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the handlers use of Lambda's context."""

    function_name: str
    aws_request_id: str
    function_version: str = "$LATEST"
    memory_limit_in_mb: int = 512

    @property
    def invoked_function_arn(self) -> str:
        """The ARN that carries region and account."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        """Virtual time stands still while a function runs."""
        return 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What one call of a function did; `error` is empty unless it ended failed.

    `calls` counts AWS calls as "service.Operation", `metrics` has the last value of each name.
    """

    name: str
    answer: Any
    error: str
    calls: Counter[str]
    metrics: Mapping[str, float]


@dataclass(slots=True)
class Functions:
    """The four handlers with their environment and clock."""

    handlers: Mapping[str, Handler]
    calls: Counter[str]
    invocations: list[Invocation] = field(default_factory=list)

    def invoke(self, name: str, event: Mapping[str, object]) -> Invocation:
        """Call one function; an error that it announces ends that invocation only, as in Lambda.

        Anything else that it raises is a bug and ends the demo.
        """
        self.calls.clear()
        request_id = str(UUID(int=len(self.invocations) + 1))
        context = Context(function_name=f"demo-{name}", aws_request_id=request_id)
        answer, error = None, ""
        with redirect_stdout(io.StringIO()) as written:
            try:
                answer = self.handlers[name](event, context)
            except EXPECTED as raised:
                error = told(raised)
        invocation = Invocation(
            name=name,
            answer=answer,
            error=error,
            calls=Counter(self.calls),
            metrics=_metrics(written.getvalue()),
        )
        self.invocations.append(invocation)
        return invocation


@contextmanager
def functions(
    environment: Mapping[str, str], now: Callable[[], datetime], log: io.TextIOBase
) -> Iterator[Functions]:
    """Load the functions with an environment and a clock; their logs go to `log`."""
    calls: Counter[str] = Counter()
    assert boto3.DEFAULT_SESSION is not None
    boto3.DEFAULT_SESSION.events.register("before-call", _counter(calls))
    with (
        patch.dict(os.environ, environment),
        patch.object(wiring, "now", now),
        _logging_to(observability.logger, log),
        _cold(),
    ):
        yield Functions(handlers={name: load_handler(name) for name in NAMES}, calls=calls)


@contextmanager
def _cold() -> Iterator[None]:
    """Start with nothing wired, and leave nothing wired behind."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    """Empty the caches of the wiring: clients and settings belong to one cold start."""
    for part in vars(wiring).values():
        if hasattr(part, "cache_clear"):
            part.cache_clear()


def _counter(calls: Counter[str]) -> Callable[..., None]:
    def count(model: Any, **_: object) -> None:
        calls[f"{model.service_model.service_name}.{model.name}"] += 1

    return count


@contextmanager
def _logging_to(logger: Logger, log: io.TextIOBase) -> Iterator[None]:
    """Keep warnings and errors, in `log`; the decisions are in their records anyway."""
    handler, level = cast("Any", logger.registered_handler), logger.log_level
    before = handler.setStream(log)
    logger.setLevel("WARNING")
    try:
        yield
    finally:
        logger.setLevel(level)
        handler.setStream(before or sys.stdout)


def told(error: Exception) -> str:
    """An error in one line, with those that a group holds."""
    inner = getattr(error, "exceptions", ())
    parts = [str(error), *(f"{type(one).__name__}: {one}" for one in inner)]
    return f"{type(error).__name__}: {'; '.join(parts)}"


def _metrics(written: str) -> dict[str, float]:
    """The metrics of all EMF documents that a function wrote."""
    values: dict[str, float] = {}
    for line in written.splitlines():
        if line.startswith("{") and '"CloudWatchMetrics"' in line:
            document = json.loads(line)
            for directive in document["_aws"]["CloudWatchMetrics"]:
                for metric in directive["Metrics"]:
                    value = document[metric["Name"]]
                    values[metric["Name"]] = value[-1] if isinstance(value, list) else value
    return values
