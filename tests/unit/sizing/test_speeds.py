"""The speeds of instance types: how they are learned, and what sizing makes of them."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.domain.health.decide import HealthSnapshot, assess, plan
from spotkeeper.domain.health_memory import HealthMemory, Needed
from spotkeeper.domain.load.digest import SearchLog
from spotkeeper.domain.load.load import Cluster, LoadDigest
from spotkeeper.domain.load.speeds import TRUSTED, Speeds, at_speed_1, learn
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper_lab.fakes import digest
from tests.builders import at, fleet, group
from tests.search_logs import log

SPEEDS = {"g5.xlarge": 1.0, "g6.xlarge": 2.0, "g4dn.xlarge": 0.5}
MEAN_S = 6.0
OURS = replace(fleet(spot_max=60), objective=Objective(wait_s=10, share=0.95))


def served(instance_id: str, began: float, took: float, arrived: float) -> SearchLog:
    """The log of a request; times are seconds after noon."""
    who: Any = {"request_id": f"{instance_id} {began}", "instance_id": instance_id}
    return log(-began, -began - took, waited=began - arrived, cluster=Cluster.AWS, **who)


def spot(kinds: Mapping[str, str], launching: frozenset[str] = frozenset()) -> Group:
    members = (
        Instance(
            instance_id=name,
            pool=f"us-east-1a/{kind}",
            phase=Phase.LAUNCHING if name in launching else Phase.IN_SERVICE,
        )
        for name, kind in sorted(kinds.items())
    )
    return group("spot", len(kinds), tuple(members))


def minutes_of(seed: int, logs: int, speeds: Mapping[str, float]) -> list[LoadDigest]:
    """One digest a minute and type, whose instance has the type's name."""
    draw, found = Random(seed), []
    for minute in range(10):
        for kind, speed in speeds.items():
            began = [60 * minute + each / logs for each in range(logs // 10)]
            each = [served(kind, at_s, draw.expovariate(speed / MEAN_S), at_s) for at_s in began]
            found += digest(each, at(60 * minute + 59), OURS.name)
    return found


def learned(digests: list[LoadDigest], before: Speeds, kinds: Mapping[str, str]) -> Speeds:
    """What ten minutes of turns learn, each of them reading all digests of until then."""
    for minute in range(1, 13):
        now = at(60 * minute)
        before = learn(before, (spot(kinds),), [d for d in digests if d.sent_at < now], now)
    return before


@pytest.mark.parametrize("seed", range(3))
def test_speeds_are_within_a_tenth_of_the_truth(seed: int) -> None:
    kinds = {kind: kind for kind in SPEEDS}
    found = learned(minutes_of(seed, 3_000, SPEEDS), Speeds(), kinds)
    speed = {kind: each.speed for kind, each in found.types.items()}
    for kind, truth in SPEEDS.items():
        assert speed[kind] / speed["g5.xlarge"] == pytest.approx(truth, rel=0.1)


def test_few_logs_change_speeds_little() -> None:
    kinds = {kind: kind for kind in SPEEDS}
    many = learned(minutes_of(0, 2 * TRUSTED, SPEEDS), Speeds(), kinds).differing
    few = learned(minutes_of(0, TRUSTED // 3, SPEEDS), Speeds(), kinds).differing
    assert 1.0 <= few.get("g6.xlarge", 1.0) < many["g6.xlarge"]
    assert many["g4dn.xlarge"] < few.get("g4dn.xlarge", 1.0) <= 1.0


@pytest.mark.parametrize("speeds", [{"g5.xlarge": 2.0}, {"g5.xlarge": 1.0, "g5a.xlarge": 1.08}])
def test_one_speed_changes_nothing(speeds: dict[str, float]) -> None:
    digests = minutes_of(1, 3_000, speeds)
    found = learned(digests, Speeds(), {kind: kind for kind in speeds})
    assert at_speed_1(found, digests) is digests
    assert found.mean_of((spot({kind: kind for kind in speeds}),)) == 1.0
    assert bool(found.kinds) == (len(speeds) > 1)


def test_an_instance_that_left_keeps_its_type_while_its_logs_count() -> None:
    digests = minutes_of(2, 3_000, SPEEDS)
    found = learned(digests, Speeds(), {kind: kind for kind in SPEEDS})
    left = learn(found, (spot({"g5.xlarge": "g5.xlarge"}),), digests, at(780))
    assert set(left.kinds) == set(SPEEDS)
    assert set(learn(left, (spot({"g5.xlarge": "g5.xlarge"}),), [], at(840)).kinds) <= {"g5.xlarge"}


def test_a_need_is_in_workers_of_the_present_speed() -> None:
    """Three types served; then the market has one of them, which has not served alone yet."""
    digests = minutes_of(3, 3_000, SPEEDS)
    known = learned(digests, Speeds(), {kind: kind for kind in SPEEDS})

    def needed(kind: str, speeds: Speeds) -> int:
        instances = spot({f"i-{n}": kind for n in range(3)})
        snapshot = HealthSnapshot(
            fleet=OURS,
            spot=instances,
            sized=instances,
            on_demand=group("on-demand", 0),
            digests=tuple(digests),
            queue=None,
            history=None,
            now=at(600),
        )
        memory = HealthMemory(speeds=speeds, needed=(Needed(at=at(-800), workers=1),))
        sizing = plan(assess(snapshot, memory)).sizing
        assert ("The mean speed of these types" in sizing.reason) == bool(speeds.types)
        return sizing.workers

    slow, middle, fast = (needed(f"{kind}.xlarge", known) for kind in ("g4dn", "g5", "g6"))
    assert middle == pytest.approx(2 * fast, rel=0.2)
    assert slow == pytest.approx(4 * fast, rel=0.2)
    assert needed("g4dn.xlarge", Speeds()) == needed("g6.xlarge", Speeds())
