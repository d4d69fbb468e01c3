"""Scenarios of the local AWS: what goes wrong and when, what is seen of it, and what was promised.

A scenario is a YAML file, whose fields docs/lab.md describes. It runs in a lab in real time.
"""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import boto3
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotkeeper_lab.endpoint.faults.values import FAULT, Fault, OfferLoad, Seconds
from spotkeeper_lab.endpoint.settings import LabSettings
from spotkeeper_lab.endpoint.up import BUILT, LabError, environment, running
from spotkeeper_lab.local_aws.wire import REGION

FOLDER = Path(__file__).parent / "scenarios"


class ScenarioError(ValueError):
    """A scenario that cannot be read; the message names file and field."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(_Part):
    """A fault that is ordered `at_s` after the beginning."""

    at_s: Seconds
    fault: Fault


class Promises(_Part):
    """What must hold; a promise without a value is not made.

    `asked_within_s`: on-demand is asked so soon after spot falls short of its need.
    `served_share`: share of the time in which as many serve as the spot group was asked for.
    `released_within_s`: on-demand is back at 0 so soon after the last fault.
    `on_demand_at_most`: instances ever asked for. `failed_invocations`: at most so many.
    """

    asked_within_s: Seconds | None = None
    served_share: Annotated[float, Field(ge=0, le=1)] | None = None
    released_within_s: Seconds | None = None
    on_demand_at_most: int | None = Field(default=None, ge=0)
    failed_invocations: int | None = Field(default=0, ge=0)


class Scenario(_Part):
    """One story: it lasts `for_s` seconds from the first turn on."""

    name: str = Field(pattern=r"^[a-z0-9-]+$")
    about: str
    for_s: Annotated[float, Field(gt=0, le=7200)]
    lab: LabSettings = LabSettings()
    parameters: dict[str, str | int | float | bool] = {}
    erlangs: Annotated[float, Field(ge=0, le=1000)] = 0.0
    steps: tuple[Step, ...] = ()
    promises: Promises = Promises()


def read_scenario(path: Path) -> Scenario:
    """Read a file; raises ScenarioError with every wrong field."""
    try:
        return Scenario.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        raise ScenarioError(f"{path}:\n{_wrong(error)}") from error


def find_scenario(name: str) -> Path:
    """The file of a scenario by its name, or by its path; raises ScenarioError."""
    known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    if name in known:
        return FOLDER / f"{name}.yaml"
    if Path(name).is_file():
        return Path(name)
    raise ScenarioError(f"no scenario {name}; there are {', '.join(known)}, or name a file")


def _wrong(error: ValidationError) -> str:
    return "\n".join(
        f"  {'.'.join(str(part) for part in item['loc']) or 'the file'}: {item['msg']}"
        for item in error.errors()
    )


SAM = Path(".venv-sam/bin/sam")
LAST_CHARACTERS = 3000
STACK = "spotkeeper"
# What no deployment leads out of.
STUCK = frozenset({
    "CREATE_FAILED", "DELETE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED",
    "UPDATE_ROLLBACK_FAILED",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LabClient:
    """The lab at a port of this machine."""

    port: int
    checkout: Path

    @property
    def environment(self) -> dict[str, str]:
        """What the lab prints to paste."""
        return environment(self.port, self.checkout)

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.environment["AWS_ENDPOINT_URL"]

    def look(self, page: str) -> Any:
        """A page of the lab, as JSON."""
        with urllib.request.urlopen(f"{self.url}/_lab/{page}", timeout=30) as answer:
            return json.load(answer)

    def order(self, fault: Fault) -> str:
        """Order a fault; answers what was done."""
        return str(self._post("faults", FAULT.dump_json(fault))["done"])

    def skip(self, seconds: float) -> None:
        """Let a time be over at once in the simulated cloud; functions know nothing of it."""
        self._post("skip", json.dumps(seconds).encode())

    def begin(self, settings: LabSettings) -> None:
        """Begin anew with other groups, another market and other physics."""
        self._post("begin", settings.model_dump_json().encode())

    def _post(self, page: str, body: bytes) -> Any:
        request = urllib.request.Request(f"{self.url}/_lab/{page}", body, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def aws(self, service: str, keys: Mapping[str, str] | None = None) -> Any:
        """A client of a service; of the account's root without keys."""
        mine = keys or self.environment
        session: Any = boto3.session.Session(
            aws_access_key_id=mine["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=mine["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )
        return session.client(service, endpoint_url=self.url)

    def sam(self, *arguments: str, keys: Mapping[str, str] | None = None) -> str:
        """Run sam with what the lab printed and nothing else of AWS; raises LabError."""
        if not (self.checkout / BUILT).exists():
            raise LabError("nothing is built for this machine yet: make local-build")
        own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(
            [str(self.checkout / SAM), *arguments],
            cwd=self.checkout,
            env={**own, **self.environment, **(keys or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            told = (done.stdout + done.stderr)[-LAST_CHARACTERS:]
            raise LabError(f"sam {arguments[0]} failed:\n{told}")
        return done.stdout

    def deploy(
        self, parameters: Mapping[str, object], keys: Mapping[str, str] | None = None
    ) -> None:
        """Deploy the stack as the README does; raises LabError."""
        if (status := self.status()) in STUCK:
            raise LabError(f"the stack {STACK} is {status}: sam delete it, or end the lab")
        given = [f"{name}={value}" for name, value in parameters.items()]
        options = (
            "--resolve-s3",
            "--no-confirm-changeset",
            "--no-fail-on-empty-changeset",
            "--no-progressbar",
        )
        self.sam("deploy", *options, "--parameter-overrides", *given, keys=keys)

    def status(self) -> str:
        """The stack's status; nothing where there is none."""
        found = self.aws("cloudformation").describe_stacks()["Stacks"]
        return next((str(one["StackStatus"]) for one in found if one["StackName"] == STACK), "")

    def outputs(self) -> dict[str, str]:
        """The outputs of the stack."""
        (found,) = self.aws("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
        return {one["OutputKey"]: one["OutputValue"] for one in found["Outputs"]}


def at_port(port: int, checkout: Path) -> LabClient | None:
    """The lab that answers at a port, if there is one."""
    lab = LabClient(port, checkout)
    try:
        lab.look("state")
    except (OSError, ValueError):
        return None
    return lab


IN_SERVICE = "InService"
SPOT, ON_DEMAND = "spot", "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look at a lab; what is warned or drains does not count as serving."""

    at_s: float
    spot_desired: int
    spot_serving: int
    spot_launching: int
    on_demand_desired: int
    on_demand_serving: int
    spot_running: int
    on_demand_running: int
    queued: int
    served: int

    @property
    def short(self) -> int:
        """How many of the spot group's need neither serve nor come."""
        return max(0, self.spot_desired - self.spot_serving - self.spot_launching)

    @property
    def serving(self) -> int:
        """All that serve."""
        return self.spot_serving + self.on_demand_serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A promise, what was promised, what was seen, and whether it held."""

    promise: str
    promised: str
    seen: str
    held: bool


def moment(state: Mapping[str, Any], at_s: float) -> Moment:
    """What a look at the lab's state says."""
    groups = {group["purchase"]: group for group in state["groups"]}
    running = [one for group in state["groups"] for one in group["instances"]] + state["outside"]
    spot, on_demand = groups[SPOT], groups[ON_DEMAND]
    return Moment(
        at_s=at_s,
        spot_desired=spot["desired"],
        spot_serving=_serving(spot),
        spot_launching=sum(one["state"].startswith("Pending") for one in spot["instances"]),
        on_demand_desired=on_demand["desired"],
        on_demand_serving=_serving(on_demand),
        spot_running=sum(one["purchase"] == SPOT for one in running),
        on_demand_running=sum(one["purchase"] == ON_DEMAND for one in running),
        queued=state["workers"]["queued"],
        served=state["workers"]["served"],
    )


def _serving(group: Mapping[str, Any]) -> int:
    return sum(
        one["state"] == IN_SERVICE and not one["draining"] and not one["warned"]
        for one in group["instances"]
    )


def longest_unasked_s(moments: Sequence[Moment]) -> float:
    """The longest time in which on-demand was asked for less than spot was short of."""
    longest_s, began_s = 0.0, None
    for one in moments:
        if one.on_demand_desired >= one.short:
            began_s = None
            continue
        began_s = one.at_s if began_s is None else began_s
        longest_s = max(longest_s, one.at_s - began_s)
    return longest_s


def served_share(moments: Sequence[Moment]) -> float:
    """Share of the looks at which as many served as the spot group was asked for."""
    return sum(one.serving >= one.spot_desired for one in moments) / max(1, len(moments))


def released_s(moments: Sequence[Moment], after_s: float) -> float | None:
    """How long after a moment on-demand was given back for good; None if it never was."""
    if not moments or moments[-1].on_demand_desired:
        return None
    last = max((one.at_s for one in moments if one.on_demand_desired), default=after_s)
    return max(0.0, last - after_s)


def verdicts(scenario: Scenario, moments: Sequence[Moment], failed: int) -> list[Verdict]:
    """Every promise that the scenario makes, held against what was seen."""
    promises = scenario.promises
    last_s = max((step.at_s for step in scenario.steps), default=0.0)
    released = released_s(moments, last_s)
    most = max((one.on_demand_desired for one in moments), default=0)
    unasked, share = longest_unasked_s(moments), served_share(moments)
    found: list[Verdict | None] = [
        _at_most("a shortfall is asked of on-demand within", promises.asked_within_s, unasked, "s"),
        _at_least("time in which the need is served", promises.served_share, share),
        _at_most("on-demand is given back within", promises.released_within_s, released, "s"),
        _at_most("on-demand asked for", promises.on_demand_at_most, most, "instances"),
        _at_most("invocations that failed", promises.failed_invocations, failed, ""),
    ]
    return [verdict for verdict in found if verdict]


def _at_most(promise: str, promised: float | None, seen: float | None, unit: str) -> Verdict | None:
    if promised is None:
        return None
    told = "never" if seen is None else f"{seen:.3g} {unit}".strip()
    held = seen is not None and seen <= promised
    return Verdict(
        promise=promise, promised=f"at most {promised:g} {unit}".strip(), seen=told, held=held
    )


def _at_least(promise: str, promised: float | None, seen: float) -> Verdict | None:
    if promised is None:
        return None
    return Verdict(
        promise=promise,
        promised=f"at least {promised:.0%}",
        seen=f"{seen:.1%}",
        held=seen >= promised,
    )


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


type Inventory = Mapping[str, list[str]]

# service, call, what it answers, and the name of each; the answer may lack what is empty.
_KINDS: Mapping[str, tuple[str, str, str, str]] = {
    "stacks": ("cloudformation", "describe_stacks", "Stacks", "StackName"),
    "tables": ("dynamodb", "list_tables", "TableNames", ""),
    "queues": ("sqs", "list_queues", "QueueUrls", ""),
    "functions": ("lambda", "list_functions", "Functions", "FunctionName"),
    "layers": ("lambda", "list_layers", "Layers", "LayerName"),
    "mappings": ("lambda", "list_event_source_mappings", "EventSourceMappings", "UUID"),
    "rules": ("events", "list_rules", "Rules", "Name"),
    "schedules": ("scheduler", "list_schedules", "Schedules", "Name"),
    "roles": ("iam", "list_roles", "Roles", "RoleName"),
    "policies": ("iam", "list_policies", "Policies", "PolicyName"),
    "parameters": ("ssm", "describe_parameters", "Parameters", "Name"),
    "log groups": ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "alarms": ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "dashboards": ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "topics": ("sns", "list_topics", "Topics", "TopicArn"),
    "keys": ("kms", "list_aliases", "Aliases", "AliasName"),
    "groups": (
        "autoscaling",
        "describe_auto_scaling_groups",
        "AutoScalingGroups",
        "AutoScalingGroupName",
    ),
}
_ASKED: Mapping[str, Mapping[str, str]] = {"policies": {"Scope": "Local"}}
# sam keeps its bucket, and the stack that made it, for the next deployment.
_OF_SAM = "aws-sam-cli-managed-default"


def inventory(aws: Callable[[str], Any]) -> Inventory:
    """The names of all that there is; `aws` makes a client of a service."""
    return {kind: _names(aws, kind) for kind in _KINDS}


def left(before: Inventory, after: Inventory) -> dict[str, list[str]]:
    """What there is now and was not before, by kind; what is nothing is left out."""
    more = {kind: sorted(set(after[kind]) - set(before[kind])) for kind in after}
    return {kind: names for kind, names in more.items() if names}


def _names(aws: Callable[[str], Any], kind: str) -> list[str]:
    service, call, answer, key = _KINDS[kind]
    found = getattr(aws(service), call)(**_ASKED.get(kind, {})).get(answer, [])
    names = sorted(one[key] if key else one for one in found)
    return [name for name in names if name != _OF_SAM]
