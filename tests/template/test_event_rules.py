"""Each rule matches the event that it is there for, and nothing else."""

import json
from typing import Any

import pytest
from moto.events.models import EventPattern

from tests.builders import evidence
from tests.template.stack import ADOPT, ROOT, Stack


def patterns(stack: Stack) -> dict[str, EventPattern]:
    """Load the rules' patterns by their names."""
    events = stack.functions()["HandleInterruption"]["Events"]
    assert {event["Type"] for event in events.values()} == {"EventBridgeRule"}
    return {
        name: EventPattern.load(json.dumps(event["Properties"]["Pattern"]))
        for name, event in events.items()
    }


def test_every_rule_has_an_event_of_aws(adopted: Stack) -> None:
    assert patterns(adopted).keys() == {row["rule"] for row in evidence("events")} - {""}


@pytest.mark.parametrize("row", evidence("events"), ids=lambda row: row["event"][:90])
def test_a_rule_lets_through_what_tells_a_turn_something(
    adopted: Stack, row: dict[str, str]
) -> None:
    told: Any = json.loads(row["event"])
    matching = [rule for rule, it in patterns(adopted).items() if it.matches_event(told)]
    assert matching == ([row["rule"]] if row["rule"] else [])
    foreign = told | {"source": "my.app"}, told | {"detail": {"AutoScalingGroupName": "web"}}
    reads_detail = row["rule"] != "SpotWarning"
    for other in foreign[: 1 + reads_detail]:
        assert not any(it.matches_event(other) for it in patterns(adopted).values())


def test_events_of_further_fleets_are_matched_by_prefix() -> None:
    stack = Stack.with_parameters({**ADOPT, "FurtherGroupPrefix": "team-"})
    event = json.loads((ROOT / "events/launch_unsuccessful.json").read_text())
    further = event | {"detail": event["detail"] | {"AutoScalingGroupName": "team-embed-spot"}}
    assert patterns(stack)["GroupEvent"].matches_event(further)
