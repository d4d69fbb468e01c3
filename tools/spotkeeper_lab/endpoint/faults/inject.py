"""Carries faults out, in the world and on the ways from and to it."""

from typing import TYPE_CHECKING, Any

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Purchase
from spotkeeper_lab.cloud.words import ON_DEMAND_DRY, SPOT_DRY
from spotkeeper_lab.endpoint.faults.calls import FailingCalls
from spotkeeper_lab.endpoint.faults.deliveries import Deliveries
from spotkeeper_lab.endpoint.faults.values import (
    Calls,
    Capacity,
    Events,
    Fault,
    KillFunction,
    LoseInstances,
    OfferLoad,
    Quota,
    Rebalance,
    Refusal,
    RefuseLaunches,
    SearchLogs,
)
from spotkeeper_lab.endpoint.machines import Workers
from spotkeeper_lab.endpoint.seams.processes import kill_workers
from spotkeeper_lab.endpoint.settings import LabSettings
from spotkeeper_lab.endpoint.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

QUOTA = (
    "You have requested more vCPU capacity than your current vCPU limit of 16 allows for the "
    "instance bucket that the specified instance type belongs to. Launching EC2 instance failed."
)
CONFIGURATION = (
    "The image id '[ami-0123456789abcdef0]' does not exist. Launching EC2 instance failed."
)
PERMISSION = "You are not authorized to perform this operation. Launching EC2 instance failed."


class Faults:
    """Carries out what is ordered."""

    def __init__(
        self,
        settings: LabSettings,
        world: World,
        calls: FailingCalls,
        deliveries: Deliveries,
        workers: Workers,
    ) -> None:
        self._settings = settings
        self._world = world
        self._calls = calls

        self._how: dict[type[Any], Callable[[Any], str | None]] = {
            Capacity: self._capacity,
            LoseInstances: self._loss,
            Rebalance: self._rebalance,
            Quota: self._quota,
            RefuseLaunches: self._refuse,
            Calls: calls.order,
            KillFunction: self._kill,
            Events: deliveries.order,
            OfferLoad: lambda fault: workers.offer(fault.erlangs),
            SearchLogs: lambda fault: workers.stop(fault.stopped),
        }

    def order(self, fault: Fault) -> str:
        """Do it now; answers in a few words what was done."""
        return self._how[type(fault)](fault) or "ordered"

    def _kill(self, fault: KillFunction) -> str:
        if not fault.at_call:
            return f"{kill_workers(fault.function)} processes killed"
        self._calls.at_next(fault.at_call, lambda: kill_workers(fault.function))
        return f"to be killed once it has called {fault.at_call}"

    def _capacity(self, fault: Capacity) -> str:
        pools = fault.pools or tuple(self._world.capacities)
        self._world.set_capacity(pools, fault.capacity, fault.in_s)
        return f"{', '.join(pools)}: {fault.capacity}"

    def _loss(self, fault: LoseInstances) -> str:
        with self._world.now() as cloud:
            taken = fault.instances or self._newest(cloud, fault.count)
            cloud.reclaim(taken, cloud.now_s + fault.in_s)
        return ", ".join(taken) or "there is nothing to take"

    def _rebalance(self, fault: Rebalance) -> str:
        with self._world.now() as cloud:
            named = self._newest(cloud, fault.count)
            cloud.recommend(named)
        return ", ".join(named) or "there is nothing to recommend for"

    def _newest(self, cloud: Cloud, count: int) -> list[str]:
        """The newest spot instances that are not warned."""
        group = cloud.group(self._settings.spot_group)
        return [one.instance_id for one in group.instances if one.warned_s is None][-count:]

    def _quota(self, fault: Quota) -> str:
        with self._world.now() as cloud:
            cloud.set_quota(Purchase(fault.group), fault.vcpus)
        return "any number of vCPUs" if fault.vcpus is None else f"{fault.vcpus} vCPUs"

    def _refuse(self, fault: RefuseLaunches) -> str:
        spot = fault.group == "spot"
        name = self._settings.spot_group if spot else self._settings.on_demand_group
        zone, _, kind = next(iter(self._settings.pools)).partition("/")
        dry = SPOT_DRY if spot else ON_DEMAND_DRY.format(type=kind, zone=zone)
        texts = {
            Refusal.CAPACITY: dry,
            Refusal.QUOTA: QUOTA,
            Refusal.CONFIGURATION: CONFIGURATION,
            Refusal.PERMISSION: PERMISSION,
        }
        with self._world.now() as cloud:
            cloud.fail_launches(name, cloud.now_s, cloud.now_s + fault.for_s, texts[fault.why])
        return texts[fault.why]
