"""Runs a scenario in a lab: deploys the stack, orders the faults in time, tells what happens."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotkeeper_lab.endpoint.faults.values import OfferLoad
from spotkeeper_lab.endpoint.story.client import LabClient, at_port
from spotkeeper_lab.endpoint.story.moments import Moment, Verdict, moment, verdicts
from spotkeeper_lab.endpoint.story.scenario import Scenario, Step
from spotkeeper_lab.endpoint.up import LabError, running

LOOK_EVERY_S = 0.5
READ_EVERY_S = 2.0
FIRST_TURN_WITHIN_S = 120.0

type Tell = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a run saw and whether the promises held."""

    scenario: Scenario
    moments: tuple[Moment, ...]
    verdicts: tuple[Verdict, ...]
    lost_requests: int


def run_scenario(scenario: Scenario, port: int, checkout: Path, tell: Tell) -> Story:
    """Run in the lab at a port, or in one of its own; raises LabError."""
    with _lab(scenario, port, checkout, tell) as lab:
        _deploy(scenario, lab, tell)
        lab.order(OfferLoad(do="load", erlangs=scenario.erlangs))
        tell(0.0, f"load {scenario.erlangs:g} erlangs; waiting for the first turn")
        decisions = Decisions(lab)
        _first_turn(decisions)
        return _Run(scenario, lab, decisions, tell).story()


@contextmanager
def _lab(scenario: Scenario, port: int, checkout: Path, tell: Tell) -> Iterator[LabClient]:
    if found := at_port(port, checkout):
        tell(0.0, f"in the lab that is up at port {port}; its own settings hold")
        yield found
        return
    settings = scenario.lab.model_copy(update={"port": port})
    with running(settings, checkout) as ready:
        tell(0.0, f"the local AWS is up ({ready.took_s:.1f} s)")
        yield LabClient(port, checkout)


def _deploy(scenario: Scenario, lab: LabClient, tell: Tell) -> None:
    began_s = time.monotonic()
    groups: dict[str, object] = {
        "SpotGroupName": scenario.lab.spot_group,
        "OnDemandGroupName": scenario.lab.on_demand_group,
        "Mode": "act",
    }
    lab.deploy(groups | scenario.parameters)
    tell(0.0, f"the stack is deployed ({time.monotonic() - began_s:.0f} s)")


class Decisions:
    """The decision records of the first fleet, each read once."""

    def __init__(self, lab: LabClient) -> None:
        self._table = lab.outputs()["TableName"]
        self._client = lab.aws("dynamodb")
        self._last = "decision#"

    def new(self) -> list[dict[str, Any]]:
        """Those since the last look, oldest first."""
        found = self._client.query(
            TableName=self._table,
            KeyConditionExpression="pk = :fleet AND sk BETWEEN :after AND :end",
            ExpressionAttributeValues={
                ":fleet": {"S": "fleet#main"},
                ":after": {"S": self._last + "\x00"},
                ":end": {"S": "decision#~"},
            },
        )["Items"]
        if found:
            self._last = found[-1]["sk"]["S"]
        return [json.loads(one["record"]["S"]) for one in found]


def _first_turn(decisions: Decisions) -> None:
    end_s = time.monotonic() + FIRST_TURN_WITHIN_S
    while not decisions.new():
        if time.monotonic() > end_s:
            raise LabError(
                f"no turn within {FIRST_TURN_WITHIN_S:g} s of the deployment; "
                "build/local-aws/endpoint.log has the functions' output"
            )
        time.sleep(LOOK_EVERY_S)


def _named(step: Step) -> str:
    """A fault as its file orders it."""
    given = step.fault.model_dump(mode="json", exclude_unset=True)
    given |= {name: f"{it:g}" for name, it in given.items() if isinstance(it, float)}
    return ", ".join([given.pop("do"), *(f"{name} {it}" for name, it in given.items())])


class _Run:
    def __init__(
        self, scenario: Scenario, lab: LabClient, decisions: Decisions, tell: Tell
    ) -> None:
        self._scenario = scenario
        self._lab = lab
        self._decisions = decisions
        self._tell = tell
        self._began_s = time.monotonic()
        self._read_s = 0.0
        self._moments: list[Moment] = []
        self._failed_before = self._failed()
        self._due = sorted(scenario.steps, key=lambda step: step.at_s)

    def story(self) -> Story:
        """Run to the end."""
        state = self._look()
        while self._now_s() < self._scenario.for_s:
            self._order_due()
            state = self._look()
            self._read()
            time.sleep(LOOK_EVERY_S)
        found = verdicts(self._scenario, self._moments, self._failed() - self._failed_before)
        return Story(
            scenario=self._scenario,
            moments=tuple(self._moments),
            verdicts=tuple(found),
            lost_requests=state["workers"]["lost"],
        )

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _order_due(self) -> None:
        while self._due and self._due[0].at_s <= self._now_s():
            self._order(self._due.pop(0))

    def _order(self, step: Step) -> None:
        done = self._lab.order(step.fault)
        self._tell(self._now_s(), f"FAULT {_named(step)}: {done}")

    def _look(self) -> Any:
        state = self._lab.look("state")
        seen = moment(state, self._now_s())
        if not self._moments or _told(self._moments[-1]) != _told(seen):
            self._tell(seen.at_s, _told(seen))
        self._moments.append(seen)
        return state

    def _read(self) -> None:
        if self._now_s() - self._read_s < READ_EVERY_S:
            return
        self._read_s = self._now_s()
        for record in self._decisions.new():
            if record["action"] != "hold":
                self._tell(self._now_s(), f"{record['action'].upper()} {record['reason']}")

    def _failed(self) -> int:
        url = self._lab.outputs()["FailedInvocationsUrl"]
        names = ["ApproximateNumberOfMessages"]
        found = self._lab.aws("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return int(found["Attributes"][names[0]])


def _told(seen: Moment) -> str:
    return (
        f"spot {seen.spot_serving} of {seen.spot_desired} serving, "
        f"{seen.spot_launching} launching; "
        f"on-demand {seen.on_demand_serving} of {seen.on_demand_desired}"
    )
