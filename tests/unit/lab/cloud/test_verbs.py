"""What the verbs of Auto Scaling do to a group."""

import pytest

from spotkeeper_lab.cloud.values import (
    CloudError,
    Purchase,
)
from tests.unit.lab.cloud.clouds import cloud, ids, market


def test_the_verbs_keep_aws_bounds() -> None:
    one = cloud(market([(0.0, 5)]), 2, minimum=2)
    with pytest.raises(CloudError, match="above max value 10"):
        one.set_desired("spot", 11)
    with pytest.raises(CloudError, match="below min value 2"):
        one.set_desired("spot", 1)
    with pytest.raises(CloudError, match="equals minSize"):
        one.end(ids(one, "spot")[0])
    with pytest.raises(CloudError, match="No managed instance"):
        one.end("i-00000000000000fff")
    with pytest.raises(CloudError, match="not found"):
        one.group("gone")


def test_detached_instances_run_on_while_their_replacement_launches() -> None:
    one = cloud(market([(0.0, 5)]), 2)
    one.advance(200)
    first, second = ids(one, "spot")
    one.detach("spot", [first])
    assert first not in ids(one, "spot")
    assert len(ids(one, "spot")) == 2
    assert one.instance(first).group == ""
    assert one.ready(Purchase.SPOT) == 2
    one.drain([first], 240.0)
    assert one.instance(first).draining
    one.terminate([first])
    assert one.bill().spot_s == 400.0
    one.terminate([first])
    with pytest.raises(CloudError, match="not part of"):
        one.detach("spot", [first])
    assert second in ids(one, "spot")


def test_an_instance_that_has_not_come_cannot_be_detached() -> None:
    one = cloud(market([(0.0, 5)]), 1)
    with pytest.raises(CloudError, match="not in InService"):
        one.detach("spot", ids(one, "spot"))


def test_scale_in_ends_the_launching_first_then_the_newest() -> None:
    one = cloud(market([(0.0, 5)]), 2)
    one.advance(200)
    old = ids(one, "spot")
    one.set_desired("spot", 4)
    one.set_desired("spot", 2)
    assert ids(one, "spot") == old
    one.set_desired("spot", 1)
    assert ids(one, "spot") == old[:1]


def test_an_unhealthy_instance_is_replaced() -> None:
    one = cloud(market([(0.0, 5)]), 2)
    one.advance(200)
    sick, well = ids(one, "spot")
    one.set_unhealthy(sick)
    assert sick not in ids(one, "spot")
    assert len(ids(one, "spot")) == 2
    assert well in ids(one, "spot")


def test_a_suspended_launch_brings_nothing_until_it_is_resumed() -> None:
    one = cloud(market([(0.0, 5)]), 0)
    one.suspend("spot", "Launch")
    one.set_desired("spot", 2)
    one.advance(1000)
    assert ids(one, "spot") == []
    one.resume("spot", "Launch")
    assert len(ids(one, "spot")) == 2
