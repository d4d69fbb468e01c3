from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from spotkeeper.adapters.errors import classify
from spotkeeper_lab.endpoint.faults.calls import FailingCalls
from spotkeeper_lab.endpoint.faults.deliveries import Deliveries
from spotkeeper_lab.endpoint.faults.inject import Faults
from spotkeeper_lab.endpoint.faults.values import FAULT
from spotkeeper_lab.endpoint.machines import Workers
from spotkeeper_lab.endpoint.serve import make_world
from spotkeeper_lab.endpoint.settings import LabSettings

SETTINGS = LabSettings(desired=2, cold_start_s=0.0)


class Lab:
    """Faults over a world whose clock is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        at = datetime(2026, 11, 20, tzinfo=UTC).timestamp()
        self.world = make_world(SETTINGS, lambda: at, lambda: self.now_s)
        self.workers = Workers(self.world.time)
        self.now_s = 1.0
        clock = self.world.seconds
        self.faults = Faults(
            SETTINGS, self.world, FailingCalls(_nothing, clock), Deliveries(clock), self.workers
        )

    def order(self, **fault: object) -> str:
        return self.faults.order(FAULT.validate_python(fault))

    def spot(self) -> int:
        with self.world.now() as cloud:
            return len(cloud.group(SETTINGS.spot_group).instances)


async def _nothing(*_: object) -> None:
    raise AssertionError


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_loss_is_warned_and_comes(lab: Lab) -> None:
    taken = lab.order(do="loss", count=1, in_s=60)
    with lab.world.now() as cloud:
        assert cloud.instance(taken).warned_s == cloud.now_s
    lab.now_s = 62.0
    with lab.world.now() as cloud:
        assert taken not in {one.instance_id for one in cloud.instances()}


def test_more_losses_than_there_are_take_all(lab: Lab) -> None:
    assert lab.order(do="loss", count=9, in_s=0).count("i-") == 2


def test_every_pool_can_run_dry_and_come_back(lab: Lab) -> None:
    lab.order(do="capacity", capacity=0)
    assert lab.spot() == 0
    lab.order(do="capacity", capacity=4)
    lab.now_s = 60.0
    assert lab.spot() == 2


def test_one_pool_can_run_dry(lab: Lab) -> None:
    lab.order(do="capacity", capacity=0, pools=["us-east-1a/g5.xlarge"])
    assert lab.world.capacities == {
        "us-east-1a/g5.xlarge": 0,
        "us-east-1b/g5.xlarge": 4,
        "us-east-1c/g5.xlarge": 4,
    }


@pytest.mark.parametrize("group", ["spot", "on-demand"])
@pytest.mark.parametrize("why", ["capacity", "quota", "configuration", "permission"])
def test_the_words_of_a_refusal_mean_what_was_ordered(lab: Lab, group: str, why: str) -> None:
    text = lab.order(do="refuse-launches", group=group, why=why, for_s=60)
    found, known = classify(text)
    assert (found.value, known) == (why, True)


def test_load_and_logs_are_the_workers(lab: Lab) -> None:
    lab.order(do="load", erlangs=3)
    lab.order(do="search-logs", stopped=True)
    assert (lab.workers.erlangs, lab.workers.stopped) == (3.0, True)


@pytest.mark.parametrize(
    "fault",
    [
        {"do": "earthquake"},
        {"do": "loss", "count": 0},
        {"do": "loss", "cuont": 1},
        {"do": "calls", "action": "Set Desired", "answer": "lost", "for_s": 5},
        {"do": "refuse-launches", "group": "both", "for_s": 5},
    ],
)
def test_a_wrong_order_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FAULT.validate_python(fault)


def test_a_loss_takes_whom_it_names(lab: Lab) -> None:
    with lab.world.now() as cloud:
        oldest = cloud.group(SETTINGS.spot_group).instances[0].instance_id
    assert lab.order(do="loss", instances=[oldest], in_s=0) == oldest
    with lab.world.now() as cloud:
        assert cloud.instance(oldest).lost


def test_a_recommendation_is_an_event_of_ec2(lab: Lab) -> None:
    lab.now_s = 10.0
    lab.world.due()
    named = lab.order(do="rebalance")
    lab.now_s = 20.0
    (event,) = lab.world.due()
    assert event["detail-type"] == "EC2 Instance Rebalance Recommendation"
    assert event["detail"] == {"instance-id": named}


def test_a_quota_is_one_until_it_is_lifted(lab: Lab) -> None:
    assert lab.order(do="quota", group="spot", vcpus=12) == "12 vCPUs"
    with lab.world.now() as cloud:
        cloud.set_desired(SETTINGS.spot_group, 5)
    assert lab.spot() == 3
    lab.order(do="quota", group="spot")
    assert lab.spot() == 5
