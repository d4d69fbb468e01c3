"""Scenarios: what goes wrong in one run, and the fleets that it happens to.

A seed draws one, or a YAML file describes it. Times are seconds from the start of the run; drawn
faults begin once the fleet has settled.
"""

import json
import random
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    DRAINS,
    NO_CAPACITY,
    READY,
    GroupSpec,
    Physics,
    Result,
    two_groups,
)
from spotkeeper_lab.fakes import EPOCH
from spotkeeper_lab.faults import ACTS, BLIND, DRILLED, DRILLS, TOGETHER, WIDE, Fault, Kind
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.traces.requests import RequestTrace
from spotkeeper_lab.world import REQUEST_QUEUE, Stage

WARM_UP_S, FAULTS_S, TAIL_S = 1500.0, 4500.0, 4200.0
# Later than the longest cold start.
DEPLOYED_AT_S = 480.0
SPOT_MAX = 12
LENGTHS_S = (90.0, 300.0, 900.0, 1800.0, 3600.0)
LATENCIES_S = (0.01, 0.08)
# What a spot request says while AWS takes its instance: for its capacity, in an experiment of FIS,
# or for its price, the status of earlier years.
TAKING = (NO_CAPACITY, "instance-terminated-by-experiment", "marked-for-termination")
MAIN = "ocr"
A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"
OTHERS = 2
# One of them has a load, which sizes it.
NEIGHBOURS, NEIGHBOURS_LOAD = 8, 2.0
POOL_SIZE = 40
# The version of the launch template that all groups begin with.
TEMPLATE = "7"


type Loads = tuple[tuple[float, float], ...]


class StartState(StrEnum):
    """What the fleet looks like when Spotkeeper first sees it."""

    SERVING = "spot serves"
    EMPTY = "both groups are empty"
    ON_DEMAND = "on-demand serves, spot is empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run; `loads` are erlangs from an instant on.

    A worker has `slots`, and the document says `declared_slots`.
    `sized`: the load sizes the spot group; else an operator does. AWS suspends a group that has
    launched nothing for `suspend_after_s`: for a day in truth, for minutes here. `launch_first`:
    the main fleet's groups have an instance maintenance policy of 100 %. `hang_holds`: a worker
    that hangs keeps its requests.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    about: str = ""
    seed: int = 1
    start: StartState = StartState.SERVING
    loads: tuple[tuple[float, float], ...] = ((0.0, 3.0),)
    faults: tuple[Fault, ...] = ()
    objective: bool = True
    queue_known: bool = True
    spot_min: int = 1
    group_maximum: int = SPOT_MAX
    onprem_workers: int = 0
    warm_pool: int = 0
    early_replacement: bool = True
    cold_start_s: float = 180.0
    launch_hook_s: float | None = 300.0
    hook_continues: bool = True
    event_delay_s: float = 5.0
    event_lost: float = 0.0
    event_twice: float = 0.0
    spot_status: str = NO_CAPACITY
    status_delay_s: float = 0.0
    ghost_s: float = 90.0
    strict: bool = True
    sized: bool = True
    suspend_after_s: float | None = None
    service_s: float = 6.0
    slots: int = 1
    declared_slots: int = 1
    fleets: int = 2
    spot_max: int = SPOT_MAX
    latencies_s: tuple[float, float] = LATENCIES_S
    launch_first: bool = False
    hang_holds: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """The fleets that nothing should happen to."""
        return tuple(f"search{number or ''}" for number in range(self.fleets - 1))

    @property
    def neighbour(self) -> str:
        """The fleet beside the main one that has workers and a load; empty where it is alone."""
        return next(iter(self.others), "")

    @property
    def scale(self) -> float:
        """How much larger the main fleet is than usual; 1 at least."""
        return max(1.0, self.spot_max / SPOT_MAX)

    @property
    def deployed_at_s(self) -> float:
        """When the functions are deployed: once on-demand serves, where that is the start."""
        return DEPLOYED_AT_S if self.start is StartState.ON_DEMAND else 0.0

    @property
    def adopted(self) -> int:
        """The on-demand instances that the fleet starts with, if it starts on demand."""
        return round(6 * self.scale) if self.start is StartState.ON_DEMAND else 0

    @property
    def quiet_from_s(self) -> float:
        """From when on nothing goes wrong any more and the load is steady."""
        ends = [fault.end_s for fault in self.faults]
        return max([WARM_UP_S, *ends, *(at_s for at_s, _ in self.loads)])

    @property
    def end_s(self) -> float:
        return self.quiet_from_s + TAIL_S


# --- drawing and keeping ---

# How many a drill has, if it has any.
OWN_MACHINES = 6
NIGHT_S = 5400.0
DAWN = 1.6


def draw(seed: int) -> Scenario:
    """Draw a run of several faults; each second one is a drill, of one situation alone."""
    plain = _draw(seed)
    if seed % 2:
        return _acted_on(plain)
    rng = random.Random(f"chaos/drill/{seed}")
    faults = [
        Fault(
            kind=kind,
            at_s=WARM_UP_S + 600.0 + after_s,
            length_s=2400.0,
            value=value,
        )
        for kind, value, after_s in DRILLS[seed // 2 % len(DRILLS)]
    ]
    loads, kinds = [(0.0, round(rng.uniform(4.0, 6.0), 1))], {fault.kind for fault in faults}
    own = OWN_MACHINES if Kind.SLOWED in kinds else 0
    if own:
        # Machines of one's own serve more than half of it.
        loads = [(0.0, loads[0][1] + own / 2)]
    if Kind.EMPTY_WARNING in kinds:
        night_s = max(fault.end_s for fault in faults)
        # The day after begins with more load than a few instances serve.
        loads += [(night_s, 0.0), (night_s + NIGHT_S, round(DAWN * loads[0][1], 1))]
        plain = replace(
            plain, early_replacement=False, queue_known=True, spot_min=0, objective=True
        )
    if kinds == {Kind.BAD_SPOT_IMAGE}:
        loads = [(0.0, 2.0), (WARM_UP_S + 900.0, loads[0][1])]
    return replace(
        plain,
        start=StartState.SERVING,
        loads=tuple(loads),
        sized=True,
        faults=tuple(faults),
        onprem_workers=own,
    )


def _acted_on(plain: Scenario) -> Scenario:
    """Add what AWS or others do with the group, by chances of their own."""
    rng = random.Random(f"chaos/acts/{plain.seed}")
    acts = [
        _fault(rng, kind, rng.uniform(0.0, FAULTS_S))
        for kind in rng.choices(ACTS, k=rng.choice([0, 1, 1]))
    ]
    faults = sorted([*plain.faults, *acts], key=lambda fault: fault.at_s)
    return replace(plain, faults=tuple(faults), launch_first=rng.random() < 0.3)  # noqa: PLR2004


def _draw(seed: int) -> Scenario:
    rng = random.Random(f"chaos/{seed}")
    sized = rng.choice([True] * 5 + [False])
    queue_known = rng.choice([True, True, False])
    start = rng.choice([StartState.SERVING] * 3 + [StartState.EMPTY, StartState.ON_DEMAND])
    if sized:
        count = rng.choice([0, 1, 2])
        changes = sorted([0.0, *(WARM_UP_S + rng.uniform(0.0, FAULTS_S) for _ in range(count))])
        least, most = rng.choice([(0.5, 7.0), (0.5, 7.0), (0.02, 0.3)])
        loads = tuple((at_s, round(rng.uniform(least, most), 2)) for at_s in changes)
    else:
        # Where nobody sizes the spot group, it begins as its operator left it.
        start, loads = StartState.SERVING, ((0.0, round(rng.uniform(0.5, 2.0), 1)),)
    kinds = rng.choices(
        [kind for kind in Kind if kind not in WIDE + DRILLED + ACTS], k=rng.randint(1, 5)
    )
    # Each run has a loss: it is what the product is for.
    faults = [_fault(rng, kind, rng.uniform(0.0, FAULTS_S)) for kind in [Kind.LOSS, *kinds]]
    together_s = rng.uniform(0.0, FAULTS_S)
    match rng.choice(["pair", "blind", "none"]):
        case "pair":
            pair = rng.choice(TOGETHER)
            faults += [_fault(rng, kind, together_s + rng.uniform(0.0, 60.0)) for kind in pair]
        case "blind":
            blind = _fault(rng, rng.choice(BLIND), together_s)
            taken = _fault(rng, rng.choice([Kind.LOSS, Kind.SPOT_DRY]), together_s + 300.0)
            faults += [replace(blind, length_s=900.0), taken]
    return Scenario(
        seed=seed,
        start=start,
        loads=loads,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        objective=rng.choice([True, False]),
        queue_known=queue_known,
        spot_min=rng.choice([0, 1, 2]) if queue_known else rng.choice([1, 2]),
        group_maximum=SPOT_MAX + rng.choice([0, 0, 3]),
        onprem_workers=rng.choice([0, 0, 0, 2]),
        warm_pool=rng.choice([0, 0, 4]),
        early_replacement=rng.choice([True] * 4 + [False]),
        cold_start_s=rng.choice([60.0, 180.0, 240.0]),
        launch_hook_s=rng.choice([None, 300.0, 300.0]),
        hook_continues=rng.choice([True, True, False]),
        event_delay_s=rng.choice([2.0, 20.0, 90.0]),
        event_lost=rng.choice([0.0, 0.0, 0.3, 1.0]),
        event_twice=rng.choice([0.0, 0.3]),
        ghost_s=rng.choice([30.0, 90.0, 150.0]),
        sized=sized,
        suspend_after_s=rng.choice([None, 900.0]),
        spot_status=rng.choice(TAKING),
        status_delay_s=rng.choice([0.0, 5.0, 45.0]),
        hang_holds=random.Random(f"chaos/holds/{seed}").random() < 0.5,  # noqa: PLR2004
    )


def draw_wide(seed: int) -> Scenario:
    """Draw a run that may be slow, quiet, large or among many fleets, with wider faults."""
    plain, rng = draw(seed), random.Random(f"chaos/wide/{seed}")
    spot_max = rng.choice([5, SPOT_MAX, SPOT_MAX, SPOT_MAX, 50, 200, 1000])
    scale = max(1.0, spot_max / SPOT_MAX)
    kinds = rng.choices(WIDE, k=rng.choice([0, 1, 2]))
    faults = [_fault(rng, kind, rng.uniform(0.0, FAULTS_S)) for kind in kinds]
    loads = [(at_s, round(load * min(scale, spot_max / 8), 2)) for at_s, load in plain.loads]
    if plain.sized and rng.random() < 0.3:  # noqa: PLR2004
        night_s = WARM_UP_S + rng.uniform(0.0, FAULTS_S / 2)
        loads = [step for step in loads if step[0] < night_s] + [(night_s, 0.0)]
        if rng.random() < 0.5:  # noqa: PLR2004
            loads.append((night_s + rng.choice([1800.0, 5400.0]), loads[0][1]))
    return replace(
        plain,
        faults=tuple(sorted([*plain.faults, *faults], key=lambda fault: fault.at_s)),
        loads=tuple(loads),
        fleets=rng.choice([1, 2, 2, 2, 5, 5, 12, 40]),
        spot_max=spot_max,
        group_maximum=spot_max + plain.group_maximum - SPOT_MAX,
        spot_min=min(plain.spot_min, spot_max),
        latencies_s=rng.choice([LATENCIES_S, (0.01, 0.25), (0.05, 0.25)]),
        service_s=6.0 * min(10.0, scale),
    )


def _fault(rng: random.Random, kind: Kind, after_s: float) -> Fault:
    at_s = round(WARM_UP_S + min(after_s, FAULTS_S), 1)
    length_s = round(max(60.0, min(rng.choice(LENGTHS_S), WARM_UP_S + FAULTS_S - at_s)), 1)
    return Fault(kind=kind, at_s=at_s, length_s=length_s, value=round(rng.random(), 3))


_SCENARIO = TypeAdapter(Scenario)
FOLDER = Path(__file__).parent / "scenarios"


class ScenarioError(ValueError):
    """A scenario that cannot be read; the message names the file and each wrong field."""


def shipped() -> dict[str, Path]:
    """The lab's own scenarios, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def find(name: str) -> Path:
    """The file of a shipped scenario, or the file of that path; raises ScenarioError."""
    known = shipped()
    path = known.get(name, Path(name))
    if not path.is_file():
        raise ScenarioError(f"no scenario {name}: use one of {', '.join(known)}, or name a file")
    return path


def read(path: Path) -> Scenario:
    """Read a scenario from YAML; raises ScenarioError."""
    try:
        return _SCENARIO.validate_python(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    except ValidationError as error:
        wrong = (
            f"  {'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}"
            for one in error.errors()
        )
        raise ScenarioError("\n".join([f"{path}:", *wrong])) from error


def write(scenario: Scenario, path: Path) -> None:
    """Write a scenario as JSON, which is YAML, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_SCENARIO.dump_json(scenario, indent=2) + b"\n")


# --- the fleets ---


def stage_of(scenario: Scenario) -> Stage:
    return Stage(
        cloud=cloud_of(scenario),
        documents=documents_of(scenario),
        requests=requests_of(scenario),
        start=EPOCH,
        seed=scenario.seed,
        latencies_s=scenario.latencies_s,
        workers_per_instance=scenario.slots,
        onprem_workers=scenario.onprem_workers,
        chance=random.Random(f"{scenario.seed}/idle"),
    )


def documents_of(scenario: Scenario) -> dict[str, str]:
    """The document of the fleet that things happen to, and of one that nothing should happen to."""
    main = {
        "version": 1,
        "spot_group": "ocr-spot",
        "on_demand_group": "ocr-on-demand",
        "onprem_workers": scenario.onprem_workers,
        "slots": scenario.declared_slots,
        "request_queue_url": REQUEST_QUEUE if scenario.queue_known else None,
        "bounds": {
            "spot_min": scenario.spot_min,
            "spot_max": scenario.spot_max,
            "on_demand_max": scenario.spot_max,
        },
        "objective": {"wait_s": 10.0, "share": 0.95} if scenario.objective else None,
        "sizing": {"enabled": scenario.sized},
        "availability": {
            "early_replacement": scenario.early_replacement,
            "on_demand_warm": scenario.warm_pool > 0,
        },
    }
    others: dict[str, dict[str, Any]] = {
        name: {
            "version": 1,
            "spot_group": f"{name}-spot",
            "on_demand_group": f"{name}-on-demand",
            "bounds": {"spot_min": OTHERS, "spot_max": OTHERS, "on_demand_max": OTHERS},
            "sizing": {"enabled": False},
            "worker_health": {"enabled": False},
        }
        for name in scenario.others
    }
    if scenario.neighbour:
        others[scenario.neighbour] |= {
            "bounds": {"spot_min": 1, "spot_max": NEIGHBOURS, "on_demand_max": NEIGHBOURS},
            "objective": {"wait_s": 10.0, "share": 0.95},
            "sizing": {},
            "worker_health": {},
        }
    return {name: json.dumps(document) for name, document in {MAIN: main, **others}.items()}


def specs_of(scenario: Scenario, pools: tuple[str, ...]) -> list[GroupSpec]:
    first = round(4 * scenario.scale) if scenario.start is StartState.SERVING else 0
    sizes = {MAIN: (scenario.group_maximum, first), **dict.fromkeys(scenario.others, (OTHERS,) * 2)}
    if scenario.neighbour:
        sizes[scenario.neighbour] = NEIGHBOURS, 4
    specs = [
        spec
        for name, (most, desired) in sizes.items()
        for spec in two_groups(
            f"{name}-spot", f"{name}-on-demand", pools=pools, maximum=most, desired=desired
        )
    ]
    hooks, default = [DRAINS], Result.CONTINUE if scenario.hook_continues else Result.ABANDON
    if most_s := scenario.launch_hook_s:
        hooks.append(replace(READY, heartbeat_s=most_s, default=default))
    specs = [replace(spec, template=TEMPLATE, hooks=tuple(hooks)) for spec in specs]
    specs[:2] = [replace(spec, launch_first=scenario.launch_first) for spec in specs[:2]]
    # The second is the main fleet's on-demand group.
    specs[1] = replace(specs[1], desired=scenario.adopted)
    return specs


def cloud_of(scenario: Scenario) -> Cloud:
    """The cloud of a run, with as much spot capacity as anybody asks for."""
    shared = {each.name for each in fields(Physics)} & {each.name for each in fields(scenario)}
    strict = ("aws_scale_in", "marks_needed")
    changed: dict[str, Any] = {name: getattr(scenario, name) for name in shared}
    changed |= dict.fromkeys(strict, scenario.strict)
    physics = Physics(
        **changed,
        warm_start_s=min(60.0, scenario.cold_start_s) if scenario.warm_pool else None,
        retry_longest_s=240.0,
    )
    size = round(POOL_SIZE * scenario.scale) + OTHERS * scenario.fleets + NEIGHBOURS
    market = market_of("chaos", 1e6, {A: [(0.0, size)], B: [(0.0, size)]})
    return Cloud(market, specs_of(scenario, (A, B)), physics, scenario.seed)


def requests_of(scenario: Scenario, loads: Loads = ()) -> RequestTrace:
    """Poisson arrivals of the loads, or of others beside them, and service times."""
    rng = np.random.default_rng((scenario.seed, len(loads)) if loads else scenario.seed)
    loads = loads or scenario.loads
    service_s = 6.0 if loads is not scenario.loads else scenario.service_s
    edges = [*(at_s for at_s, _ in loads), scenario.end_s]
    arrivals = [
        np.sort(rng.uniform(start, stop, rng.poisson((stop - start) * load / service_s)))
        for (start, load), stop in zip(loads, edges[1:], strict=True)
    ]
    arrival_s = np.concatenate(arrivals)
    services = rng.gamma(4.0, service_s / 4.0, len(arrival_s)) + 0.05
    return RequestTrace(name="chaos", arrival_s=arrival_s, service_s=services, end_s=scenario.end_s)
