"""The processes of functions, and what they leave behind."""

import threading
from collections import defaultdict
from contextlib import suppress
from typing import Any

from spotkeeper_lab.endpoint.seams.release import module

LOOK_EVERY_S = 0.02


def processes_start_in_turn() -> None:
    """Of a function's processes one starts at a time; who waits takes one that is free first.

    Events that come together would otherwise each start one, the slower for all the others.
    """
    runtime, functions = module("core.lambda_runtime"), module("services.lambda_svc")
    acquire = runtime.acquire_worker
    starting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def is_free(key: str) -> bool:
        with runtime._lock:
            return any(not worker.in_use for worker in runtime._workers.get(key, ()))

    def acquire_in_turn(
        name: str, config: Any, code: bytes, qualifier: str = "$LATEST", **rest: Any
    ) -> Any:
        key = runtime._worker_key(name, config, qualifier)
        turn = starting[key]
        while not is_free(key):
            if not turn.acquire(timeout=LOOK_EVERY_S):
                continue
            try:
                worker, how = acquire(name, config, code, qualifier=qualifier, **rest)
                # What does not start says why when it is invoked.
                with suppress(RuntimeError):
                    runtime.ensure_spawned(worker)
                return worker, how
            finally:
                turn.release()
        return acquire(name, config, code, qualifier=qualifier, **rest)

    functions.acquire_worker = acquire_in_turn


def logs_end_with_their_function() -> None:
    """What a deleted function still logs does not make its log group anew."""
    functions = module("services.lambda_svc")
    emit = functions._emit_lambda_logs

    def emit_of_the_living(function: Any, *call: Any, **named: Any) -> None:
        config = function.get("config") or function
        if functions._functions.get(config.get("FunctionName")) is not None:
            emit(function, *call, **named)

    functions._emit_lambda_logs = emit_of_the_living


def kill_workers(function: str) -> int:
    """Kill the processes of a function, at work or not; answers how many there were."""
    runtime = module("core.lambda_runtime")
    found = [
        worker
        for workers in runtime._workers.values()
        for worker in (workers if isinstance(workers, list) else [workers])
        if function in worker.func_name and worker._proc is not None
    ]
    for worker in found:
        worker._proc.kill()
    return len(found)


def end() -> None:
    """End every process of every function."""
    module("core.lambda_runtime").reset()
