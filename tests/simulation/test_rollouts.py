"""A roll-out in a world of faults: never below the need for longer, and a bad image is a canary.

`FIRST=1 SEEDS=20 pytest -n auto tests/simulation/test_rollouts.py` looks at many seeds. A roll-out
is longer below the need if it is longer than each of `CONTROLS` draws of its world without one: of
N draws that are alike, one in N + 1 is. A larger need counts once it has lasted for as long as the
slowest of them took to serve one.
"""

import math
import os
import random
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords
from spotkeeper.adapters.fleet_documents import InForce
from spotkeeper_lab.cloud.values import IN_SERVICE, LAUNCHING
from spotkeeper_lab.faults import Fault, Kind
from spotkeeper_lab.scenario import MAIN, WARM_UP_S, Scenario, StartState, draw
from spotkeeper_lab.troubles import Troubled
from spotkeeper_lab.world import TABLE
from spotkeeper_operator.rollout import ALARM, Plan, Rollout, Step, Wish

FIRST, SEEDS = int(os.environ.get("FIRST", "1")), int(os.environ.get("SEEDS", "1"))
CONTROLS = int(os.environ.get("CONTROLS", "4"))
NEW, SAMPLE_S = "8", 10.0
BEGINS_S = WARM_UP_S + 300.0


class Rolling(Troubled):
    """A troubled world in which an operator rolls version 8 out, or nobody; `drawn` anew."""

    def __init__(self, scenario: Scenario, image: str | None, drawn: int = 0) -> None:
        super().__init__(scenario)
        self.rng = random.Random(f"{scenario.seed}/world/{drawn}") if drawn else self.rng
        self.image, self.plan = image, Plan(step=Step.WAIT, why="")
        self.ended_s = 0.0
        self.most_new, self.seen = 0, list[tuple[float, int, int]]()
        self._rollout: Rollout | None = None
        self._wish: Wish | None = None
        if image == "does not start":
            self.cloud.break_template(self.spot, NEW)
            self.cloud.break_template(self.on_demand, NEW)
        self.enter(SAMPLE_S, self._sample)
        if image is not None:
            self.enter(BEGINS_S, self._follow)

    def recorded(self, fleet: str, text: str) -> None:
        super().recorded(fleet, text)
        if fleet == MAIN and '"controller":"health"' in text.replace(" ", ""):
            change = self.cloud.ringing.add if ALARM in text else self.cloud.ringing.discard
            change(f"lab-{ALARM}")

    def _operator(self) -> Rollout:
        documents = SimpleNamespace(
            fleets=InForce(texts=self.documents).fleets(None), names=frozenset(), errors=()
        )
        dynamodb: Any = self.client("dynamodb")
        there = Mock(return_value={"LaunchTemplateVersions": [{"LaunchTemplateData": {}}]})
        aws: Any = SimpleNamespace(
            autoscaling=self.client("autoscaling"),
            client=lambda _: SimpleNamespace(describe_launch_template_versions=there),
            stack=lambda _: SimpleNamespace(name="lab"),
            documents=lambda _: documents,
            records=lambda _: DecisionRecords(dynamodb, TABLE),
        )
        return Rollout(aws, "lab", MAIN, self.now)

    def _follow(self) -> None:
        """Do what the command does, each quarter of a minute; AWS may refuse it now and then."""
        try:
            self._rollout = self._rollout or self._operator()
            self._wish = self._wish or self._rollout.wish(int(NEW), 1, timedelta(minutes=10))
            before, self.plan = self.plan, self._rollout.look(self._wish)
            if self.plan != before:
                self.tell(f"rollout {self.plan.step} {self.plan.group}: {self.plan.why}")
            self._rollout.take(self.plan, self._wish)
        except Exception as error:  # noqa: BLE001 - the operator runs the command again
            self.tell(f"rollout: {error!r}")
        self.ended_s = self.now_s
        if self.plan.step not in (Step.DONE, Step.FAILED, Step.ROLL_BACK):
            self.enter(self.now_s + self.plan.again_s, self._follow)

    def _sample(self) -> None:
        self.enter(self.now_s + SAMPLE_S, self._sample)
        views = [v for v in self.cloud.instances() if not self.is_other(v) and v.group]
        new = [v for v in views if v.template == NEW and v.state in {IN_SERVICE, *LAUNCHING}]
        self.most_new = max(self.most_new, len(new))
        for view in new:
            match self.image:
                case "hangs" if self.works(view.instance_id):
                    self.hung[view.instance_id] = self.now_s
                    self.force.hang(view.instance_id)
                case "fails every tenth":
                    self.logs.failing_each[view.instance_id] = 10
                case "slower":
                    self.force.slower[view.instance_id] = 1.5
        self.seen.append((self.now_s, self.group(self.spot).desired, self.working()))

    def short_s(self, until_s: float = math.inf, grows_s: float = 0.0) -> float:
        """Return for how long fewer worked than were needed for `grows_s`, up to an instant."""
        needs, last = [need for _, need, _ in self.seen], int(grows_s / SAMPLE_S)
        return SAMPLE_S * sum(
            BEGINS_S < at_s <= until_s and working < min(needs[max(0, n - last) : n + 1])
            for n, (at_s, _, working) in enumerate(self.seen)
        )

    def grows_s(self) -> float:
        """Return the longest time from a larger need until as many work."""
        longest_s, since_s = 0.0, math.inf
        for (_, before, _), (at_s, need, working) in pairwise(self.seen):
            if working >= need:
                longest_s, since_s = max(longest_s, at_s - since_s), math.inf
            elif need > before:
                since_s = min(since_s, at_s)
        return longest_s


def until_it_ends(scenario: Scenario) -> Scenario:
    """Go on for as long as a roll-out may take: two hours to prove it, one to replace all."""
    last_s, load = scenario.loads[-1]
    later = (max(last_s + 1.0, BEGINS_S + 7800.0), load)
    return replace(scenario, loads=(*scenario.loads, later))


def roll(scenario: Scenario, image: str | None, drawn: int = 0) -> Rolling:
    with Rolling(replace(scenario, start=StartState.SERVING), image, drawn).deployed() as world:
        world.go()
    return world


IMAGES = ("does not start", "hangs", "fails every tenth", "slower")
CALM = Scenario(seed=3, loads=((0.0, 4.0),), faults=(Fault(kind=Kind.CLOCKS, at_s=3000.0),))


def test_a_good_image_is_rolled_out_and_the_fleet_is_not_short_for_longer() -> None:
    world, calm = roll(CALM, "good"), roll(CALM, None)
    assert world.plan.step is Step.DONE, world.story
    assert [world.group(name).template for name in (world.spot, world.on_demand)] == [NEW, NEW]
    # Later, each size follows the load of its own minutes.
    short_s = world.short_s(world.ended_s)
    assert (short_s <= calm.short_s(world.ended_s), world.force.lost) == (True, [])


@pytest.mark.parametrize("image", IMAGES)
def test_a_bad_image_is_never_more_than_the_canary(image: str) -> None:
    world = roll(CALM, image)
    assert world.plan.step is Step.ROLL_BACK, world.story
    assert (world.most_new, world.force.lost) == (1, [])
    assert {v.template for v in world.group(world.spot).instances} == {"7"}


def test_a_version_whose_canaries_are_never_in_service_is_given_up() -> None:
    world = roll(replace(CALM, launch_hook_s=300.0, hook_continues=False), "does not start")
    assert (world.plan.step, world.most_new) == (Step.ROLL_BACK, 1), world.story
    assert "none was ever in service" in world.plan.why


@pytest.mark.parametrize("image", ["good", "does not start"])
def test_a_loss_while_the_canary_starts_adds_none_and_is_not_the_versions_fault(image: str) -> None:
    faults = (
        Fault(kind=Kind.UNWARNED_LOSS, at_s=BEGINS_S + 60.0, value=0.9),
        Fault(kind=Kind.LOSS, at_s=BEGINS_S + 900.0, value=0.9),
    )
    world = roll(replace(CALM, faults=(*faults, *CALM.faults)), image)
    assert world.force.lost == []
    if image == "good":
        assert world.plan.step is Step.DONE, world.story
    else:
        assert world.most_new == 1, world.story


def test_a_proven_version_is_rolled_out_although_what_proved_it_is_forgotten() -> None:
    lost = (
        Fault(kind=Kind.STATE_LOST, at_s=3960.0),
        Fault(kind=Kind.UNWARNED_LOSS, at_s=3960.0, value=0.3),
    )
    world = roll(replace(until_it_ends(CALM), faults=(*CALM.faults, *lost)), "good")
    assert (world.plan.step, world.force.lost) == (Step.DONE, []), world.story
    # It is not proven again.
    assert world.ended_s < 5000


@pytest.mark.skipif("SEEDS" not in os.environ, reason="minutes a seed: SEEDS=20")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
@pytest.mark.parametrize("image", ["good", *IMAGES])
def test_a_roll_out_among_faults(seed: int, image: str, record_property: Any) -> None:
    scenario = until_it_ends(draw(seed))
    world, (grows_s, others_s, lost) = roll(scenario, image), without(seed)
    short = f"short for {world.short_s(grows_s=grows_s):.0f} s, {others_s} s without it"
    record_property("seen", f"{world.plan.step}; {world.most_new} new; {short}")
    assert len(world.force.lost) <= lost
    if image != "good":
        assert world.most_new <= 1, world.story
    assert world.plan.step in (Step.DONE, Step.FAILED, Step.ROLL_BACK), world.story
    assert world.short_s(grows_s=grows_s) <= max(others_s), world.story


@cache
def without(seed: int) -> tuple[float, list[float], int]:
    """Return how long a larger need took at most, each time below it, and the requests lost."""
    worlds = [roll(until_it_ends(draw(seed)), None, drawn) for drawn in range(CONTROLS)]
    start_s = worlds[0].scenario.cold_start_s + 3 * SAMPLE_S
    grows_s = max([start_s, *[world.grows_s() for world in worlds]])
    others_s = [world.short_s(grows_s=grows_s) for world in worlds]
    return grows_s, others_s, max(len(world.force.lost) for world in worlds)
