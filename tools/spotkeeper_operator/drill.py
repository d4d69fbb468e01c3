"""A drill: AWS Fault Injection Service interrupts spot instances, and the records tell the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.ec2.lives import InstanceLives
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.decision import AvailabilityFigures, DecisionRecord
from spotkeeper.domain.fleet import Phase
from spotkeeper.domain.load.load import LoadDigest, merged
from spotkeeper.domain.money.ledger import Life
from spotkeeper.domain.permission import Permission
from spotkeeper.ports import Throttled, Unavailable
from spotkeeper_charts.page import Figure, Page, Row, Table, Tiles
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.explain import decided, records_timeline, timeline
from spotkeeper_operator.text import as_json, extended, labelled, paragraphs

if TYPE_CHECKING:
    from mypy_boto3_fis import FISClient

ACTION = "aws:ec2:send-spot-instance-interruptions"
# The shortest that FIS takes: EC2 warns at once, and ends the instance two minutes later.
NOTICE = "PT2M"
TAG = "spotkeeper"
_ENDED_BADLY = frozenset({"failed", "stopped", "cancelled"})


def interrupt(fis: "FISClient", stack: str, role: str, instance_ids: Sequence[str]) -> str:
    """Interrupt instances, with the ARN of FIS's role; returns the experiment's id.

    What is made is tagged with the stack's name, and no template is left behind.
    """
    _, partition, _, _, account, _ = role.split(":", 5)
    arns = f"arn:{partition}:ec2:{fis.meta.region_name}:{account}:instance"
    tags = {TAG: stack}
    with aws_errors("fis:CreateExperimentTemplate"):
        template = fis.create_experiment_template(
            clientToken=str(uuid4()),
            description="A drill of Spotkeeper",
            roleArn=role,
            stopConditions=[{"source": "none"}],
            targets={
                "instances": {
                    "resourceType": "aws:ec2:spot-instance",
                    "resourceArns": [f"{arns}/{i}" for i in instance_ids],
                    "selectionMode": "ALL",
                }
            },
            actions={
                "interrupt": {
                    "actionId": ACTION,
                    "parameters": {"durationBeforeInterruption": NOTICE},
                    "targets": {"SpotInstances": "instances"},
                }
            },
            tags=tags,
        )["experimentTemplate"]["id"]
    try:
        with aws_errors("fis:StartExperiment"):
            started = fis.start_experiment(
                clientToken=str(uuid4()), experimentTemplateId=template, tags=tags
            )
        return started["experiment"]["id"]
    finally:
        # An experiment that runs goes on without its template.
        with aws_errors("fis:DeleteExperimentTemplate"):
            fis.delete_experiment_template(id=template)


def check(fis: "FISClient", experiment: str) -> None:
    """Raise `OperatorError` for an experiment that ended badly."""
    with aws_errors("fis:GetExperiment"):
        state = fis.get_experiment(id=experiment)["experiment"]["state"]
    if state["status"] in _ENDED_BADLY:
        reason = state.get("reason") or "no reason given"
        raise OperatorError(f"experiment {experiment} {state['status']}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What users noticed of a time: requests that started in it, those late or failed, in numbers.

    `late` is None without a promise about waiting; `longest_s` is the longest wait.
    """

    requests: int
    late: int | None
    failed: int
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One drill: instants of what happened, None for what did not (yet).

    `warned` is when a turn knew, `asked` when a replacement was requested, `gone` when the last
    of the instances had ended, `whole` when as much served again without them, and `back` when
    spot alone did and no more stood in on demand than before the drill.
    """

    fleet: str
    instances: tuple[str, ...]
    started: datetime
    warned: datetime | None = None
    asked: datetime | None = None
    gone: datetime | None = None
    whole: datetime | None = None
    back: datetime | None = None

    @property
    def over(self) -> bool:
        return self.gone is not None and self.back is not None

    def seconds_to(self, step: str) -> float | None:
        """Say how long after the start a step happened, s; None where it did not."""
        at = getattr(self, step)
        return None if at is None else (at - self.started).total_seconds()


def updated(
    story: Story, records: Iterable[DecisionRecord], lives: Iterable[Life], stood_in: float
) -> Story:
    """Tell a story as far as records and instances go; `stood_in` served on demand before it."""
    turns = [(r.at, r.availability) for r in records if r.availability and r.at >= story.started]

    def first(
        happened: Callable[[AvailabilityFigures], bool], since: datetime | None
    ) -> datetime | None:
        return next(
            (at for at, figures in turns if since and at >= since and happened(figures)), None
        )

    warned = first(lambda figures: figures.interruptions + figures.spot_at_risk > 0, story.started)
    ends = [life.until for life in lives]
    gone = max((end for end in ends if end), default=None) if all(ends) else None
    return replace(
        story,
        warned=warned,
        # AWS accepted what a turn requested.
        asked=first(lambda figures: figures.early_replacements + figures.backfilled > 0, warned),
        gone=gone,
        whole=first(
            lambda figures: (
                figures.spot_serving + figures.on_demand_serving >= figures.spot_desired
            ),
            warned,
        ),
        back=first(
            lambda figures: (
                figures.spot_serving >= figures.spot_desired
                and figures.on_demand_desired <= stood_in
            ),
            max(warned, gone) if warned and gone else None,
        ),
    )


def service(digests: Sequence[LoadDigest], promised_s: float | None) -> Service:
    """Count what the logs of a time say."""
    waits = merged(digest.waits for digest in digests)
    return Service(
        requests=waits.count,
        late=None if promised_s is None else waits.count - waits.within(promised_s),
        failed=sum(w.failed for digest in digests for w in digest.workers),
        longest_s=waits.quantile_s(1.0),
    )


LOOK_EVERY_S = 5.0
# Search logs arrive at most this long after their requests.
LOGGED_WITHIN_S = 60.0
# The records that are shown, and the picture, begin this much earlier.
LEAD = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """A drill's story, what users noticed, and the records that the story was read from."""

    story: Story
    service: Service
    promised_s: float | None
    records: tuple[DecisionRecord, ...]


def drill(
    aws: Aws,
    stack_name: str,
    name: str,
    count: int,
    longest: timedelta,
    clock: Callable[[], datetime],
    sleep: Callable[[float], None],
    say: Callable[[str], None],
) -> Drilled:
    """Interrupt `count` spot instances, wait until the fleet is as before, and tell it.

    Each step is reported once it has happened, and what AWS does not answer now; the call is
    repeated. What has not happened after `longest` is missing in the story. Raises `Gone` and
    `OperatorError`, also where a drill would tell nothing, or is not allowed for.
    """
    stack = aws.stack(stack_name)
    (fleet,) = chosen(aws.documents(stack), name)
    role = stack.outputs.get("DrillRole")
    if not role:
        raise OperatorError(
            f"stack {stack.name} has no role for drills: deploy it with Drills=true"
        )
    control = ControlTable(aws.dynamodb, stack.table).of(name)
    kept_back = {
        Permission.PAUSED: ("is paused", f"resume {name}"),
        Permission.OBSERVE: ("only observes", f"mode {name} act"),
    }.get(control.permission(fleet.mode, clock()))
    if kept_back:
        why, command = kept_back
        raise OperatorError(
            f"{name} {why}, so nothing would replace lost instances: spotkeeper {command}"
        )
    names = (fleet.spot_group, fleet.on_demand_group)
    groups = AutoScalingReader(aws.autoscaling, aws.ec2).describe(names)
    if missing := [group for group in names if group not in groups]:
        raise OperatorError(f"{missing[0]} does not exist")
    spot, on_demand = (groups[group] for group in names)
    serving = [i for i in spot.instances if i.phase is Phase.IN_SERVICE and i.healthy]
    if count > len(serving):
        raise OperatorError(
            f"only {len(serving)} spot instances are in service: --count {count} is too many"
        )
    chosen_ones = tuple(sorted(i.instance_id for i in serving)[:count])
    records, fis = aws.records(stack), aws.client("fis")
    story = Story(fleet=name, instances=chosen_ones, started=clock())
    experiment = interrupt(fis, stack.name, role, story.instances)
    say(f"interrupting {', '.join(story.instances)}")
    printed: set[str] = set()
    while clock() - story.started < longest and not story.over:
        sleep(LOOK_EVERY_S)
        try:
            check(fis, experiment)
            now = clock()
            lives = InstanceLives(aws.ec2).of(story.instances, now)
            known = [lives[i] for i in story.instances if i in lives]
            turns = records.between(name, story.started, now).records
            story = updated(story, turns, known, on_demand.desired)
        except (Throttled, Unavailable) as error:
            # The instances are interrupted: what becomes of them is still to be seen.
            say(f"error: {error}")
        for step, label, _ in STEPS:
            after = story.seconds_to(step)
            if after is not None and step not in printed:
                printed.add(step)
                say(f"{after:6.0f} s  {label}")
    sleep(LOGGED_WITHIN_S)
    digests = LoadDigestTable(aws.dynamodb, stack.table).since(name, story.started)
    promised = fleet.objective.wait_s if fleet.objective else None
    return Drilled(
        story=story,
        service=service(digests, promised),
        promised_s=promised,
        records=records.between(name, story.started - LEAD, clock()).records,
    )


STEPS = (
    ("warned", "warned", "a turn sees the warning"),
    ("asked", "requested", "a replacement is requested"),
    ("gone", "gone", "the interrupted instances have ended"),
    ("whole", "whole", "other instances serve in their place"),
    ("back", "back on spot", "spot alone serves in their place; backfill is released"),
)


def drill_text(drilled: Drilled) -> str:
    """Tell when what happened, counted from the start, and what users noticed."""
    story = drilled.story
    head = [f"{story.fleet}  {story.started:%Y-%m-%d %H:%M:%S} UTC"]
    head += labelled("interrupted", ", ".join(story.instances), indent=0)
    steps: list[str] = []
    for name, label, what in STEPS:
        after = story.seconds_to(name)
        when = "NOT SEEN" if after is None else f"after {after:.0f} s"
        steps += labelled(label, f"{when}: {what}", indent=0)
    return paragraphs([head, steps, labelled("requests", noticed(drilled), indent=0)])


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillAnswer(Story):
    """The same for programs; `after_s` has the seconds from the start to each step."""

    after_s: Mapping[str, float | None]
    complete: bool
    promised_wait_s: float | None
    service: Service


def drill_json(drilled: Drilled) -> str:
    story = drilled.story
    return as_json(
        extended(
            DrillAnswer,
            story,
            after_s={name: story.seconds_to(name) for name, _, _ in STEPS},
            complete=story.over,
            promised_wait_s=drilled.promised_s,
            service=drilled.service,
        )
    )


def noticed(drilled: Drilled) -> str:
    """Say what users noticed."""
    service = drilled.service
    if not service.requests:
        return "none were logged"
    late = "there is no promise about waiting"
    if service.late is not None:
        late = f"{service.late} later than the {drilled.promised_s:g} s promised"
    counted = f"{service.requests} logged, {late}, {service.failed} failed"
    return f"{counted}; longest wait {service.longest_s:.1f} s"


def drill_page(drilled: Drilled) -> Page:
    """What a drill's page shows; times are UTC."""
    story = drilled.story
    first = story.started - LEAD
    last = max([story.started + LEAD, *(record.at for record in drilled.records)])
    records = sorted(drilled.records, key=lambda record: record.at)
    figures: list[Figure] = []
    rows: list[Row] = []
    for name, label, what in STEPS:
        after = story.seconds_to(name)
        when = "not seen" if after is None else f"{after:.0f} s"
        figures.append(Figure(label=label, value=when))
        if after is not None:
            rows.append(Row(cells=(when, what), at_s=after + LEAD.total_seconds()))
    return Page(
        title=f"A drill of {story.fleet}",
        subtitle=f"{', '.join(story.instances)} interrupted at "
        f"{story.started:%Y-%m-%d %H:%M:%S} UTC. {noticed(drilled)}",
        footer="Written by spotkeeper drill.",
        blocks=[
            Tiles(figures),
            records_timeline(records, first, last),
            Table(caption="What happened", columns=("after", "what"), rows=rows),
            decided(timeline(records), first),
        ],
    )
