"""The fake of the group ports: what the adapter promises, without AWS and at full speed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from spotkeeper.adapters.ec2.auto_scaling import GROUP_TAG, MARKS, NONCE_TAG
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group
from spotkeeper.ports import LONGEST_LAUNCH, OWNER_TAG, Gone, Mark, SpotRequest
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Activity, GroupView, Purchase
from spotkeeper_lab.fakes.faults import Faults, as_aws
from spotkeeper_lab.fakes.group_views import (
    ended_s,
    failure_from,
    group_from,
    has_failed,
    spot_request_from,
)
from spotkeeper_lab.fakes.virtual_time import instant, seconds

_KEPT_FAILURES = 10_000


class FakeGroups:
    """The reader and both writers over a cloud."""

    def __init__(self, cloud: Cloud, faults: Faults | None = None) -> None:
        self._cloud = cloud
        self._faults = faults or Faults()
        self._pictures: dict[str, tuple[GroupView, Group]] = {}
        self._failures: dict[str, LaunchFailure] = {}

    def describe(self, names: Iterable[str]) -> Mapping[str, Group]:
        """Describe the groups that exist."""
        with self._faults.call("describe"):
            existing = self._cloud.groups()
            return {name: self._group(name) for name in names if name in existing}

    def _group(self, name: str) -> Group:
        view = self._cloud.group(name)
        known = self._pictures.get(name)
        if known is None or known[0] is not view:
            known = self._pictures[name] = (view, group_from(view))
        return known[1]

    def failures(
        self, group: str, since: datetime, longest: timedelta = LONGEST_LAUNCH
    ) -> tuple[LaunchFailure, ...]:
        """List failed launches since an instant, newest first."""
        with self._faults.call("failures"), as_aws("reading scaling activities"):
            since_s = seconds(since)
            found = self._cloud.failures(
                group, since_s - max(longest, LONGEST_LAUNCH).total_seconds()
            )
            ended = (activity for activity in found if ended_s(activity) >= since_s)
            failures = (self._failure(a) for a in ended if has_failed(a))
            return tuple(failures)

    def let_go(self, group: str, since: datetime) -> frozenset[str]:
        """Name the instances that a group was asked to end; here only turns end any, with words."""
        del group, since
        with self._faults.call("let_go"):
            return frozenset()

    def _failure(self, activity: Activity) -> LaunchFailure:
        key = activity.activity_id
        if key not in self._failures:
            if len(self._failures) > _KEPT_FAILURES:
                self._failures.clear()
            self._failures[key] = failure_from(activity)
        return self._failures[key]

    def groups_of(self, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Name the group of each instance that is in one."""
        with self._faults.call("groups_of"):
            wanted = set(instance_ids)
            views = [self._cloud.group(name) for name in self._cloud.groups()]
            return {
                i.instance_id: view.name
                for view in views
                for i in view.instances
                if i.instance_id in wanted
            }

    def troubled_spot_requests(
        self, instance_ids: Sequence[str], since: datetime
    ) -> tuple[SpotRequest, ...]:
        """List those spot requests of some instances that lose them."""
        with self._faults.call("troubled_spot_requests"):
            wanted = set(instance_ids)
            found = self._cloud.spot_requests(seconds(since))
            return tuple(spot_request_from(r) for r in found if r.instance_id in wanted)

    def running(self, instance_ids: Sequence[str]) -> frozenset[str]:
        """Name those of some instances that have not ended."""
        with self._faults.call("running"):
            running = (i.instance_id for i in self._cloud.instances() if i.ended_s is None)
            return frozenset(running).intersection(instance_ids)

    def marked(self, groups: Sequence[str]) -> tuple[Mark, ...]:
        """List the instances that run and were marked in one of some groups."""
        with self._faults.call("marked"):
            left = {i for group in groups for _, i in self._cloud.detached(group)}
            return tuple(
                Mark(
                    instance_id=one.instance_id,
                    gone_at=instant(one.gone_s),
                    detached=one.instance_id in left and one.purchase is Purchase.SPOT,
                )
                for one in self._cloud.instances()
                if one.ended_s is None and one.gone_s is not None
                if one.tags.get(GROUP_TAG) in groups
            )

    def set_desired(self, group: str, desired: int) -> None:
        """Ask a group for a capacity."""
        with self._faults.call("set_desired"), as_aws("setting the desired capacity"):
            self._cloud.set_desired(group, desired)

    def end(self, instance_id: str) -> None:
        """End an instance and lower its group's desired capacity by one."""
        with self._faults.call("end"), as_aws(f"ending {instance_id}"):
            self._cloud.end(instance_id)

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out of their group, which replaces them at once."""
        with self._faults.call("detach"), as_aws("detaching"):
            self._cloud.detach(group, instance_ids)

    def suspend_az_rebalance(self, group: str) -> None:
        """Stop a group from ending instances only to even out its zones."""
        with self._faults.call("suspend_az_rebalance"), as_aws("suspending AZRebalance"):
            self._cloud.suspend(group, "AZRebalance")

    def claim(self, group: str) -> None:
        """Tag a group as this stack's."""
        with self._faults.call("claim"), as_aws("claiming"):
            self._cloud.tag_group(group, OWNER_TAG, "fake")

    def resume_launch(self, group: str) -> None:
        """Let a group launch again after AWS stopped it."""
        with self._faults.call("resume_launch"), as_aws("resuming Launch"):
            self._cloud.resume(group, "Launch")

    def drain(self, instance_ids: Sequence[str], gone_at: datetime, group: str) -> None:
        """Mark instances of a group with when they will be gone."""
        with self._faults.call("drain"), as_aws("draining"):
            self._cloud.drain(instance_ids, seconds(gone_at))
            self._cloud.tag(instance_ids, {GROUP_TAG: group, NONCE_TAG: "fake"})

    def unmark(self, instance_ids: Sequence[str]) -> None:
        """Take the mark off instances again."""
        with self._faults.call("unmark"), as_aws("untagging"):
            self._cloud.undrain(instance_ids)
            self._cloud.untag(instance_ids, MARKS)

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End drained instances that are in no group any more."""
        with self._faults.call("terminate"):
            for instance_id in instance_ids:
                try:
                    with as_aws(f"terminating {instance_id}"):
                        self._cloud.terminate([instance_id])
                except Gone:
                    continue

    def replace(self, instance_id: str) -> None:
        """Have the group of an instance replace it."""
        with self._faults.call("replace"), as_aws("marking unhealthy"):
            self._cloud.set_unhealthy(instance_id)
