"""What the fake groups show: the simulated cloud's views in the domain's words."""

from spotkeeper.adapters.errors import (
    SPOT_MARKED_STATUSES,
    SPOT_TAKEN_STATUSES,
    by_a_user,
    classify,
    classify_spot_status,
)
from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.ports import OWNER_TAG, SpotRequest
from spotkeeper_lab.cloud.values import Activity, GroupView, InstanceView, SpotRequestView
from spotkeeper_lab.cloud.words import CANCELLED, IN_SERVICE, PENDING, PENDING_WAIT
from spotkeeper_lab.fakes.virtual_time import instant

_PHASES = {PENDING: Phase.LAUNCHING, PENDING_WAIT: Phase.LAUNCHING, IN_SERVICE: Phase.IN_SERVICE}


def group_from(view: GroupView) -> Group:
    return Group(
        name=view.name,
        desired=view.desired,
        minimum=view.minimum,
        maximum=view.maximum,
        instances=tuple(_instance(instance) for instance in view.instances),
        suspended=frozenset(view.suspensions),
        owner=view.tags.get(OWNER_TAG, ""),
        suspended_by_aws=frozenset(p for p, why in view.suspensions.items() if not by_a_user(why)),
    )


def _instance(view: InstanceView) -> Instance:
    return Instance(
        instance_id=view.instance_id,
        pool=view.pool,
        phase=_PHASES.get(view.state, Phase.LEAVING),
        healthy=view.healthy,
    )


def ended_s(activity: Activity) -> float:
    return max(activity.start_s, activity.end_s or activity.start_s)


def has_failed(activity: Activity) -> bool:
    """Whether a launch failed; a cancelled one did if its message is known to say so."""
    return activity.status_code != CANCELLED or classify(activity.message)[1]


def failure_from(activity: Activity) -> LaunchFailure:
    failure_class, known = classify(activity.message)
    return LaunchFailure(
        at=instant(ended_s(activity)),
        failure_class=failure_class,
        message=activity.message,
        pool=activity.zone,
        known=known,
    )


def spot_request_from(view: SpotRequestView) -> SpotRequest:
    at, status = instant(view.updated_s), view.status_code
    failure_class = classify_spot_status(status)
    message = f"spot request {view.request_id}: {status}"
    return SpotRequest(
        request_id=view.request_id,
        instance_id=view.instance_id,
        failure=LaunchFailure(at=at, failure_class=failure_class, message=message)
        if failure_class
        else None,
        at_risk_since=at if status in SPOT_MARKED_STATUSES else None,
        taken=status in SPOT_TAKEN_STATUSES,
    )
