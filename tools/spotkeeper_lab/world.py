"""A virtual world: one clock over a simulated cloud, its workers, and the deployed functions.

The real handlers run in it through boto3, as Lambda runs them: at the same time, until they end or
time out. A call to AWS takes virtual time, and the active faults of AWS apply to it: throttling,
errors, refusals, and answers that are lost after the call had its effect.
"""

import heapq
import io
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch
from uuid import UUID

from aws_lambda_powertools.utilities.parameters import base as parameters
from botocore.config import Config
from botocore.exceptions import ReadTimeoutError
from greenlet import greenlet

from spotkeeper import observability, wiring
from spotkeeper.ports import FleetError
from spotkeeper_lab.aws.answers import Answers
from spotkeeper_lab.aws.client import Client, in_process
from spotkeeper_lab.aws.dynamodb import Tables
from spotkeeper_lab.aws.wire import ACCOUNT, REGION, Answer, Events, Respond, VirtualTime
from spotkeeper_lab.checkout import Handler, load_handler
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError, CloudEvent
from spotkeeper_lab.faults import OF_AWS, SERVICES, Fault, Kind, refusal_of
from spotkeeper_lab.traces.requests import RequestTrace
from spotkeeper_lab.workers import SearchLogQueue, SearchLogs, Served, Workforce, sqs_record

COLLECT, HEALTH = "collect_search_logs", "check_health"
AVAILABILITY, INTERRUPTION = "check_availability", "handle_interruption"
LEDGER = "keep_ledger"
NAMES = (COLLECT, HEALTH, AVAILABILITY, INTERRUPTION, LEDGER)
EXPECTED = (FleetError, observability.TurnFailed)
"""The errors that a function announces; any other one is a bug."""

TABLE, PATH = "lab", "/spotkeeper/lab/fleets"
QUEUES = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/"
REQUEST_QUEUE, WAKE_UPS = f"{QUEUES}requests", f"{QUEUES}wake-ups"
HEALTH_QUEUE = f"{QUEUES}health"
ENVIRONMENT = {
    "TABLE_NAME": TABLE,
    "FLEET_DOCUMENTS_PATH": PATH,
    "RECORD_DAYS": "30",
    "STACK_NONCE": "51af3dc0-da77-11e4-872e-1234567db123",
    "WAKE_UP_QUEUE_URL": WAKE_UPS,
    "HEALTH_QUEUE_URL": HEALTH_QUEUE,
    "EVENT_BUS": "default",
    "POWERTOOLS_SERVICE_NAME": "lab",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
    "POWERTOOLS_TRACE_DISABLED": "true",
}
NO_FILES = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
TIME_OUT_S = 30.0
# Between the attempts that a client's configuration allows.
PAUSES_S = (0.0, 0.5, 1.0)
NOT_RETRIED = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation"})
# Shares of the invocations, calls and answers that an active fault affects.
KILLED_SHARE, KILLED_WITHIN_S = 0.4, 0.6
SLOW_SHARE, LOST_SHARE = 0.5, 0.15
# Parameters that add nothing to a story.
_DULL = frozenset({"HonorCooldown", "ShouldDecrementDesiredCapacity", "HealthStatus",
                   "ShouldRespectGracePeriod"})  # fmt: skip


class Killed(BaseException):
    """The function's time is up. It ends at once, and no `except Exception` catches it."""


class Process:
    """Work that runs only between `resume` and `pause`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._killed = False
        self._work = work
        self._greenlet = greenlet(self._run)

    @property
    def done(self) -> bool:
        return bool(self._greenlet.dead)

    def resume(self) -> None:
        """Let it run until it pauses or is done."""
        self._greenlet.switch()

    def pause(self) -> None:
        """Pause, called by the work itself; it continues when resumed, or ends if killed."""
        assert self._greenlet.parent
        self._greenlet.parent.switch()
        self.live()

    def live(self) -> None:
        """End the work, called by the work itself, if it was killed."""
        if self._killed:
            raise Killed

    def kill(self) -> None:
        """End the work at its next step."""
        self._killed = True

    def _run(self) -> None:
        with suppress(Killed):
            self.live()
            self._work()


@dataclass(slots=True, eq=False)
class Invocation:
    """One call of a function: its latest end, its process, and the result.

    `failed` is empty once it has ended well, `bug` is an error that no function announces.
    `recorded` are the fleets that it left a record of.
    """

    function: str
    event: Mapping[str, Any]
    deadline_s: float
    then: "Then | None" = None
    process: Process = field(init=False)
    recorded: set[str] = field(default_factory=set)
    overlapped: bool = False
    answer: Any = None
    failed: str = "killed"
    bug: str = ""


type Then = Callable[[Invocation], None]


@dataclass(frozen=True, slots=True)
class Context:
    """What the handlers use of Lambda's context."""

    function_name: str = "function"
    aws_request_id: str = "request"
    memory_limit_in_mb: int = 512

    @property
    def invoked_function_arn(self) -> str:
        """The ARN that carries region and account."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.function_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a world is made of; second 0 is `start`.

    The first of `documents` is the default fleet's. A call takes one of `latencies_s`, or no time.
    A request goes to the worker that was idle for longest, or by `chance` to any idle one.
    """

    cloud: Cloud
    documents: dict[str, str]
    requests: RequestTrace
    start: datetime
    seed: int = 0
    latencies_s: tuple[float, float] | None = None
    workers_per_instance: int = 1
    onprem_workers: int = 0
    chance: random.Random | None = None


class Observer:
    """Looks at a world while it runs, and changes nothing."""

    def sampled(self) -> None:
        """Look at the world, every few seconds."""

    def acts(self, operation: str, params: Mapping[str, Any], function: str) -> None:
        """See a call that changes something, before it has its effect."""

    def recorded(self, fleet: str, record: Mapping[str, Any]) -> None:
        """See a decision record before it is written."""

    def announced(self, event: Mapping[str, Any]) -> None:
        """See the detail of an event that was sent to the bus."""

    def begun(self, function: str) -> None:
        """See the begin of an invocation."""

    def done(self, invocation: Invocation) -> None:
        """See a finished invocation."""

    def printed(self, line: str) -> None:
        """See a line of a function's log."""

    def happened(self, event: CloudEvent) -> None:
        """See an event of the cloud, before it is delivered."""

    def finished(self, served: Served) -> None:
        """See a finished request."""

    def finished_beside(self, served: Served) -> None:
        """See a finished request of a fleet beside the first one."""

    def ended(self) -> None:
        """Judge the run as a whole."""


class World:
    """A running world. A driver schedules what runs; observers look at it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cloud = stage.cloud
        self.documents = dict(stage.documents)
        self.rng = random.Random(f"{stage.seed}/world")
        self.time = VirtualTime(stage.start)
        self.events = Events(self.time)
        self.tables = Tables()
        self.table = self.tables.create(TABLE)
        self.logs = SearchLogs(self.time)
        self.queue = SearchLogQueue(self.time)
        self.force = Workforce(
            zip(stage.requests.arrival_s.tolist(), stage.requests.service_s.tolist(), strict=True),
            self.served,
            workers_per_instance=stage.workers_per_instance,
            onprem_workers=stage.onprem_workers,
            chance=stage.chance,
        )
        self.active: dict[Kind, Fault] = {}
        self.story: list[str] = []
        self.observers: list[Observer] = []
        self.invocations = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._entered = 0
        self._handlers: Mapping[str, Handler] = {}
        self._current: Invocation | None = None
        self._open: list[Invocation] = []
        self.ahead_s = 0.0
        """How far the functions' clock is ahead."""

    @contextmanager
    def deployed(self) -> Iterator[Self]:
        """Deploy the functions into the world: their environment, clock, and AWS."""
        clock = SimpleNamespace(now=lambda *_: self.now().replace(tzinfo=None))
        environment = ENVIRONMENT | {"DEFAULT_FLEET": next(iter(self.documents))}
        level = observability.logger.log_level
        with ExitStack() as stack:
            stack.enter_context(patch.dict("os.environ", environment))
            # The world must not read the AWS profile or endpoint of the shell.
            for name in [it for it in os.environ if it.startswith("AWS_")]:
                del os.environ[name]
            os.environ |= {"AWS_DEFAULT_REGION": REGION, **NO_FILES}
            stack.enter_context(patch.object(wiring, "now", self.now))
            stack.enter_context(patch.object(parameters, "datetime", clock))
            stack.enter_context(in_process(self.client))
            observability.logger.setLevel("CRITICAL")
            stack.callback(observability.logger.setLevel, level)
            self._handlers = {name: _handler(name) for name in NAMES}
            forget()
            stack.callback(forget)
            stack.callback(self._kill_all)
            yield self

    # --- what a driver implements ---------------------------------------------------------------

    def happened(self, event: CloudEvent) -> None:
        raise NotImplementedError

    def served(self, served: Served) -> None:
        """Handle a finished request."""
        raise NotImplementedError

    def recorded(self, fleet: str, text: str) -> None:
        """Handle a decision record before it is written."""
        record = json.loads(text) if self.observers else {}
        for one in self.observers:
            one.recorded(fleet, record)

    def done(self, invocation: Invocation) -> None:
        """Handle a finished invocation."""
        for one in self.observers:
            one.done(invocation)

    # --- time -----------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.cloud.now_s

    def now(self) -> datetime:
        """The clock that the functions read."""
        return self.time.at(self.now_s + self.ahead_s)

    def enter(self, at_s: float, task: Callable[[], None]) -> None:
        """Schedule a task."""
        self._entered += 1
        heapq.heappush(self._agenda, (max(at_s, self.now_s), self._entered, task))

    def tell(self, line: str) -> None:
        minutes, seconds = divmod(self.now_s, 60.0)
        self.story.append(f"{minutes:4.0f}:{seconds:04.1f}  {line}")

    def next_s(self) -> float:
        """The next instant at which something is due."""
        cloud_s = self.cloud.next_s()
        return self._agenda[0][0] if cloud_s is None else min(cloud_s, self._agenda[0][0])

    def step(self, at_s: float) -> None:
        """Let time pass to the next instant at which something is due, and do it."""
        self.pass_to(at_s)
        while self._agenda and self._agenda[0][0] <= self.now_s:
            heapq.heappop(self._agenda)[2]()

    def pass_to(self, to_s: float) -> None:
        """Let time pass to an instant before which nothing is due."""
        self.force.advance(to_s)
        for event in self.cloud.advance(to_s):
            self.happened(event)

    # --- functions ------------------------------------------------------------------------------

    def invoke(self, function: str, event: Mapping[str, Any], then: Then | None = None) -> None:
        """Call a function; `then` gets the invocation when it is done."""
        if Kind.COLD in self.active:
            forget()
        self.invocations += 1
        for one in self.observers:
            one.begun(function)
        lasts_s = TIME_OUT_S
        if Kind.KILLED in self.active and self.rng.random() < KILLED_SHARE:
            lasts_s = self.rng.uniform(0.0, KILLED_WITHIN_S)
        invocation = Invocation(function, event, self.now_s + lasts_s, then)
        invocation.process = Process(lambda: self._work(invocation))
        if self._open:
            for other in (*self._open, invocation):
                other.overlapped = True
        self._open.append(invocation)
        self._resume(invocation)

    def collect(self) -> None:
        """The event source mapping of search logs: batches until the queue shows nothing more."""
        while batch := self.queue.receive(self.now_s):
            self.invoke(COLLECT, batch, partial(self._settle, batch))

    def _settle(self, batch: Mapping[str, Any], invocation: Invocation) -> None:
        """Redeliver the messages that the function reported, or all if it failed."""
        failed = [record["messageId"] for record in batch["Records"]]
        if invocation.answer is not None and not invocation.failed:
            failed = [one["itemIdentifier"] for one in invocation.answer["batchItemFailures"]]
        self.queue.settle(batch, failed)

    def _work(self, invocation: Invocation) -> None:
        handler = self._handlers[invocation.function]
        context = Context(f"lab-{invocation.function}", str(UUID(int=self.invocations)))
        try:
            invocation.answer = handler(invocation.event, context)
            invocation.failed = ""
        except EXPECTED as error:
            # In one line, with the errors of an exception group.
            inner = getattr(error, "exceptions", ())
            parts = [str(error), *(f"{type(one).__name__}: {one}" for one in inner)]
            invocation.failed = f"{type(error).__name__}: {'; '.join(parts)}"
        except Exception as error:  # noqa: BLE001 - any other error is a bug
            invocation.failed = invocation.bug = repr(error)

    def spend(self, seconds: float) -> None:
        """Let the calling function wait; other tasks run meanwhile."""
        invocation = self._current
        if invocation is None or not seconds:
            return
        at_s = self.now_s + seconds
        if late := at_s >= invocation.deadline_s:
            at_s = invocation.deadline_s
            invocation.process.kill()
        if self.next_s() > at_s:
            self.pass_to(at_s)
        else:
            self.enter(at_s, lambda: self._resume(invocation))
            invocation.overlapped = True
            invocation.process.pause()
        if late:
            self.tell(f"  {invocation.function} ran into its time-out")
        invocation.process.live()

    def _resume(self, invocation: Invocation) -> None:
        before, self._current = self._current, invocation
        with redirect_stdout(io.StringIO()) as log:
            invocation.process.resume()
        self._current = before
        for line in log.getvalue().splitlines():
            for one in self.observers:
                one.printed(line)
        if invocation.process.done:
            self._open.remove(invocation)
            self.done(invocation)
            if invocation.then:
                invocation.then(invocation)

    def _kill_all(self) -> None:
        """End the invocations that still run."""
        for invocation in self._open:
            if not invocation.process.done:
                invocation.process.kill()
                invocation.process.resume()

    # --- AWS ------------------------------------------------------------------------------------

    def client(self, service: str, config: Config = wiring.NEEDED, **_: object) -> Client:
        known = self._actions(service)
        return Client(service, {name: self._called(service, name, config, known) for name in known})

    def _actions(self, service: str) -> Mapping[str, Respond]:
        match service:
            case "autoscaling" | "ec2":
                answers = Answers(self.cloud, self.time)
                actions = answers.ec2() if service == "ec2" else answers.auto_scaling()
                return {
                    name: respond
                    if name.startswith("describe")
                    else self._recorded_action(name, respond)
                    for name, respond in actions.items()
                }
            case "dynamodb":
                tables = self.tables.answers()
                return {**tables, "put_item": partial(self._put_item, tables["put_item"])}
            case "events":
                return {"put_events": self._put_events}
            case "ssm":
                return {"get_parameters_by_path": self._parameters}
            case "sqs":
                return {
                    "send_message": self._wake_up,
                    "send_message_batch": self._send_batch,
                    "get_queue_attributes": self._length,
                }
        return {}

    def _called(
        self, service: str, operation: str, config: Config, known: Mapping[str, Respond]
    ) -> Respond:
        """Return an operation as a client sees it, with latency, retries and refusals."""
        settings: Any = config
        tries, longest_s = settings.retries["total_max_attempts"], settings.read_timeout

        def call(params: Mapping[str, Any]) -> Answer:
            for attempt in range(tries):
                if attempt:
                    self.spend(PAUSES_S[attempt])
                latency_s = self._latency_s()
                self.spend(min(latency_s, longest_s) / 2)
                if self._hangs(service):
                    self.spend(longest_s)
                    continue
                if refused := self._refusal(service, operation):
                    self.spend(latency_s / 2)
                    if attempt == tries - 1 or refused[0] in NOT_RETRIED:
                        raise CloudError(*refused)
                    continue
                try:
                    answer = known[operation](params)
                except CloudError:
                    self.spend(latency_s / 2)
                    raise
                self.spend(min(latency_s, longest_s) / 2)
                if latency_s < longest_s and not self._loses_answer():
                    return answer
            raise ReadTimeoutError(endpoint_url=f"https://{service}.example")

        return call

    def _latency_s(self) -> float:
        if self.stage.latencies_s is None:
            return 0.0
        if Kind.SLOW in self.active and self.rng.random() < SLOW_SHARE:
            return self.rng.uniform(0.5, 8.0)
        return self.rng.uniform(*self.stage.latencies_s)

    def _refusal(self, service: str, operation: str) -> tuple[str, str] | None:
        """AWS's code and message if it refuses the next call."""
        faults = (self.active[kind] for kind in OF_AWS if kind in self.active)
        found = (refusal_of(fault, service, operation, self.rng) for fault in faults)
        return next(filter(None, found), None)

    def _hangs(self, service: str) -> bool:
        fault = self.active.get(Kind.HANGING)
        return fault is not None and fault.chosen(SERVICES) == service

    def _loses_answer(self) -> bool:
        return Kind.ANSWERS_LOST in self.active and self.rng.random() < LOST_SHARE

    def _recorded_action(self, name: str, respond: Respond) -> Respond:
        """Check an action that changes something, run it, and add it to the story."""

        def act(params: Mapping[str, Any]) -> Answer:
            function = self._current.function if self._current else ""
            for one in self.observers:
                one.acts(name, params, function)
            values = ", ".join(str(value) for key, value in params.items() if key not in _DULL)
            try:
                answer = respond(params)
            except CloudError as refused:
                self.tell(f"  {function}: {name} {values}: {refused}")
                raise
            self.tell(f"  {function}: {name} {values}")
            return answer

        return act

    def _put_item(self, put: Respond, params: Mapping[str, Any]) -> Answer:
        item = params["Item"]
        if item["sk"]["S"].startswith("decision#"):
            fleet = item["pk"]["S"].removeprefix("fleet#")
            if self._current:
                self._current.recorded.add(fleet)
            self.recorded(fleet, item["record"]["S"])
        return put(params)

    def _parameters(self, _: Mapping[str, Any]) -> Answer:
        return {
            "Parameters": [
                {"Name": f"{PATH}/{name}", "Type": "String", "Value": text, "Version": 1}
                for name, text in self.documents.items()
            ]
        }

    def _put_events(self, params: Mapping[str, Any]) -> Answer:
        for entry in params["Entries"]:
            for one in self.observers:
                one.announced(json.loads(entry["Detail"]))
        ids = [{"EventId": f"event-{number}"} for number in range(len(params["Entries"]))]
        return {"FailedEntryCount": 0, "Entries": ids}

    def _wake_up(self, params: Mapping[str, Any]) -> Answer:
        """Schedule a wake-up. If its turn fails, the next minute's turn follows."""
        message_id = f"wake-up-{self._entered}"
        event = {"Records": [sqs_record("wake-ups", message_id, params["MessageBody"])]}
        at_s = self.now_s + float(params.get("DelaySeconds", 0))
        function = HEALTH if params["QueueUrl"] == HEALTH_QUEUE else AVAILABILITY
        self.enter(at_s, lambda: self.invoke(function, event))
        return {"MessageId": message_id}

    def _send_batch(self, params: Mapping[str, Any]) -> Answer:
        """Send several messages; each becomes an invocation."""
        for entry in params["Entries"]:
            self._wake_up({"QueueUrl": params["QueueUrl"], **entry})
        return {"Successful": [], "Failed": []}

    def _length(self, _: Mapping[str, Any]) -> Answer:
        counts = {"": self.force.queued, "Delayed": 0, "NotVisible": self.force.in_flight}
        known = {f"ApproximateNumberOfMessages{kind}": str(n) for kind, n in counts.items()}
        return {"Attributes": known}

    def state_item(self, fleet: str) -> dict[str, Any]:
        """A fleet's item in the table; empty if it has none."""
        return self.table.partitions.get(f"fleet#{fleet}", {}).get("state", {})


_handler = cache(load_handler)


def forget() -> None:
    """Clear everything that a warm function keeps, as a cold start does."""
    for part in (*vars(wiring).values(), *vars(observability).values()):
        if hasattr(part, "cache_clear"):
            part.cache_clear()
