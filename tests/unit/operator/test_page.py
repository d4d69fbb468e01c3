from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spotkeeper.domain.decision import Action, Controller, DecisionRecord
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.ports import LONGEST_LAUNCH, Mark, SpotRequest
from spotkeeper_operator.status.page import DECISIONS_SHOWN, picture
from tests.builders import NOON, fleet, held

FLEET = fleet()
RECORD = held(
    controller=Controller.AVAILABILITY, action=Action.BACKFILL, rule="backfill", reason="1 short"
)


class Groups:
    """A reader of the groups that it was given."""

    def __init__(self, *groups: Group) -> None:
        self._groups = {group.name: group for group in groups}

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        return {name: self._groups[name] for name in names if name in self._groups}

    def failures(
        self, group: str, since: datetime, longest: timedelta = LONGEST_LAUNCH
    ) -> tuple[LaunchFailure, ...]:
        raise NotImplementedError

    def let_go(self, group: str, since: datetime) -> frozenset[str]:
        raise NotImplementedError

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        raise NotImplementedError

    def troubled_spot_requests(
        self, instance_ids: Sequence[str], since: datetime
    ) -> tuple[SpotRequest, ...]:
        raise NotImplementedError

    def running(self, instance_ids: Sequence[str]) -> frozenset[str]:
        raise NotImplementedError

    def marked(self, groups: Sequence[str]) -> tuple[Mark, ...]:
        raise NotImplementedError


def spot(*instances: Instance) -> Group:
    return Group(name=FLEET.spot_group, desired=2, minimum=0, maximum=9, instances=instances)


def shown(*records: DecisionRecord, group: Group | None = None) -> dict[str, object]:
    seen = picture([FLEET], Groups(*([group] if group else [])), lambda _: records)["fleets"]
    assert isinstance(seen, list)
    (found,) = seen
    assert isinstance(found, dict)
    return found


def test_instances_are_shown_by_what_they_do() -> None:
    one = Instance(instance_id="i-1", pool="a/g5.xlarge", phase=Phase.IN_SERVICE)
    ill = replace(one, instance_id="i-2", healthy=False)
    assert shown(group=spot(one, ill))["groups"] == [
        {
            "kind": "spot",
            "name": FLEET.spot_group,
            "desired": 2,
            "instances": [
                {"id": "i-1", "pool": "a/g5.xlarge", "phase": "in_service"},
                {"id": "i-2", "pool": "a/g5.xlarge", "phase": "unhealthy"},
            ],
        },
        {
            "kind": "on-demand",
            "name": FLEET.on_demand_group,
            "desired": None,
            "instances": [],
        },
    ]


def test_decisions_come_with_their_reasons() -> None:
    assert shown(RECORD)["decisions"] == [
        {
            "at": "2026-11-20T12:00:00+00:00",
            "controller": "availability",
            "action": "backfill",
            "rule": "backfill",
            "reason": "1 short",
            "asked": [],
        }
    ]


def test_only_the_newest_decisions_are_shown() -> None:
    many = [replace(RECORD, at=NOON - timedelta(minutes=n)) for n in range(DECISIONS_SHOWN + 9)]
    decisions = shown(*many)["decisions"]
    assert isinstance(decisions, list)
    assert len(decisions) == DECISIONS_SHOWN


def test_no_fleet_is_an_empty_page() -> None:
    assert picture([], Groups(), lambda _: ()) == {"fleets": []}
