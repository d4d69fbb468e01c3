"""Running scenarios: one, many on all cores, and a failing one made smaller."""

import io
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aws_lambda_powertools.utilities.parameters import base as parameters

from spotkeeper import observability, wiring
from spotkeeper_lab.chaos.promises import Promise
from spotkeeper_lab.chaos.stand_ins.aws import MAIN, PATH, TABLE, WAKE_UPS
from spotkeeper_lab.chaos.stand_ins.lambdas import forget
from spotkeeper_lab.chaos.story.scenario import Scenario
from spotkeeper_lab.chaos.world import Result, World
from spotkeeper_lab.checkout import Handler, load_handler
from spotkeeper_lab.end_to_end.functions import NAMES
from spotkeeper_lab.local_aws.wire import REGION

ENVIRONMENT = {
    "TABLE_NAME": TABLE,
    "FLEET_DOCUMENTS_PATH": PATH,
    "DEFAULT_FLEET": MAIN,
    "RECORD_DAYS": "30",
    "STACK_NONCE": "51af3dc0-da77-11e4-872e-1234567db123",
    "WAKE_UP_QUEUE_URL": WAKE_UPS,
    "POWERTOOLS_SERVICE_NAME": "chaos",
    "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
    "POWERTOOLS_TRACE_DISABLED": "true",
    "AWS_REGION": REGION,
    "AWS_DEFAULT_REGION": REGION,
}


class _Nowhere(io.TextIOBase):
    """Where the functions' logs and metrics go."""

    def write(self, text: str) -> int:
        return len(text)


def run(scenario: Scenario) -> Result:
    """Run a scenario."""
    with _deployed() as handlers:
        world = World(scenario, handlers)
        clock = SimpleNamespace(now=lambda *_: world.now().replace(tzinfo=None))
        with (
            patch.object(wiring, "now", world.now),
            patch.object(wiring, "boto3", SimpleNamespace(client=world.client)),
            patch.object(parameters, "datetime", clock),
        ):
            forget()
            try:
                return world.run()
            finally:
                forget()


@contextmanager
def _deployed() -> Iterator[Mapping[str, Handler]]:
    """The functions with their environment; what they write goes nowhere."""
    level = observability.logger.log_level
    with ExitStack() as stack:
        stack.enter_context(patch.dict("os.environ", ENVIRONMENT))
        stack.enter_context(patch.object(sys, "stdout", _Nowhere()))
        observability.logger.setLevel("CRITICAL")
        stack.callback(observability.logger.setLevel, level)
        yield {name: load_handler(name) for name in NAMES}


def minimise(scenario: Scenario, promise: Promise) -> Scenario:
    """The same run with as few and as short faults as still break the promise."""

    def breaks(smaller: Scenario) -> bool:
        return promise in {violation.promise for violation in run(smaller).violations}

    changed = True
    while changed:
        changed = False
        for smaller in _smaller(scenario):
            if breaks(smaller):
                scenario, changed = smaller, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are simpler by one step, the simplest first."""
    faults = scenario.faults
    for index in range(len(faults)):
        yield replace(scenario, faults=faults[:index] + faults[index + 1 :])
    if len(scenario.loads) > 1:
        yield replace(scenario, loads=scenario.loads[:1])
    plain: dict[str, Any] = {"event_lost": 0.0, "event_twice": 0.0, "onprem_workers": 0,
                             "warm_pool": 0, "event_delay_s": 2.0}  # fmt: skip
    for name, value in plain.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})
