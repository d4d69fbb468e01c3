"""What AWS refuses, or shows later than one would like: the fakes and moto's mends do, too."""

import pytest

from spotkeeper.domain.fleet import Phase
from spotkeeper.ports import FleetError
from spotkeeper_lab.cloud.values import CloudError
from tests.contract.conftest import ON_DEMAND, SPOT, STRICT, Groups, cloud_of
from tests.contract.test_group_ports import GONE_AT, LONG_AGO, NOBODY


def test_a_dead_instance_stays_in_its_group_until_the_health_check_finds_it(
    strict_groups: Groups,
) -> None:
    first, second = strict_groups.ids()
    strict_groups.reclaim(first)
    shown = strict_groups.reader.describe([SPOT])[SPOT].instances
    assert [(i.instance_id, i.phase, i.healthy) for i in shown] == [
        (first, Phase.IN_SERVICE, True),
        (second, Phase.IN_SERVICE, True),
    ]
    requests = strict_groups.reader.troubled_spot_requests(strict_groups.ids(), LONG_AGO)
    assert [r.instance_id for r in requests] == [first]
    strict_groups.settle()
    assert first not in strict_groups.ids()
    assert len(strict_groups.ids()) == 2


def test_a_pending_instance_cannot_be_ended(strict_groups: Groups) -> None:
    strict_groups.writer.set_desired(ON_DEMAND, 1)
    (pending,) = strict_groups.ids(ON_DEMAND)
    with pytest.raises(FleetError, match="Scaling Activity is In Progress"):
        strict_groups.writer.end(pending)
    assert strict_groups.reader.describe([ON_DEMAND])[ON_DEMAND].desired == 1


def test_one_unknown_id_refuses_the_whole_mark() -> None:
    cloud = cloud_of(STRICT)
    first = cloud.group(SPOT).instances[0].instance_id
    with pytest.raises(CloudError, match="does not exist"):
        cloud.drain([first, NOBODY], cloud.now_s)
    assert not cloud.instance(first).draining


def test_an_instance_without_its_mark_cannot_be_terminated(strict_groups: Groups) -> None:
    first, _ = strict_groups.ids()
    strict_groups.writer.detach(SPOT, [first])
    with pytest.raises(FleetError):
        strict_groups.instances.terminate([first])
    assert strict_groups.reader.running([first]) == {first}
    strict_groups.instances.drain([first], GONE_AT, SPOT)
    strict_groups.instances.terminate([first])
    assert strict_groups.reader.running([first]) == set()


def test_a_launch_that_is_given_up_for_a_smaller_group_is_no_failure(strict_groups: Groups) -> None:
    strict_groups.writer.set_desired(ON_DEMAND, 1)
    strict_groups.writer.set_desired(ON_DEMAND, 0)
    assert strict_groups.ids(ON_DEMAND) == []
    assert strict_groups.reader.failures(ON_DEMAND, LONG_AGO) == ()


def test_more_than_twenty_instances_are_not_detached_in_one_call() -> None:
    cloud = cloud_of(STRICT)
    with pytest.raises(CloudError, match="length less than or equal to 20"):
        cloud.detach(SPOT, [NOBODY] * 21)
