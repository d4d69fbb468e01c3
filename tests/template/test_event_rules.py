"""Each rule matches the event that it is there for, and nothing else."""

import json
from typing import Any

import pytest
from moto.events.models import EventPattern

from tests.template.stack import ADOPT, ROOT, Stack

FILES = sorted((ROOT / "events").glob("*.json"))
EVENTS: dict[str, Any] = {path.stem: json.loads(path.read_text()) for path in FILES}


# The events that each rule is there for, by the stems of their files.
RULES = {
    "SpotWarning": {"spot_interruption_warning", "rebalance_recommendation"},
    "GroupEvent": {"launch_successful", "launch_unsuccessful", "terminate_successful"},
    "InstanceStateChange": {"instance_state_change"},
    "HealthScheduledChange": {"health_scheduled_change"},
}


def patterns(stack: Stack) -> dict[str, EventPattern]:
    """Load the rules' patterns by their names."""
    events = stack.functions()["HandleInterruption"]["Events"]
    assert {event["Type"] for event in events.values()} == {"EventBridgeRule"}
    return {
        name: EventPattern.load(json.dumps(event["Properties"]["Pattern"]))
        for name, event in events.items()
    }


def test_every_event_has_a_rule_and_every_rule_an_event(adopted: Stack) -> None:
    assert patterns(adopted).keys() == RULES.keys()
    assert set().union(*RULES.values()) == EVENTS.keys() - {"schedule", "search_logs", "wake_up"}


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_is_matched_by_its_own_rule_only(adopted: Stack, name: str) -> None:
    matching = {rule for rule, it in patterns(adopted).items() if it.matches_event(EVENTS[name])}
    assert matching == {rule for rule, events in RULES.items() if name in events}


GROUPS = ("launch_unsuccessful", "launch_successful", "terminate_successful")
ANY = ("instance_state_change", "health_scheduled_change", "launch_unsuccessful")
NOT_OURS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (GROUPS, {"detail": {"AutoScalingGroupName": "web"}}),
    *(
        (("instance_state_change",), {"detail": {"instance-id": "i-1", "state": state}})
        for state in ("pending", "running", "stopped", "terminated")
    ),
    (ANY, {"source": "my.app"}),
    (ANY, {"detail-type": "EC2 Instance Terminate Unsuccessful"}),
    (ANY, {"detail": {"instance-id": "i-1", "state": "running", "service": "RDS"}}),
)


@pytest.mark.parametrize(("names", "change"), NOT_OURS, ids=lambda it: str(it)[:40])
def test_an_event_without_news_for_a_turn_is_matched_by_no_rule(
    adopted: Stack, names: tuple[str, ...], change: dict[str, Any]
) -> None:
    for name in names:
        event = EVENTS[name] | change
        assert not any(pattern.matches_event(event) for pattern in patterns(adopted).values())


def test_events_of_further_fleets_are_matched_by_prefix() -> None:
    stack = Stack.with_parameters({**ADOPT, "FurtherGroupPrefix": "team-"})
    event = EVENTS["launch_unsuccessful"]
    further = event | {"detail": event["detail"] | {"AutoScalingGroupName": "team-embed-spot"}}
    assert patterns(stack)["GroupEvent"].matches_event(further)
