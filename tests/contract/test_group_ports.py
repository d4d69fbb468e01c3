"""What the group ports promise, and what AWS refuses or shows late."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spotkeeper.domain.fleet import Phase
from spotkeeper.ports import FleetError, Gone
from spotkeeper_lab.cloud.values import CloudError
from tests.contract.conftest import ON_DEMAND, POOL, SPOT, STRICT, Groups, cloud_of

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
GONE_AT = datetime(2030, 1, 1, tzinfo=UTC)
NOBODY = "i-0f00f00f00f00f00f"


def test_groups_that_exist_are_described_with_their_instances(groups: Groups) -> None:
    found = groups.reader.describe([SPOT, "gone"])
    assert set(found) == {SPOT}
    assert groups.reader.describe([]) == {}
    group = found[SPOT]
    assert (group.desired, group.minimum, group.maximum) == (2, 0, 6)
    assert [(i.pool, i.phase, i.healthy) for i in group.instances] == [
        (POOL, Phase.IN_SERVICE, True)
    ] * 2
    first, second = (i.instance_id for i in group.instances)
    assert first != second
    assert groups.reader.groups_of([first, NOBODY, second]) == {first: SPOT, second: SPOT}


def test_desired_brings_instances_and_ends_them(groups: Groups) -> None:
    groups.writer.set_desired(ON_DEMAND, 3)
    groups.settle()
    assert groups.reader.describe([ON_DEMAND])[ON_DEMAND].desired == 3
    assert len(groups.ids(ON_DEMAND)) == 3
    groups.writer.set_desired(ON_DEMAND, 1)
    groups.settle()
    assert len(groups.ids(ON_DEMAND)) == 1


def test_what_does_not_exist_is_gone_for_each_call(strict_groups: Groups) -> None:
    writer = strict_groups.writer
    calls: list[Any] = [
        lambda: writer.set_desired("gone", 1),
        lambda: writer.end(NOBODY),
        lambda: writer.drain([NOBODY], GONE_AT, SPOT),
    ]
    for refused in calls:
        with pytest.raises(Gone):
            refused()


def test_an_ended_instance_lowers_desired(groups: Groups) -> None:
    first, second = groups.ids()
    groups.writer.end(first)
    groups.settle()
    assert groups.ids() == [second]
    assert groups.reader.describe([SPOT])[SPOT].desired == 1


def test_detached_instances_leave_and_are_replaced(groups: Groups) -> None:
    first, second = groups.ids()
    groups.writer.detach(SPOT, [first])
    groups.settle()
    assert groups.reader.describe([SPOT])[SPOT].desired == 2
    assert groups.reader.groups_of([first, second]) == {second: SPOT}
    assert second in groups.ids()
    assert len(groups.ids()) == 2


def test_processes_are_suspended_and_resumed(groups: Groups) -> None:
    groups.writer.set_process(SPOT, "Launch", runs=True)
    group = groups.reader.describe([SPOT])[SPOT]
    assert not group.suspended | group.suspended_by_aws
    groups.writer.set_process(SPOT, "AZRebalance", runs=False)
    assert groups.reader.describe([SPOT])[SPOT].suspended == {"AZRebalance"}


def test_marked_instances_are_found_until_they_are_unmarked_or_end(groups: Groups) -> None:
    def found(*names: str) -> dict[str, datetime]:
        return {mark.instance_id: mark.gone_at for mark in groups.reader.marked(names)}

    first, second = groups.ids()
    assert found(SPOT, ON_DEMAND) == {}
    groups.writer.drain([first, second], GONE_AT, SPOT)
    assert groups.ids() == [first, second]
    assert found(SPOT) == found(ON_DEMAND, SPOT) == {first: GONE_AT, second: GONE_AT}
    assert found(ON_DEMAND) == {}
    groups.writer.unmark([second])
    assert found(SPOT) == {first: GONE_AT}
    groups.writer.detach(SPOT, [first])
    assert found(SPOT) == {first: GONE_AT}
    groups.writer.terminate([first])
    assert found(SPOT) == {}


def test_the_history_of_the_group_proves_that_a_marked_spot_instance_was_detached(
    strict_groups: Groups,
) -> None:
    first, second = strict_groups.ids()
    soon = strict_groups.now() + timedelta(seconds=120)
    strict_groups.writer.drain([first, second], soon, SPOT)
    strict_groups.writer.detach(SPOT, [first])
    proven = {mark.instance_id: mark.detached for mark in strict_groups.reader.marked([SPOT])}
    assert proven == {first: True, second: False}


def test_only_what_has_not_ended_runs(groups: Groups) -> None:
    first, second = groups.ids()
    assert groups.reader.running([first, second, NOBODY]).keys() == {first, second}
    groups.writer.drain([first], GONE_AT, SPOT)
    groups.writer.detach(SPOT, [first])
    assert groups.reader.running([first]).keys() == {first}
    groups.writer.terminate([first])
    # What has ended is well gone.
    groups.writer.terminate([NOBODY, first])
    assert groups.reader.running([first, second]).keys() == {second}
    assert second in groups.ids()
    assert groups.reader.running([]).keys() == set()


def test_desired_beyond_the_groups_bounds_is_refused(strict_groups: Groups) -> None:
    with pytest.raises(FleetError):
        strict_groups.writer.set_desired(SPOT, 7)


def test_a_replaced_instance_serves_no_longer(groups: Groups) -> None:
    first, _ = groups.ids()
    groups.writer.end(first, replaced=True)
    group = groups.reader.describe([SPOT])[SPOT]
    known = {i.instance_id: i for i in group.instances}
    assert group.desired == 2
    # Where a hook drains it, it leaves, and its health is as before.
    leaves = first not in known or known[first].phase is Phase.LEAVING
    assert leaves or not known[first].healthy


# --- what AWS refuses, or shows late --------------------------------------------------------------


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
        cloud.tag([first, NOBODY], {}, cloud.now_s)
    assert not cloud.instance(first).draining


def test_an_instance_without_its_mark_cannot_be_terminated(strict_groups: Groups) -> None:
    first, _ = strict_groups.ids()
    strict_groups.writer.detach(SPOT, [first])
    with pytest.raises(FleetError):
        strict_groups.writer.terminate([first])
    assert strict_groups.reader.running([first]).keys() == {first}
    strict_groups.writer.drain([first], GONE_AT, SPOT)
    strict_groups.writer.terminate([first])
    assert strict_groups.reader.running([first]).keys() == set()


def test_a_launch_that_is_given_up_for_a_smaller_group_is_no_failure(strict_groups: Groups) -> None:
    strict_groups.writer.set_desired(ON_DEMAND, 1)
    strict_groups.writer.set_desired(ON_DEMAND, 0)
    assert strict_groups.ids(ON_DEMAND) == []
    assert strict_groups.reader.failures(ON_DEMAND, LONG_AGO) == ()


def test_more_than_twenty_instances_are_not_detached_in_one_call() -> None:
    cloud = cloud_of(STRICT)
    with pytest.raises(CloudError, match="length less than or equal to 20"):
        cloud.detach(SPOT, [NOBODY] * 21)
