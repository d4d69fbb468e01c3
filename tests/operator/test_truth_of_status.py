"""What status says is true, whatever goes wrong: each virtual minute against what the world knows.

`python -m tests.operator.test_truth_of_status --seeds 200` looks at many runs.
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from multiprocessing import Pool
from typing import Any

import pytest

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.border.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.domain.decision import FAILED, Controller
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper_lab.cloud.words import IN_SERVICE
from spotkeeper_lab.local_aws.answers import Answers
from spotkeeper_lab.local_aws.context import Client
from spotkeeper_lab.scenario import MAIN, Scenario, draw
from spotkeeper_lab.troubles import Troubled
from spotkeeper_lab.world import TABLE
from spotkeeper_operator.durations import STALE_TURN_S
from spotkeeper_operator.status.status import (
    LIVE_S,
    LOAD_WINDOW_S,
    FleetStatus,
    Looked,
    fleet_status,
)

# A statement may be this old; the world is looked at this often.
OLD_S, LOOK_S = 60.0, 10.0
RECORDS_READ = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The world at one instant."""

    at_s: float
    wanted: int
    in_service: int
    working: int
    live: frozenset[str]
    queued: int


@dataclass(slots=True)
class Looking:
    """Statements that were false, and how many were made."""

    false: list[str] = field(default_factory=list)
    made: int = 0
    unknown: int = 0


class Told(Troubled):
    """A troubled world in which an operator runs `status` every minute."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.looking = Looking()
        self.moments: deque[Moment] = deque()
        self._worked: dict[str, datetime] = {}
        answers = Answers(self.cloud, self.time)
        dynamodb: Any = Client("dynamodb", self.tables.answers())
        ec2: Any = Client("ec2", answers.ec2())
        autoscaling: Any = Client("autoscaling", answers.auto_scaling())
        self._groups = AutoScalingReader(autoscaling, ec2)
        self._records = DecisionRecords(dynamodb, TABLE)
        self._load = LoadDigestTable(dynamodb, TABLE)
        self._controls = ControlTable(dynamodb, TABLE)
        self.enter(0.0, self._look)

    def recorded(self, fleet: str, text: str) -> None:
        """Note the turns that worked."""
        super().recorded(fleet, text)
        record = json.loads(text)
        if fleet == MAIN and record["rule"] != FAILED:
            at = datetime.fromisoformat(record["at"])
            self._worked[record["controller"]] = max(at, self._worked.get(record["controller"], at))

    def _look(self) -> None:
        views = [self.group(name) for name in (self.spot, self.on_demand)]
        mine = {i.instance_id for view in views for i in view.instances}
        in_service = [i for view in views for i in view.instances if i.state == IN_SERVICE]
        self.moments.append(
            Moment(
                at_s=self.now_s,
                wanted=views[0].desired,
                in_service=sum(i.healthy for i in in_service),
                working=sum(self.works(i) for i in mine),
                live=self._live(),
                queued=self.force.queued,
            )
        )
        while self.moments[0].at_s < self.now_s - OLD_S - LIVE_S:
            self.moments.popleft()
        self.enter(self.now_s + LOOK_S, self._look)

    def minute(self) -> None:
        """Run `status`, and compare it with what the world knows."""
        super().minute()
        try:
            overrides = self.documents.get(f"{MAIN}.overrides")
            fleet = parse_fleet(MAIN, self.documents[MAIN], overrides)
        except FleetDocumentError:
            # `status` says that, and nothing else of the fleet.
            return
        self._look()
        status = self._status(fleet)
        self.looking.made += 1
        self.looking.unknown += status.whole is None
        for wrong in self._wrong(status):
            self.looking.false.append(f"{self.now_s:.0f} s: {wrong}")

    def _status(self, fleet: Fleet) -> FleetStatus:
        now = self.now()
        looked = Looked(
            groups=self._groups.describe([fleet.spot_group, fleet.on_demand_group]),
            records=self._records.newest(MAIN, RECORDS_READ).records,
            digests=self._load.since(MAIN, now - timedelta(seconds=LOAD_WINDOW_S)),
            queue=QueueLength(waiting=self.force.queued, in_flight=self.force.in_flight),
            control=self._controls.of(MAIN),
        )
        return fleet_status(fleet, looked, now)

    def _wrong(self, status: FleetStatus) -> Iterator[str]:
        """Name the statements that were false for more than a minute."""
        lately = [m for m in self.moments if m.at_s >= self.now_s - OLD_S]
        short = any(min(m.working, m.in_service) < m.wanted for m in lately)
        wanted = status.wanted or 0
        if status.whole and not any(m.in_service >= wanted for m in lately):
            yield f"whole, with {lately[-1].in_service} of {wanted} in service: {status.why}"
        if status.whole is False and not short and not status.missing_groups:
            yield f"not whole, with {lately[-1].working} of {wanted} working: {status.why}"
        if status.in_service is not None and status.in_service != lately[-1].in_service:
            yield f"{status.in_service} in service, there are {lately[-1].in_service}"
        # Who was live within the minute of the statement, or of the look.
        most = len(frozenset[str]().union(*(m.live for m in self.moments)))
        if status.load and status.load.workers_live > most:
            yield f"{status.load.workers_live} workers live, at most {most} were"
        if status.waiting and status.waiting.requests != self.force.queued:
            yield f"{status.waiting.requests} wait, {self.force.queued} do"
        claimed = (status.waiting.oldest_at_least_s if status.waiting else None) or 0.0
        if claimed > (true := self._oldest_s()) + OLD_S:
            yield f"the oldest waits for at least {claimed:.0f} s, it does for {true:.0f} s"
        for controller in Controller:
            yield from self._wrong_turn(status, controller)

    def _wrong_turn(self, status: FleetStatus, controller: Controller) -> Iterator[str]:
        said, worked = status.turn_age_s[controller], self._worked.get(controller)
        true = None if worked is None else (self.now() - worked).total_seconds()
        # A turn whose record the table refused is not known of.
        if said is not None and (true is None or said < true - OLD_S):
            yield f"{controller} turned {said:.0f} s ago, it did {true} s ago"
        if (
            controller is Controller.AVAILABILITY
            and status.whole
            and (true is None or true > STALE_TURN_S)
        ):
            yield f"whole, and no availability turn has worked for {true} s"

    def _live(self) -> frozenset[str]:
        """Name the workers that take requests, or finish one."""
        workers: dict[str, Any] = getattr(self.force, "_workers")  # noqa: B009 - the lab's own
        return frozenset(name for name, w in workers.items() if w.accepts or w.request is not None)

    def _oldest_s(self) -> float:
        arrivals = self.stage.requests.arrival_s
        queue: deque[int] = getattr(self.force, "_queue")  # noqa: B009 - the lab's own
        return max((self.now_s - float(arrivals[n]) for n in queue), default=0.0)


def looked_at(scenario: Scenario) -> Looking:
    """Run a scenario and look each minute."""
    with Told(scenario).deployed() as world:
        world.go()
    return world.looking


@pytest.mark.parametrize("seed", [1, 2])
def test_no_statement_is_false_for_more_than_a_minute(seed: int) -> None:
    found = looked_at(draw(seed))
    assert found.made > 60
    assert found.false == []
    assert found.unknown < found.made


def _of(seed: int) -> tuple[int, Looking]:
    return seed, looked_at(draw(seed))


def main(arguments: list[str], tell: Callable[[str], object] = print) -> int:
    """Look at many seeds; 1 when a statement was false."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args(arguments)
    made = unknown = wrong = 0
    with Pool(asked.jobs) as pool:
        for seed, found in pool.imap(_of, range(asked.first, asked.first + asked.seeds)):
            made, unknown = made + found.made, unknown + found.unknown
            wrong += bool(found.false)
            for line in found.false[:3]:
                tell(f"seed {seed}: {line}")
    tell(f"{asked.seeds} seeds, {made} statuses, {unknown} unknown, false in {wrong} seeds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
