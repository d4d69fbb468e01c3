"""A stage for health turns: a simulated cloud, a load table and what turns remember."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.load.digest import SearchLog, Status, digest
from spotkeeper.domain.load.load import Cluster
from spotkeeper.domain.permission import Control
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper.turns.check_health import check_health
from spotkeeper.turns.turn import TurnReport
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Physics, two_groups
from spotkeeper_lab.fakes import (
    FakeLoadTable,
    FakeRequestQueues,
    FakeStates,
    Faults,
    fake_ports,
    instant,
)
from spotkeeper_lab.traces.market import market_of
from tests.builders import fleet

if TYPE_CHECKING:
    from spotkeeper.ports import FleetError

POOL = "us-east-1a/g5.xlarge"


START_S = 3600.0


class Controls:
    """The operators' control, unless `error` prevents reading it."""

    def __init__(self, said: Control) -> None:
        self.said = said
        self.error: FleetError | None = None

    def of(self, fleet: str) -> Control:
        """Return the same control for every fleet."""
        del fleet
        if self.error:
            raise self.error
        return self.said


class Stage:
    """A fleet of `spot` instances in service, its ports, and a minute hand."""

    def __init__(self, spot: int = 4, sizing: SizingPolicy | None = None) -> None:
        self.faults = Faults()
        self.cloud = Cloud(
            market_of("health", 86_400.0, {POOL: [(0.0, 99)]}),
            two_groups(pools=(POOL,), maximum=40, desired=spot),
            Physics(),
        )
        self.cloud.advance(START_S)
        self.fleet = fleet(sizing=sizing)
        self.states = FakeStates(self.faults)
        self.table, self.queues = FakeLoadTable(), FakeRequestQueues(self.faults)
        ports = fake_ports(self.cloud, self.faults, states=self.states)
        self.ports = replace(ports, load=self.table, queues=self.queues)

    @property
    def spot(self) -> list[str]:
        """The spot group's instances that serve, oldest first."""
        members = self.cloud.group("spot").instances
        return [i.instance_id for i in members if i.state == "InService"]

    def serve(
        self, until_minute: int, shares: Mapping[str, float], status: Status = Status.OK
    ) -> None:
        """Have instances be busy for a share of the five minutes up to a minute."""
        for slot in range(30):
            end_s = START_S + 60 * until_minute - 10 * slot
            logs = [served(i, end_s, 10 * share, status) for i, share in shares.items()]
            self.table.add(digest(logs, instant(end_s), "ocr"))

    def turn(self, minute: int, fleets: Sequence[Fleet] = ()) -> TurnReport:
        self.cloud.advance(START_S + 60 * minute)
        report = check_health(fleets or [self.fleet], self.ports, instant(START_S + 60 * minute))
        if report.defects:
            raise ExceptionGroup(f"the turn of minute {minute}", report.defects)
        return report


def served(
    instance_id: str,
    end_s: float,
    service_s: float,
    status: Status = Status.OK,
    waited_s: float = 1.0,
) -> SearchLog:
    started = instant(end_s - service_s)
    return SearchLog(
        request_id=f"{instance_id}-{end_s:g}",
        worker_id=f"gpu-{instance_id}",
        cluster=Cluster.AWS if instance_id else Cluster.ONPREM,
        instance_id=instance_id,
        enqueued_at=started - timedelta(seconds=waited_s),
        started_at=started,
        finished_at=instant(end_s),
        status=status,
    )


def hung(stage: Stage, busy: float = 0.9) -> str:
    """Bring the first instance to its second observation as silent; the turn of minute 7 is due."""
    victim, *well = stage.spot
    for minute in range(7):
        stage.serve(minute, dict.fromkeys(stage.spot if minute < 2 else well, busy))
        stage.turn(minute)
    stage.serve(7, dict.fromkeys(well, busy))
    return victim
