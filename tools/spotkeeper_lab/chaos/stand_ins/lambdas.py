"""Functions as Lambda runs them: beside each other, until they are done or their time is up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotkeeper import wiring
from spotkeeper_lab.chaos.stand_ins.processes import Process
from spotkeeper_lab.chaos.story.clock import Timeline
from spotkeeper_lab.chaos.story.scenario import Kind, Scenario
from spotkeeper_lab.checkout import Handler
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.end_to_end.functions import EXPECTED, told
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION

TIME_OUT_S = 30.0
# Of the invocations, while functions are killed; and how soon.
KILLED_SHARE, KILLED_WITHIN_S = 0.4, 0.6

type Then = Callable[["Invocation", Any], None]


@dataclass(slots=True, eq=False)
class Invocation:
    """One call of a function: its end at the latest, its process, and what came of it.

    `bug` is an error that no function announces; `recorded` are the fleets it left a record of.
    """

    function: str
    deadline_s: float
    then: Then | None = None
    process: Process | None = None
    recorded: set[str] = field(default_factory=set)
    overlapped: bool = False
    answered: bool = False
    answer: Any = None
    failed: str = ""
    bug: str = ""


@dataclass(frozen=True, slots=True)
class _Context:
    """What the handlers use of Lambda's context."""

    function_name: str
    aws_request_id: str
    left_ms: Callable[[], int]
    memory_limit_in_mb: int = 512
    function_version: str = "$LATEST"

    @property
    def invoked_function_arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms()


class Lambdas(Timeline):
    """Invocations over a timeline; what one leaves undone is looked at by the floor above."""

    def __init__(self, scenario: Scenario, cloud: Cloud, handlers: Mapping[str, Handler]) -> None:
        super().__init__(scenario, cloud)
        self.invocations = 0
        self._handlers = handlers
        self._current: Invocation | None = None
        self._open: list[Invocation] = []

    def invoke(self, function: str, event: dict[str, Any], then: Then | None = None) -> None:
        """Call a function; `then` gets the invocation when it is done, and its answer."""
        if Kind.COLD in self.active:
            forget()
        self.invocations += 1
        invocation = Invocation(function, self._deadline_s(), then)
        invocation.process = Process(lambda: self._work(invocation, event))
        if self._open:
            for other in (*self._open, invocation):
                other.overlapped = True
        self._open.append(invocation)
        self._go_on(invocation)

    def _deadline_s(self) -> float:
        if Kind.KILLED in self.active and self.rng.random() < KILLED_SHARE:
            return self.now_s + self.rng.uniform(0.0, KILLED_WITHIN_S)
        return self.now_s + TIME_OUT_S

    def _work(self, invocation: Invocation, event: dict[str, Any]) -> None:
        handler = self._handlers[invocation.function]
        try:
            invocation.answer = handler(event, self._context(invocation))
            invocation.answered = True
        except EXPECTED as error:
            invocation.failed = told(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            invocation.failed = invocation.bug = repr(error)

    def _context(self, invocation: Invocation) -> Any:
        def left_ms() -> int:
            return int(1000 * (invocation.deadline_s - self.now_s))

        return _Context(f"chaos-{invocation.function}", f"r-{self.invocations}", left_ms)

    def spend(self, seconds: float) -> None:
        """Let the calling function wait, and whatever is due meanwhile happen."""
        invocation = self._current
        if invocation is None or invocation.process is None:
            return
        at_s = self.now_s + seconds
        if late := at_s >= invocation.deadline_s:
            at_s = invocation.deadline_s
            invocation.process.kill()
        if self._next_s() > at_s:
            self._pass(at_s)
        else:
            self.enter(at_s, lambda: self._go_on(invocation))
            invocation.overlapped = True
            invocation.process.pause()
        if late:
            self.tell(f"  {invocation.function} ran into its time-out")
        invocation.process.live()

    def _go_on(self, invocation: Invocation) -> None:
        before, self._current = self._current, invocation
        assert invocation.process
        invocation.process.resume()
        self._current = before
        if invocation.process.done:
            self._done(invocation)

    def _done(self, invocation: Invocation) -> None:
        self._open.remove(invocation)
        if not invocation.answered and not invocation.failed:
            invocation.failed = "killed"
        self._look_at(invocation)
        if invocation.then:
            invocation.then(invocation, invocation.answer)

    def _look_at(self, invocation: Invocation) -> None:
        """Judge what an invocation has left."""
        raise NotImplementedError

    def _kill_all(self) -> None:
        """End whatever still runs."""
        for invocation in self._open:
            if invocation.process:
                invocation.process.kill()
                invocation.process.resume()


def forget() -> None:
    """Start cold: nothing that a warm function keeps is left."""
    for part in vars(wiring).values():
        if hasattr(part, "cache_clear"):
            part.cache_clear()
