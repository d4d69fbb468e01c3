"""The fake of the group ports: what the adapter promises, without AWS and at full speed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from spotkeeper.adapters.errors import (
    SPOT_AT_RISK_STATUSES,
    by_a_user,
    classify,
    classify_spot_status,
)
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.ports import Gone, SpotRequest
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    PENDING,
    PENDING_WAIT,
    Activity,
    GroupView,
    InstanceView,
    SpotRequestView,
)
from spotkeeper_lab.fakes.faults import Faults, as_aws
from spotkeeper_lab.fakes.virtual_time import instant, seconds

_KEPT_FAILURES = 10_000
_PHASES = {PENDING: Phase.COMING, PENDING_WAIT: Phase.COMING, IN_SERVICE: Phase.IN_SERVICE}


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
            known = self._pictures[name] = (view, _group(view))
        return known[1]

    def failures(self, group: str, since: datetime) -> tuple[LaunchFailure, ...]:
        """List failed launches since an instant, newest first."""
        with self._faults.call("failures"), as_aws("reading scaling activities"):
            found = self._cloud.failures(group, seconds(since))
            return tuple(self._failure(activity) for activity in found)

    def _failure(self, activity: Activity) -> LaunchFailure:
        key = activity.activity_id
        if key not in self._failures:
            if len(self._failures) > _KEPT_FAILURES:
                self._failures.clear()
            self._failures[key] = _failure(activity)
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

    def troubled_spot_requests(self, since: datetime) -> tuple[SpotRequest, ...]:
        """List the spot requests that lose their instance."""
        with self._faults.call("troubled_spot_requests"):
            found = self._cloud.spot_requests(seconds(since))
            return tuple(_spot_request(request) for request in found)

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

    def resume_launch(self, group: str) -> None:
        """Let a group launch again after AWS stopped it."""
        with self._faults.call("resume_launch"), as_aws("resuming Launch"):
            self._cloud.resume(group, "Launch")

    def drain(self, instance_ids: Sequence[str], gone_at: datetime) -> None:
        """Tell instances when they will be gone."""
        with self._faults.call("drain"), as_aws("draining"):
            self._cloud.drain(instance_ids, seconds(gone_at))

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


def _group(view: GroupView) -> Group:
    return Group(
        name=view.name,
        desired=view.desired,
        minimum=view.minimum,
        maximum=view.maximum,
        instances=tuple(_instance(instance) for instance in view.instances),
        suspended=frozenset(view.suspensions),
        suspended_by_aws=frozenset(n for n, why in view.suspensions.items() if not by_a_user(why)),
    )


def _instance(view: InstanceView) -> Instance:
    return Instance(
        instance_id=view.instance_id,
        pool=view.pool,
        phase=_PHASES.get(view.state, Phase.LEAVING),
        healthy=view.healthy,
    )


def _failure(activity: Activity) -> LaunchFailure:
    failure_class, known = classify(activity.message)
    return LaunchFailure(
        at=instant(activity.start_s),
        failure_class=failure_class,
        message=activity.message,
        pool=activity.zone,
        known=known,
    )


def _spot_request(view: SpotRequestView) -> SpotRequest:
    at, status = instant(view.updated_s), view.status_code
    failure_class = classify_spot_status(status)
    message = f"spot request {view.request_id}: {status}"
    return SpotRequest(
        request_id=view.request_id,
        instance_id=view.instance_id,
        failure=LaunchFailure(at=at, failure_class=failure_class, message=message)
        if failure_class
        else None,
        at_risk_since=at if status in SPOT_AT_RISK_STATUSES else None,
    )
