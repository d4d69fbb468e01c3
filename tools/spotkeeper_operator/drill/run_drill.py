"""A drill: spot instances are interrupted on purpose, and what becomes of it is watched."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.domain.fleet import Fleet, Instance, Phase
from spotkeeper.domain.permission import Permission
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.drill.fis import Interruptions, Role
from spotkeeper_operator.drill.story import Service, Story, service, told

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack
    from spotkeeper.domain.decision import DecisionRecord

LOOK_EVERY_S = 5.0
# Search logs come in so long after the requests that they are about.
LOGGED_WITHIN = timedelta(seconds=60)

type Clock = Callable[[], datetime]
type Sleep = Callable[[float], None]
type Progress = Callable[[Story], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """A drill's story, what users noticed of it, and the records that it was told by."""

    story: Story
    service: Service
    promised_s: float | None
    records: "tuple[DecisionRecord, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How a drill passes the time; `longest` is when it gives up."""

    clock: Clock
    sleep: Sleep
    progress: Progress
    longest: timedelta


class Drill:
    """One drill on one fleet; nothing is asked of AWS before `run`."""

    def __init__(self, aws: Aws, stack_name: str, fleet: str) -> None:
        """Look stack and fleet up; raises `Gone` and `OperatorError`."""
        self._aws = aws
        self._stack: Stack = aws.stack(stack_name)
        (self._fleet,) = chosen(aws.documents(self._stack), fleet)
        self._groups = AutoScalingReader(aws.autoscaling, aws.ec2)

    def run(self, count: int, waiting: Waiting) -> Drilled:
        """Interrupt so many spot instances, wait until all is as before, and tell.

        What has not happened after `waiting.longest` is missing in the story. Raises
        `OperatorError` where a drill would tell nothing, or is not allowed for.
        """
        role = self._role()
        self._acting(waiting.clock())
        instances, stood_in = self._serving(count)
        interruptions = Interruptions(self._aws.client("fis"), self._stack.name)
        story = Story(
            fleet=self._fleet.name,
            instances=tuple(i.instance_id for i in instances),
            started=waiting.clock(),
        )
        experiment = interruptions.start(role, story.instances)
        while waiting.clock() - story.started < waiting.longest and not story.over:
            waiting.progress(story)
            waiting.sleep(LOOK_EVERY_S)
            interruptions.check(experiment)
            story = self._look(story, stood_in, waiting.clock())
        waiting.progress(story)
        return self._drilled(story, waiting)

    def _role(self) -> Role:
        arn = self._stack.outputs.get("DrillRole")
        if not arn:
            raise OperatorError(
                f"stack {self._stack.name} has no role for drills: deploy it with Drills=true"
            )
        return Role(arn=arn)

    def _acting(self, now: datetime) -> None:
        control = ControlTable(self._aws.dynamodb, self._stack.table).of(self._fleet.name)
        permission = control.permission(self._fleet.mode, now)
        if permission is Permission.PAUSED:
            raise OperatorError(
                f"{self._fleet.name} is paused, nothing would replace what is lost: "
                f"spotkeeper resume {self._fleet.name}"
            )
        if permission is Permission.OBSERVE:
            raise OperatorError(
                f"{self._fleet.name} only observes, nothing would replace what is lost: "
                f"spotkeeper mode {self._fleet.name} act"
            )

    def _serving(self, count: int) -> tuple[list[Instance], float]:
        """Choose spot instances to interrupt; with them, what is asked for on demand by now."""
        fleet: Fleet = self._fleet
        groups = self._groups.describe([fleet.spot_group, fleet.on_demand_group])
        for name in (fleet.spot_group, fleet.on_demand_group):
            if name not in groups:
                raise OperatorError(f"{name} does not exist")
        members = groups[fleet.spot_group].instances
        serving = [i for i in members if i.phase is Phase.IN_SERVICE and i.healthy]
        if count > len(serving):
            raise OperatorError(
                f"{len(serving)} spot instances are in service: --count {count} is more"
            )
        chosen_ones = sorted(serving, key=lambda i: i.instance_id)[:count]
        return chosen_ones, groups[fleet.on_demand_group].desired

    def _records(self, since: datetime, until: datetime) -> "tuple[DecisionRecord, ...]":
        found = self._aws.records(self._stack)
        return found.between(self._fleet.name, since, until).records

    def _look(self, story: Story, stood_in: float, now: datetime) -> Story:
        lives = InstanceLives(self._aws.ec2).of(story.instances, now)
        known = [lives[i] for i in story.instances if i in lives]
        return told(story, self._records(story.started, now), known, stood_in)

    def _drilled(self, story: Story, waiting: Waiting) -> Drilled:
        fleet = self._fleet
        waiting.sleep(LOGGED_WITHIN.total_seconds())
        now = waiting.clock()
        table = LoadDigestTable(self._aws.dynamodb, self._stack.table)
        promised = fleet.objective.wait_s if fleet.objective else None
        return Drilled(
            story=story,
            service=service(table.since(fleet.name, story.started), promised),
            promised_s=promised,
            records=self._records(story.started - timedelta(minutes=2), now),
        )
