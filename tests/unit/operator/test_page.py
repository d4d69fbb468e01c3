from dataclasses import replace
from datetime import timedelta

from spotkeeper.domain.decision import Action, Controller, DecisionRecord
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper_operator.status.page import DECISIONS_SHOWN, fleet_picture
from tests.builders import NOON, fleet, held

FLEET = fleet()
RECORD = held(
    controller=Controller.AVAILABILITY, action=Action.BACKFILL, rule="backfill", reason="1 short"
)


def spot(*instances: Instance) -> Group:
    return Group(name=FLEET.spot_group, desired=2, minimum=0, maximum=9, instances=instances)


def shown(*records: DecisionRecord, group: Group | None = None) -> dict[str, object]:
    return fleet_picture(FLEET, {group.name: group} if group else {}, records, {})


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
