"""Asynchronous invocations as Lambda makes them: what waits, what is tried again, what is told."""

import contextvars
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from spotkeeper_lab.endpoint.seams.account import send_messages
from spotkeeper_lab.endpoint.seams.permissions import may
from spotkeeper_lab.endpoint.seams.release import module

# A failed invocation is tried again after one minute, then after two.
RETRY_S, LONGEST_RETRY_S = 60.0, 120.0
# One that finds no free concurrency stays in its queue, and is tried after up to five minutes.
THROTTLED_S, LONGEST_THROTTLED_S = 1.0, 300.0
OLDEST_S, RETRIES = 21_600.0, 2
EXHAUSTED, TOO_OLD = "RetriesExhausted", "EventAgeExceeded"


@dataclass(slots=True)
class Invocation:
    """An event on its way to a function, and what became of it so far."""

    function: Mapping[str, Any]
    event: Any
    began_s: float
    failures: int = 0
    throttles: int = 0

    @property
    def config(self) -> Mapping[str, Any]:
        """The function's configuration."""
        return self.function.get("config") or self.function

    @property
    def limits(self) -> Mapping[str, Any]:
        """What the function is configured for asynchronous invocations with."""
        return self.function.get("event_invoke_config") or {}

    def after(self, result: Mapping[str, Any]) -> tuple[str, float]:
        """What a failure means: why it is given up, or nothing and when it is tried again."""
        if result.get("throttle"):
            self.throttles += 1
            wait_s = min(LONGEST_THROTTLED_S, THROTTLED_S * 2.0 ** (self.throttles - 1))
        else:
            self.failures += 1
            wait_s = min(LONGEST_RETRY_S, RETRY_S * self.failures)
            retries = self.limits.get("MaximumRetryAttempts")
            if self.failures > (RETRIES if retries is None else int(retries)):
                return EXHAUSTED, 0.0
        oldest_s = float(self.limits.get("MaximumEventAgeInSeconds") or OLDEST_S)
        too_old = time.monotonic() - self.began_s + wait_s > oldest_s
        return (TOO_OLD, 0.0) if too_old else ("", wait_s)


def invocations_are_lambda_s() -> None:
    """Throttled events wait, failed ones are tried again, and the destination is told."""
    functions = module("services.lambda_svc")

    def invoke(function: Mapping[str, Any], event: Any) -> None:
        invocation = Invocation(function, event, time.monotonic())
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(_run, invocation), daemon=True).start()

    functions.invoke_async_with_retry = invoke


def rules_and_schedules_invoke_asynchronously() -> None:
    """Targets get retries, the function's limits on them, and its destination on failure."""
    events, functions = module("services.eventbridge"), module("services.lambda_svc")

    def dispatch(arn: str, payload: str) -> None:
        found, config, _name = functions._get_func_record_for_ref(arn)
        if found and config:
            functions.invoke_async_with_retry(found, json.loads(payload))

    events._dispatch_to_lambda = dispatch


def _run(invocation: Invocation) -> None:
    functions = module("services.lambda_svc")
    account, region = functions._account_region_from_function_config(invocation.config)
    functions._request_account_id.set(account)
    functions._request_region.set(region)
    while True:
        result = functions._execute_function(invocation.function, invocation.event)
        if told := result.get("log"):
            functions.logger.info("%s\n%s", invocation.config.get("FunctionName"), told)
        if not result.get("error"):
            return
        why, wait_s = invocation.after(result)
        if why:
            _tell(invocation, why, result)
            return
        time.sleep(wait_s)


def _tell(invocation: Invocation, why: str, result: Mapping[str, Any]) -> None:
    """Send the record of a failure to its destination, which the function's role must allow."""
    on_failure = (invocation.limits.get("DestinationConfig") or {}).get("OnFailure") or {}
    target = on_failure.get("Destination", "")
    if target and may(invocation.config, "sqs:SendMessage", target):
        text = json.dumps(_record(invocation, why, result))
        send_messages(target.rpartition(":")[2], [text], whole=True)


def _record(invocation: Invocation, why: str, result: Mapping[str, Any]) -> dict[str, Any]:
    now = datetime.fromtimestamp(time.time(), UTC)
    record: dict[str, Any] = {
        "version": "1.0",
        "timestamp": now.isoformat(timespec="milliseconds"),
        "requestContext": {
            "requestId": str(uuid4()),
            "functionArn": f"{invocation.config.get('FunctionArn', '')}:$LATEST",
            "condition": why,
            "approximateInvokeCount": invocation.failures,
        },
        "requestPayload": invocation.event,
    }
    if not result.get("throttle"):
        record["responseContext"] = {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        }
        record["responsePayload"] = result.get("body")
    return record
