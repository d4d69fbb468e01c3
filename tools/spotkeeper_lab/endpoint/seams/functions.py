"""Functions as Lambda runs them, where ministack does otherwise."""

import hashlib
import re
import sys
import tempfile
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
