"""Functions as Lambda runs them, where ministack does otherwise."""

import hashlib
import json
import re
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from spotkeeper_lab.endpoint.seams.account import send_messages
from spotkeeper_lab.endpoint.seams.permissions import may
from spotkeeper_lab.endpoint.seams.release import SeamError, module


def functions_have_only_their_layers() -> None:
    """A function sees the standard library and its layers, not what the endpoint is made of."""
    runtime = module("core.lambda_runtime")
    original = runtime._detect_runtime_binary

    def binary(name: str) -> tuple[str, str]:
        found, script = original(name)
        return (sys._base_executable if found == sys.executable else found), script  # type: ignore[attr-defined]

    runtime._detect_runtime_binary = binary


def archives_are_unpacked_once() -> None:
    """A new process finds code and layers in place, as on AWS; it waits for its own start only."""
    runtime = module("core.lambda_runtime")
    unpacked = Path(tempfile.mkdtemp(prefix="layers-"))
    lock = threading.Lock()

    class UnpackedOnce(zipfile.ZipFile):
        def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
            digest = hashlib.sha256(Path(str(self.filename)).read_bytes()).hexdigest()
            with lock:
                if not (unpacked / digest).exists():
                    super().extractall(unpacked / "part", members, pwd)
                    (unpacked / "part").rename(unpacked / digest)
            for entry in (unpacked / digest).iterdir():
                (Path(path) / entry.name).symlink_to(entry)

    runtime.zipfile = SimpleNamespace(**vars(zipfile) | {"ZipFile": UnpackedOnce})


def rules_and_schedules_invoke_asynchronously() -> None:
    """Targets get retries, the function's limits on them, and its destination on failure."""
    events, functions = module("services.eventbridge"), module("services.lambda_svc")

    def dispatch(arn: str, payload: str) -> None:
        found, config, _name = functions._get_func_record_for_ref(arn)
        if found and config:
            functions.invoke_async_with_retry(found, json.loads(payload))

    events._dispatch_to_lambda = dispatch


RAISED = """            failed = {
                "errorMessage": str(e),
                "errorType": type(e).__name__,
                "requestId": context.aws_request_id,
                "stackTrace": traceback.format_tb(e.__traceback__),
            }
            traceback.print_exc()
            _real_stdout.write(json.dumps({"status": "ok", "result": {"_raised": failed}}) + "\\n")
"""
UNTOLD = re.compile(
    r' +_real_stdout\.write\(json\.dumps\(\{"status": "error", "error": str\(e\), "trace".*\n'
)


def exceptions_have_their_type() -> None:
    """A handler's exception is answered with its type and trace, and its process lives on."""
    runtime, functions = module("core.lambda_runtime"), module("services.lambda_svc")
    script, found = UNTOLD.subn(lambda _: RAISED, runtime._PYTHON_WORKER_SCRIPT)
    if found != 1:
        raise SeamError("the script that runs handlers has another form")
    runtime._PYTHON_WORKER_SCRIPT = script
    original = functions._execute_function_warm

    def execute(func: Any, event: Any, request_id: str) -> Any:
        result = original(func, event, request_id)
        body = result.get("body")
        if not (isinstance(body, dict) and "_raised" in body):
            return result
        return {"body": body["_raised"], "error": True, "log": result.get("log", "")}

    functions._execute_function_warm = execute


def failures_reach_their_destination() -> None:
    """The record of a failed invocation is AWS's, and the function's role must be let send it."""
    functions = module("services.lambda_svc")

    def route(target: str, name: str, event: Any, result: Mapping[str, Any]) -> None:
        found = functions._functions.get(name) or {}
        limits = found.get("event_invoke_config") or {}
        arn = found.get("config", {}).get("FunctionArn", "")
        retries = limits.get("MaximumRetryAttempts")
        record = {
            "version": "1.0",
            "timestamp": datetime.fromtimestamp(time.time(), UTC).isoformat(
                timespec="milliseconds"
            ),
            "requestContext": {
                "requestId": str(uuid4()),
                "functionArn": f"{arn}:$LATEST",
                "condition": "RetriesExhausted",
                "approximateInvokeCount": 1 + (2 if retries is None else int(retries)),
            },
            "requestPayload": event,
            "responseContext": {
                "statusCode": 200,
                "executedVersion": "$LATEST",
                "functionError": "Unhandled",
            },
            "responsePayload": result.get("body"),
        }
        if may(found.get("config", {}), "sqs:SendMessage", target):
            send_messages(target.rpartition(":")[2], [json.dumps(record)], whole=True)

    functions._route_async_failure = route
