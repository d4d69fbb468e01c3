"""Clients without a wire: botocore's checks, pages and errors, and what a world does to calls."""

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from spotkeeper_lab.chaos.stand_ins.clients import Client, Untroubled
from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.wire import Answer


class Troubled(Untroubled):
    """Loses the first answers and refuses by a code."""

    def __init__(self, lost: int = 0, code: str = "") -> None:
        self.lost, self.code, self.spent_s = lost, code, 0.0

    def spend(self, seconds: float) -> None:
        self.spent_s += seconds

    def loses_answer(self, service: str, operation: str) -> bool:
        self.lost -= 1
        return self.lost >= 0

    def refusal(self, service: str, operation: str) -> tuple[str, str] | None:
        return (self.code, "no") if self.code else None


class Asked:
    """Answers, and remembers how often it was asked."""

    times = 0

    def __call__(self, params: object) -> Answer:
        self.times += 1
        return {}


ASK = {"AutoScalingGroupName": "spot", "DesiredCapacity": 1}


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    asked = Asked()
    client = Client("autoscaling", {"set_desired_capacity": asked}, Troubled(lost=1))
    client.set_desired_capacity(**ASK)
    assert asked.times == 2


def test_after_three_tries_nobody_knows_whether_it_was_done() -> None:
    asked = Asked()
    client = Client("autoscaling", {"set_desired_capacity": asked}, Troubled(lost=3))
    with pytest.raises(ReadTimeoutError):
        client.set_desired_capacity(**ASK)
    assert asked.times == 3


@pytest.mark.parametrize(("code", "retried"), [("Throttling", True), ("AccessDenied", False)])
def test_what_is_refused_has_no_effect(code: str, retried: bool) -> None:
    asked, troubled = Asked(), Troubled(code=code)
    client = Client("autoscaling", {"set_desired_capacity": asked}, troubled)
    with pytest.raises(ClientError, match=code):
        client.set_desired_capacity(**ASK)
    assert asked.times == 0
    assert (troubled.spent_s > 0) is retried


def test_wrong_parameters_and_unknown_operations_are_refused() -> None:
    client = Client("autoscaling", {"set_desired_capacity": Asked()}, Untroubled())
    with pytest.raises(NotImplementedError, match="DesiredCapacity"):
        client.set_desired_capacity(AutoScalingGroupName="spot")
    with pytest.raises(NotImplementedError, match="teach the lab"):
        client.delete_auto_scaling_group(AutoScalingGroupName="spot")


def test_the_cloud_s_refusals_are_botocore_s_errors() -> None:
    def refuse(_: object) -> Answer:
        raise CloudError("ValidationError", "above max value")

    client = Client("autoscaling", {"set_desired_capacity": refuse}, Untroubled())
    with pytest.raises(ClientError, match="above max value"):
        client.set_desired_capacity(**ASK)
