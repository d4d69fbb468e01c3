"""Time that passes on a stage as a deployed stack lives through it."""

import io
from contextlib import redirect_stdout

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from functions.handle_interruption.app import handler as handle_interruption
from spotkeeper_lab.aws.wire import Events, VirtualTime
from spotkeeper_lab.cloud.values import EventKind
from tests.builders import NOON
from tests.functions.conftest import Stage
from tests.operator.conftest import serve


class Days:
    """Lets time pass as a deployed stack lives through it: events at once, turns every minute."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._events = Events(VirtualTime(NOON))

    def sleep(self, seconds: float) -> None:
        """Let so much time pass; what functions write is not what the command writes."""
        with redirect_stdout(io.StringIO()):
            self._sleep(seconds)

    def minutes(self, count: int) -> None:
        """Let minutes pass, each with its turns."""
        for _ in range(count):
            self.sleep(60)

    def _sleep(self, seconds: float) -> None:
        cloud = self.stage.cloud
        for event in cloud.advance(cloud.now_s + seconds):
            if event.kind is not EventKind.FULFILLED:
                self.stage.again(handle_interruption, self._events.of_cloud(event))
        if cloud.now_s % 60 < seconds:
            serve(self.stage)
            self.stage.again(check_health)
            self.stage.again(check_availability)
