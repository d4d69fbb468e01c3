"""A virtual world: processes that hand over, calls in trouble, and quick clients."""

import os
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from spotkeeper import wiring
from spotkeeper_lab.aws.client import Client
from spotkeeper_lab.aws.wire import Answer
from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.scenario import Scenario, stage_of
from spotkeeper_lab.world import Process, World

# --- processes ------------------------------------------------------------------------------------


def test_a_killed_process_does_nothing_more() -> None:
    steps: list[str] = []

    def work() -> None:
        try:
            process.pause()
        except Exception:  # noqa: BLE001 - the point of it: no handler of errors sees the end
            steps.append("caught")
        steps.append("went on")

    process = Process(work)
    process.resume()
    process.kill()
    process.resume()
    assert process.done
    assert steps == []


def test_ctrl_c_ends_the_work_that_runs() -> None:
    """Else it would go on by itself, and print where nobody collects it any more."""

    def work() -> None:
        raise KeyboardInterrupt

    process = Process(work)
    with pytest.raises(KeyboardInterrupt):
        process.resume()
    assert process.done


# --- calls ----------------------------------------------------------------------------------------

ASK = {"AutoScalingGroupName": "spot", "DesiredCapacity": 1}


class InTrouble(World):
    """A world that loses the first answers and refuses by a code."""

    def __init__(self, lost: int = 0, code: str = "") -> None:
        super().__init__(stage_of(Scenario(seed=1)))
        self.lost, self.code, self.spent_s, self.asked = lost, code, 0.0, 0

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds

    def _loses_answer(self) -> bool:
        self.lost -= 1
        return self.lost >= 0

    def _refusal(self, service: str, operation: str) -> tuple[str, str] | None:
        return (self.code, "no") if self.code else None

    def call(self) -> Answer:
        def respond(_: object) -> Answer:
            self.asked += 1
            return {}

        call = self._called("sqs", "send_message", wiring.NEEDED, {"send_message": respond})
        return call(ASK)


def test_a_lost_answer_is_requested_again() -> None:
    world = InTrouble(lost=1)
    world.call()
    assert world.asked == 2
    # After the last try nobody knows whether it was done.
    world = InTrouble(lost=3)
    with pytest.raises(ReadTimeoutError):
        world.call()
    assert world.asked == 3


@pytest.mark.parametrize(("code", "pauses_s"), [("Throttling", 1.5), ("AccessDenied", 0.0)])
def test_what_is_refused_has_no_effect(code: str, pauses_s: float) -> None:
    world = InTrouble(code=code)
    with pytest.raises(CloudError, match=code):
        world.call()
    assert world.asked == 0
    assert pauses_s <= world.spent_s < pauses_s + 0.5


# --- clients --------------------------------------------------------------------------------------


def test_wrong_parameters_and_unknown_operations_are_refused() -> None:
    client: Any = Client("autoscaling", {"set_desired_capacity": lambda _: {}})
    with pytest.raises(NotImplementedError, match="DesiredCapacity"):
        client.set_desired_capacity(AutoScalingGroupName="spot")
    with pytest.raises(NotImplementedError, match="teach the lab"):
        client.delete_auto_scaling_group(AutoScalingGroupName="spot")


def test_a_world_does_not_read_the_shells_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not exist, and an endpoint where nothing answers, change nothing."""
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with World(stage_of(Scenario(seed=1))).deployed():
        assert {"AWS_PROFILE", "AWS_ENDPOINT_URL"}.isdisjoint(os.environ)
        assert wiring.fleet_documents().fleets
    assert os.environ["AWS_PROFILE"] == "nobody"
