"""Turns that only look: the same decision on a memory of its own, and hands that ask nothing.

A fleet that observes, or is paused, is decided about every minute; each change that AWS would have
been asked for is refused here, which the turn takes as any refusal: it has not happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.permission import Control, Permission
from spotkeeper.ports import AtRiskNote, FleetStates, Lease, Observed, Ports


def permitted(ports: Ports, fleet: Fleet, now: datetime) -> tuple[Ports, Control]:
    """Return the ports that a fleet's turn may use now, and what operators said of the fleet."""
    control = ports.controls.of(fleet.name)
    permission = control.permission(fleet.mode, now)
    if permission is Permission.ACT:
        return ports, control
    observer = _Observer()
    pause = control.pause if permission is Permission.PAUSED else None
    paused_h = (now - pause.at).total_seconds() / 3600 if pause else 0.0
    states = _ObservedStates(ports.states, permission, paused_h)
    ports = replace(ports, writer=observer, instances=observer, states=states, owner="")
    return ports, control


class _Observer:
    """Changes nothing; every method raises `Observed`."""

    def set_desired(self, group: str, desired: int) -> None:
        raise Observed(f"{group}: desired {desired}")

    def end(self, instance_id: str) -> None:
        raise Observed(f"end {instance_id}")

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        raise Observed(f"{group}: replace {', '.join(instance_ids)}")

    def suspend_az_rebalance(self, group: str) -> None:
        raise Observed(f"{group}: suspend AZRebalance")

    def claim(self, group: str) -> None:
        raise Observed(f"{group}: claim")

    def resume_launch(self, group: str) -> None:
        raise Observed(f"{group}: resume Launch")

    def drain(self, instance_ids: Sequence[str], gone_at: datetime, group: str) -> None:
        raise Observed(f"{group}: drain {', '.join(instance_ids)} by {gone_at:%H:%M:%S}")

    def unmark(self, instance_ids: Sequence[str]) -> None:
        raise Observed(f"stop draining {', '.join(instance_ids)}")

    def terminate(self, instance_ids: Sequence[str]) -> None:
        raise Observed(f"terminate {', '.join(instance_ids)}")

    def replace(self, instance_id: str) -> None:
        raise Observed(f"replace {instance_id}")


@dataclass(frozen=True, slots=True)
class _ObservedStates:
    """States under another name, or an acting turn would remember asks that never were."""

    states: FleetStates
    permission: Permission
    paused_h: float

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        lease = self.states.acquire(f"{fleet}/observed", controller, now, note)
        return lease and replace(lease, permission=self.permission, paused_h=self.paused_h)

    def commit(
        self,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
        *,
        release: bool = True,
    ) -> bool:
        return self.states.commit(lease, memory, now, release=release)

    def release(self, lease: Lease) -> None:
        self.states.release(lease)

    def record(self, record: DecisionRecord) -> None:
        self.states.record(record)
