"""What the account knows of instances beside the calls: tags and membership, for its policies."""

from spotkeeper_lab.cloud.values import CloudError, InstanceView
from spotkeeper_lab.endpoint.world import World


def instance_tags(world: World, instance_id: str) -> dict[str, str]:
    """The tags of an instance as policies see them; none for one that is not known."""
    view = _view(world, instance_id)
    if view is None:
        return {}
    tags = {"aws:autoscaling:groupName": view.group} if view.group else {}
    if view.gone_s is not None:
        tags["spotkeeper:draining"] = world.time.at(view.gone_s).isoformat()
    return {**view.tags, **tags}


def member_of(world: World, instance_id: str) -> str:
    """The group that an instance is in, or nothing."""
    view = _view(world, instance_id)
    return view.group if view else ""


def _view(world: World, instance_id: str) -> InstanceView | None:
    with world.now() as cloud:
        try:
            return cloud.instance(instance_id)
        except CloudError:
            return None
