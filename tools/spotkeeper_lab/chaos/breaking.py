"""How each fault begins and ends, and which calls AWS refuses while it lasts."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from spotkeeper_lab.chaos.story.scenario import LAUNCH_TEXTS, Fault, Kind
from spotkeeper_lab.cloud.values import CloudError, CloudEvent, EventKind
from spotkeeper_lab.cloud.words import IN_SERVICE, ON_DEMAND_DRY, SPOT_DRY

if TYPE_CHECKING:
    from spotkeeper_lab.chaos.world import World

LONGEST_BOOT_S = 40.0


def begin(world: "World", fault: Fault) -> None:
    """Let a fault begin."""
    if start := _BEGINS.get(fault.kind):
        start(world, fault)


def end(world: "World", fault: Fault) -> None:
    """Let a fault end."""
    if stop := _ENDS.get(fault.kind):
        stop(world, fault)


# --- instances ------------------------------------------------------------------------------------


def _share(world: "World", group: str, share: float) -> list[str]:
    """Some instances of a group that are in service, at least one if there is any."""
    there = [i.instance_id for i in world.cloud.group(group).instances if i.state == IN_SERVICE]
    return world.rng.sample(there, min(len(there), max(1, round(share * len(there)))))


def _take(world: "World", fault: Fault) -> None:
    world.cloud.reclaim(_share(world, world.spot, fault.value), world.now_s + 120.0)


def _take_at_once(world: "World", fault: Fault) -> None:
    world.cloud.reclaim(_share(world, world.spot, fault.value), world.now_s)


def _dry(world: "World", fault: Fault) -> None:
    world.cloud.fail_launches(world.spot, fault.at_s, fault.end_s, SPOT_DRY)
    _take(world, fault)


def _on_demand_dry(world: "World", fault: Fault) -> None:
    text = ON_DEMAND_DRY.format(type="g5.xlarge", zone="us-east-1a")
    world.cloud.fail_launches(world.on_demand, fault.at_s, fault.end_s, text)


def _refused(world: "World", fault: Fault) -> None:
    text = LAUNCH_TEXTS[int(fault.value * len(LAUNCH_TEXTS)) % len(LAUNCH_TEXTS)]
    world.cloud.fail_launches(world.spot, fault.at_s, fault.end_s, text)
    _take(world, fault)


def _boot_loop(world: "World", fault: Fault) -> None:
    """Take what starts, again and again, until the fault is over."""
    if fault.kind not in world.active:
        return
    starting = [
        view.instance_id
        for view in world.cloud.group(world.spot).instances
        if view.state != IN_SERVICE and world.now_s - view.launched_s > LONGEST_BOOT_S
    ]
    world.cloud.reclaim(starting, world.now_s)
    world.enter(world.now_s + 10.0, lambda: _boot_loop(world, fault))


def _begin_boot_loop(world: "World", fault: Fault) -> None:
    _take_at_once(world, fault)
    _boot_loop(world, fault)


def _empty_warning(world: "World", fault: Fault) -> None:
    for instance_id in _share(world, world.spot, fault.value):
        _post(world, EventKind.WARNING, instance_id)


def _foreign(world: "World", fault: Fault) -> None:
    for number in range(1 + int(20 * fault.value)):
        at_s = world.now_s + world.rng.uniform(0.0, 60.0)
        instance_id = f"i-0f00{number:013x}"
        world.enter(at_s, partial(_post, world, EventKind.WARNING, instance_id))


def _post(world: "World", kind: EventKind, instance_id: str) -> None:
    now_s = world.now_s
    event = CloudEvent(kind=kind, at_s=now_s, deliver_s=now_s, group="", instance_id=instance_id)
    world.event(world.events.of_cloud(event))


def _rebalance(world: "World", fault: Fault) -> None:
    for instance_id in _share(world, world.spot, fault.value):
        event = world.events.of_cloud(
            CloudEvent(
                kind=EventKind.WARNING,
                at_s=world.now_s,
                deliver_s=world.now_s,
                group="",
                instance_id=instance_id,
            )
        )
        event["detail-type"] = "EC2 Instance Rebalance Recommendation"
        event["detail"] = {"instance-id": instance_id}
        world.event(event)


def _bad_spot(world: "World", fault: Fault) -> None:
    """Break the image for as many as the replacements of an hour can mend."""
    world.cloud.break_image(world.spot, fault.at_s, fault.end_s)
    taken = _share(world, world.spot, fault.value)[: world.replacements_an_hour]
    world.cloud.reclaim(taken, world.now_s + 120.0)


def _bad_on_demand(world: "World", fault: Fault) -> None:
    world.cloud.break_image(world.on_demand, fault.at_s, fault.end_s)


def _end_some(world: "World", fault: Fault) -> None:
    """Terminate instances as an operator does, whose role needs no mark."""
    for instance_id in _share(world, world.spot, fault.value / 2):
        world.cloud.kill(instance_id)


def _even_out(world: "World", fault: Fault) -> None:
    """End one instance as AZRebalance does, and launch another."""
    for instance_id in _share(world, world.spot, 0.0)[:1]:
        if "AZRebalance" not in world.cloud.group(world.spot).suspensions:
            world.cloud.set_unhealthy(instance_id)
    del fault


# --- workers --------------------------------------------------------------------------------------


def _hang(world: "World", fault: Fault) -> None:
    for instance_id in _share(world, world.spot, fault.value / 2):
        world.hung[instance_id] = world.now_s
        if Kind.WRONG_DOCUMENT in world.active:
            world.hung_unseen.add(instance_id)
        world.force.hang(instance_id)


def _mute(world: "World", fault: Fault) -> None:
    del fault
    there = sorted(world.force.instances)
    world.mute = set(world.rng.sample(there, len(there) // 2))
    world.muted |= world.mute


def _unmute(world: "World", fault: Fault) -> None:
    del fault
    world.mute = set()


def _skew(world: "World", fault: Fault) -> None:
    world.logs.ahead_s = 0.004 if fault.value < 0.5 else 1.5  # noqa: PLR2004


def _unskew(world: "World", fault: Fault) -> None:
    del fault
    world.logs.ahead_s = 0.0


# --- state, documents, operators ------------------------------------------------------------------


def _lose_state(world: "World", fault: Fault) -> None:
    del fault
    key = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "state"}}
    world.table.delete_item(Key=key)


def _spoil_state(world: "World", fault: Fault) -> None:
    item = dict(world.state_item())
    spoilt = {"availability_memory": {"S": "{"}, "health_memory": {"S": "{"}}
    if fault.value < 0.3:  # noqa: PLR2004
        spoilt["availability_notes"] = {"L": [{"S": "{"}]}  # type: ignore[dict-item]
    if fault.value > 0.7:  # noqa: PLR2004
        spoilt["availability_written"] = {"S": "2026-01-01T00:00:00"}
    if item:
        world.table.put_item(Item={**item, **spoilt})


def _ask(world: "World", fault: Fault) -> None:
    spot = world.cloud.group(world.spot)
    asked = int(fault.value * spot.maximum)
    if asked == spot.desired:
        return  # Nothing changes: nobody can see that it was asked for.
    try:
        world.cloud.set_desired(world.spot, asked)
    except CloudError:
        return
    world.operator_asked(asked)


def _close(world: "World", fault: Fault) -> None:
    del fault
    world.closed_at = world.asked
    world.cloud.set_bounds(world.spot, 0, 0)
    world.operator_asked(0)


def _reopen(world: "World", fault: Fault) -> None:
    """Give the group its maximum back; where nobody sizes it by load, its size, too."""
    del fault
    world.cloud.set_bounds(world.spot, 0, world.scenario.group_maximum)
    if not world.scenario.sized:
        world.cloud.set_desired(world.spot, world.closed_at)
        world.operator_asked(world.closed_at)


def _suspend(world: "World", fault: Fault) -> None:
    world.cloud.suspend(world.spot, "Launch")
    _take(world, fault)


def _resume(world: "World", fault: Fault) -> None:
    del fault
    world.cloud.resume(world.spot, "Launch")


def _spoil_document(world: "World", fault: Fault) -> None:
    del fault
    world.documents["ocr"] = '{"version": 1}'


def _mend_document(world: "World", fault: Fault) -> None:
    del fault
    world.mend_documents()


type _Change = Callable[["World", Fault], None]

_BEGINS: Mapping[Kind, _Change] = {
    Kind.LOSS: _take,
    Kind.UNWARNED_LOSS: _take_at_once,
    Kind.SPOT_DRY: _dry,
    Kind.ON_DEMAND_DRY: _on_demand_dry,
    Kind.LAUNCH_REFUSED: _refused,
    Kind.BAD_SPOT_IMAGE: _bad_spot,
    Kind.BAD_ON_DEMAND_IMAGE: _bad_on_demand,
    Kind.BOOT_LOOP: _begin_boot_loop,
    Kind.EMPTY_WARNING: _empty_warning,
    Kind.FOREIGN_EVENTS: _foreign,
    Kind.REBALANCE: _rebalance,
    Kind.HANG: _hang,
    Kind.HALF_LOGS: _mute,
    Kind.CLOCKS: _skew,
    Kind.STATE_LOST: _lose_state,
    Kind.STATE_UNREADABLE: _spoil_state,
    Kind.OPERATOR_DESIRED: _ask,
    Kind.OPERATOR_MAXIMUM: _close,
    Kind.OPERATOR_SUSPENDS: _suspend,
    Kind.OPERATOR_ENDS: _end_some,
    Kind.WRONG_DOCUMENT: _spoil_document,
    Kind.ZONES_EVENED: _even_out,
}
_ENDS: Mapping[Kind, _Change] = {
    Kind.HALF_LOGS: _unmute,
    Kind.CLOCKS: _unskew,
    Kind.OPERATOR_MAXIMUM: _reopen,
    Kind.OPERATOR_SUSPENDS: _resume,
    Kind.WRONG_DOCUMENT: _mend_document,
}
