"""Celery workers of a fleet: search logs, and a drain that loses no task (docs/celery.md).

Call `install(app)` where the app is made, so that producers stamp their tasks, too. On a machine
without an agent it changes nothing but that stamp. Needs Celery 5.3 or newer.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import weakref
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable

from spotkeeper_worker.extras import needs
from spotkeeper_worker.log import get_logger
from spotkeeper_worker.logs.emitter import Emitter
from spotkeeper_worker.notice import NoticeReader
from spotkeeper_worker.roster import NameTaken
from spotkeeper_worker.worker import LAST_REQUESTS, MARGIN_S, Worker, is_timeout, run_folder

with needs("celery"):
    from celery import Celery, bootsteps, signals
    from celery.worker import state
    from celery.worker.consumer.tasks import Tasks
    from celery.worker.request import Request as CeleryRequest

if TYPE_CHECKING:
    from pathlib import Path

    from spotkeeper_worker.worker import Request

_LOG = get_logger("worker")
STAMP = "spotkeeper_enqueued_at"
_LOOK_S = 0.2
# Celery's own tasks, such as celery.chord_unlock, are no requests.
_INTERNAL = "celery."
_DONE = ("SUCCESS", "IGNORED")


class _HandedBack(Exception):
    """Ends the execution of a task that was given back to its queue before it began."""


class _Process:
    """What this process knows: one for the main process, and one for each of its children."""

    def __init__(self) -> None:
        self.name = "celery"
        self.worker: Worker | None = None
        self.running: dict[str, Request] = {}
        self.waiting: weakref.WeakSet[MeasuredRequest] = weakref.WeakSet()
        self.margin_s = MARGIN_S
        self.indexes: dict[int, int] = {}
        """Of the pool's processes, by their pids."""
        self.emitters: dict[str, Emitter] = {}
        """For the logs of processes that were killed, by their names."""


_HERE = _Process()
_INSTALLED: weakref.WeakSet[Any] = weakref.WeakSet()


def install(app: Any, margin_s: float = MARGIN_S) -> Any:
    """Have the workers of a Celery app take part in the fleet; returns the app.

    `margin_s` is what a task may take longer than the longest of the last hundred of its kind.
    Raises TypeError for what is no Celery app.
    """
    if not isinstance(app, Celery):
        raise TypeError(f"install takes the Celery app itself, and not {app!r}: install(app)")
    if app not in _INSTALLED:
        _INSTALLED.add(app)
        _HERE.margin_s = margin_s
        steps: Any = app.steps
        steps["consumer"].add(_Drain)
        app.Task.Request = f"{MeasuredRequest.__module__}:{MeasuredRequest.__name__}"
        signals.before_task_publish.connect(_stamp)
        signals.celeryd_init.connect(_named)
        signals.worker_process_shutdown.connect(_left)
        signals.worker_shutdown.connect(_left)
        signals.task_prerun.connect(_begun)
        signals.task_failure.connect(_failed)
        signals.task_retry.connect(_retried)
        signals.task_postrun.connect(_ended)
    return app


# --- the producer ---------------------------------------------------------------------------------


def _stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
    """Write down since when a task waits; one that is not due yet does not wait."""
    if headers is None:
        return
    at = time.time()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        at = max(at, datetime.fromisoformat(headers["eta"]).timestamp())
    headers[STAMP] = at


# --- the process that runs tasks ------------------------------------------------------------------


def _named(sender: Any = None, **_: Any) -> None:
    """Learn the node's name. Children join last, when their model is loaded."""
    _HERE.name = re.sub(r"[^A-Za-z0-9_.:@-]", "-", str(sender))[:100].lstrip("-_.:@") or "celery"
    signals.worker_process_init.disconnect(_child)
    signals.worker_process_init.connect(_child)


def _child(**_: Any) -> None:
    """Join the machine from a process of the pool; its index stays when it is replaced."""
    from billiard.process import current_process

    _join(f"{_HERE.name}-{getattr(current_process(), 'index', 0)}")


def _join(name: str) -> None:
    if not (run_folder() / "workers").is_dir():
        return
    try:
        _HERE.worker = Worker(name)
        _HERE.worker.ready()
    except (NameTaken, OSError, ValueError) as error:
        _LOG.error("%s cannot join this machine, and sends no search logs: %s", name, error)


def _left(**_: Any) -> None:
    worker, _HERE.worker = _HERE.worker, None
    if worker is not None:
        worker.close()


def _begun(task_id: str = "", task: Any = None, **_: Any) -> None:
    worker = _HERE.worker
    if worker is None or task.request.is_eager or task.name.startswith(_INTERNAL):
        return
    began = worker.request(task_id, task.request.get(STAMP) or time.time())
    _HERE.running[task_id] = began.__enter__()


def _failed(task_id: str = "", exception: Any = None, **_: Any) -> None:
    if task_id in _HERE.running:
        _HERE.running[task_id].status = "timeout" if is_timeout(type(exception)) else "error"


def _retried(request: Any = None, reason: Any = None, **_: Any) -> None:
    _failed(request.id, getattr(reason, "exc", None) or reason)


def _ended(task_id: str = "", state: str | None = None, **_: Any) -> None:
    log = _HERE.running.pop(task_id, None)
    if log is None:
        return
    if not state:
        # This process is being killed, for a time limit or a revoke: the main process logs why.
        log.drop()
        return
    if log.status == "ok" and state not in _DONE:
        log.status = "error"
    log.__exit__(None)


# --- the process that takes tasks -----------------------------------------------------------------


class MeasuredRequest(CeleryRequest):  # type: ignore[misc]
    """A task as the main process has it, from its message to its end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.begun = self.handed_back = self.logged = False
        self.lock = threading.Lock()
        _HERE.waiting.add(self)

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Celery calls this when a process or a thread begins the task."""
        with self.lock:
            if self.handed_back:
                state.task_ready(self)
                raise _HandedBack(self.id)
            self.begun = True
        super().on_accepted(pid, time_accepted)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Celery calls this when a time limit is over; after the hard one the child is gone."""
        if not soft:
            self._log_of_the_dead("timeout")
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *arguments: Any, **named: Any) -> Any:
        """Celery calls this also when the child was killed, and so has sent no search log."""
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if type(error).__name__ in ("WorkerLostError", "Terminated", "SystemExit"):
            self._log_of_the_dead("error")
        return super().on_failure(exc_info, *arguments, **named)

    def _log_of_the_dead(self, status: str) -> None:
        if self.logged or not self.time_start or _HERE.worker is not None:
            return
        self.logged = True
        enqueued_at = self.request_dict.get(STAMP) or self.time_start
        name = f"{_HERE.name}-{_HERE.indexes.get(self.worker_pid or 0, 0)}"
        if name not in _HERE.emitters:
            _HERE.emitters[name] = Emitter(run_folder(), name)
        measured = (self.id[:128], enqueued_at, self.time_start, time.time(), status)
        _HERE.emitters[name].emit(measured)

    def hand_back(self) -> bool:
        """Give a task that has not begun to another worker, now; answers whether."""
        with self.lock:
            if self.begun or self.handed_back or self.acknowledged:
                return False
            self.handed_back = True
        self.return_message()
        state.task_ready(self)
        return True

    def return_message(self) -> None:
        """Make the message visible to other workers at once."""
        message = self.message
        receipt = message.delivery_info.get("sqs_message", {}).get("ReceiptHandle")
        if not receipt:
            self.reject(requeue=True)
            return
        # kombu's own requeue hides the message for as long as a long poll takes.
        self.acknowledged = True
        url = message.delivery_info["sqs_queue"]
        client = message.channel.sqs(queue=message.delivery_info.get("routing_key"))
        try:
            client.change_message_visibility(
                QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0
            )
        finally:
            message.channel.qos.ack(message.delivery_tag)


class Gate:
    """Whether the machine may begin a task: a kind of task by the time that its last ones took."""

    def __init__(self, run_dir: Path, margin_s: float) -> None:
        self.on = (run_dir / "workers").is_dir()
        self._reader = NoticeReader(run_dir)
        self._margin_s = margin_s
        self._took: dict[str, deque[float]] = {}
        self._running: dict[str, tuple[str, float]] = {}
        self._refused: set[str] = set()

    def may_take(self, name: str, now: float) -> bool:
        """Whether to begin a task of this name."""
        notice = self._reader.read()
        if notice is None or notice.must_hand_back(now):
            return False
        ends = notice.last_start(self._took.get(name, ()), self._margin_s)
        return ends is None or now < ends

    def may_take_any(self, now: float) -> bool:
        """Whether to listen to the queues: some kind of task may still be short enough.

        Once a task was refused, its kind must be short enough: the broker would deliver the same
        task again and again, and RabbitMQ's quorum queues drop it after 20 deliveries.
        """
        if not all(self.may_take(name, now) for name in tuple(self._refused)):
            return False
        self._refused.clear()
        return any(self.may_take(name, now) for name in (*self._took, ""))

    def refuse(self, name: str) -> None:
        """Remember that a task of this name was given back."""
        self._refused.add(name)

    def must_hand_back(self, now: float) -> bool:
        """Whether what runs now will not be done."""
        notice = self._reader.read()
        return notice is not None and notice.must_hand_back(now)

    def learn(self, active: dict[str, tuple[str, float]], now: float) -> None:
        """Compare what runs with what ran at the last look: by id its name and when it began."""
        for each, (name, began) in self._running.items():
            if each not in active:
                self._took.setdefault(name, deque(maxlen=LAST_REQUESTS)).append(now - began)
        self._running = active


class _Drain(bootsteps.StartStopStep):  # type: ignore[misc]
    """Stops consuming while the machine may begin no task, and requeues what was prefetched."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **named: Any) -> None:
        super().__init__(consumer, **named)
        self.gate = Gate(run_folder(), _HERE.margin_s)
        self._timer: Any = None
        self._can_consume: Callable[[], bool] | None = None
        self._paused = False
        if not self.gate.on:
            return
        controller = consumer.controller
        process, waits = controller._process_task, controller._process_task_sem

        def gated(request: Any) -> None:
            """Process a task, unless it was given back while it waited for a free process."""
            if not request.handed_back:
                if self.gate.may_take(request.name, time.time()):
                    process(request)
                    return
                # Before the next look, or the broker would deliver it again at once.
                self.gate.refuse(request.name)
                consumer.call_soon(self._pause, consumer)
            request.hand_back()
            release = getattr(controller, "_quick_release", None)
            if release is not None:
                release()

        controller._process_task = gated
        if consumer.on_task_request != waits:
            consumer.on_task_request = gated

    def start(self, parent: Any) -> None:
        """Begin to look, after each connection to the broker anew."""
        consumer = parent
        self._paused, self._can_consume = False, None
        if not self.gate.on:
            _LOG.warning("there is no agent on this machine: Celery takes tasks as usual")
            return
        if _HERE.worker is None and "prefork" not in type(consumer.pool).__module__:
            _join(_HERE.name)
        self.step(consumer)
        self._timer = consumer.timer.call_repeatedly(_LOOK_S, self.step, (consumer,))

    def step(self, consumer: Any) -> None:
        """Look once, and pause or resume."""
        now = time.time()
        pool = getattr(getattr(consumer.pool, "_pool", None), "_pool", ())
        _HERE.indexes.update({each.pid: each.index for each in pool})
        active = [each for each in list(state.active_requests) if each.time_start]
        self.gate.learn({each.id: (each.name, each.time_start) for each in active}, now)
        if self.gate.may_take_any(now):
            self._resume(consumer)
            return
        # First, or what is given back would be taken again.
        self._pause(consumer)
        if self.gate.must_hand_back(now):
            # Tasks that acknowledge late: they will not be done when the machine goes.
            for request in list(state.active_requests):
                if request.task.acks_late and not request.acknowledged:
                    request.return_message()
                    _LOG.warning("%s was returned to the queue: the machine goes", request.id)

    def _pause(self, consumer: Any) -> None:
        if not self._paused:
            self._paused = True
            _LOG.info("the machine must not begin tasks: consuming stops")
            channel: Any = consumer.task_consumer.channel
            qos: Any = getattr(channel, "qos", None)
            if hasattr(qos, "can_consume"):
                # A task that Redis answers to a pending poll has left its list. Unread, it would be
                # lost with this process: it is read, and returned to the queue.
                self._can_consume = qos.can_consume
                qos.can_consume = lambda: bool(getattr(channel, "_in_poll", False))
            else:
                _in_its_loop(consumer, consumer.task_consumer.cancel)
        returned = sum(
            request.hand_back()
            for request in list(_HERE.waiting)
            # What a process of the pool may have begun already stays with it.
            if request not in state.active_requests and not _dispatched(request)
        )
        if returned:
            _LOG.info("%d prefetched tasks were returned", returned)

    def _resume(self, consumer: Any) -> None:
        if not self._paused:
            return
        self._paused = False
        _LOG.info("the machine serves: consuming again")
        if self._can_consume is not None:
            consumer.task_consumer.channel.qos.can_consume = self._can_consume
            self._can_consume = None
        else:
            _in_its_loop(consumer, consumer.task_consumer.consume)

    def stop(self, parent: Any) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _in_its_loop(consumer: Any, wait: Callable[[], Any]) -> None:
    """Make a call that waits for the broker's answer.

    With gevent, timers run in greenlets of their own, and only the loop may read the connection.
    It makes the call at the next message, or within two seconds.
    """
    if consumer.hub:
        wait()
    else:
        consumer.call_soon(wait)


def _dispatched(request: MeasuredRequest) -> bool:
    """Whether a process of the pool has the task already; a thread begins it by `on_accepted`."""
    result = request._apply_result
    return result is not None and hasattr(result() if callable(result) else result, "_job")
