"""A fleet on a simulated cloud, driven by the real turns, shown as a table of steps."""

from collections.abc import Callable, Sequence

from spotkeeper.domain.decision import AvailabilityFigures, Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.interruption import Interruption, InterruptionKind
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds
from spotkeeper_lab.backtest.deployed import Replay
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import Physics, two_groups
from spotkeeper_lab.fakes import FakeStates, FakeWakeUps, Faults, fake_ports, instant, seconds
from spotkeeper_lab.traces.market import market_of
from tests.builders import counted

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"
SPOT, ON_DEMAND = "ocr-spot", "ocr-on-demand"
DAY_S = 86_400.0
PLENTY = ((0.0, 99),)
NOTHING = ((0.0, 0),)


class FakeFleet:
    """A spot group of `target` on two pools, an on-demand group beside it, one fleet.

    Every step checks what must hold at any time; `table` tells what happened.
    """

    def __init__(
        self,
        *,
        target: int = 4,
        a: Sequence[tuple[float, int]] = PLENTY,
        b: Sequence[tuple[float, int]] = NOTHING,
        physics: Physics | None = None,
        policy: AvailabilityPolicy | None = None,
    ) -> None:
        self.target = target
        self.faults = Faults()
        specs = two_groups(SPOT, ON_DEMAND, pools=(A, B), maximum=40, desired=target)
        self.cloud = Cloud(
            market_of("golden", DAY_S, {A: a, B: b}), specs, physics or Physics(cold_start_s=120)
        )
        self.states = FakeStates(self.faults)
        self.wake_ups = FakeWakeUps(self.faults)
        self.ports = fake_ports(self.cloud, self.faults, states=self.states, wake_ups=self.wake_ups)
        self.fleet = Fleet(
            name="ocr",
            spot_group=SPOT,
            on_demand_group=ON_DEMAND,
            bounds=Bounds(spot_min=0, spot_max=40, on_demand_max=20),
            availability=policy or AvailabilityPolicy(),
        )
        self.replay = Replay(
            cloud=self.cloud, fleet=self.fleet, ports=self.ports, wake_ups=self.wake_ups
        )

    def to(self, at_s: float) -> None:
        """Let time pass up to and with an instant."""
        while (next_s := self.replay.next_s()) <= at_s:
            self.replay.step(next_s)
            self._check()
        self.cloud.advance(at_s)

    def _check(self) -> None:
        on_demand = self.cloud.group(ON_DEMAND)
        assert 0 <= on_demand.desired <= self.fleet.bounds.on_demand_max
        for record in self._turns()[-1:]:
            assert record.reason
            assert record.rule
            seen = counted(record)
            assert _serving_after(seen) >= seen.spot_desired or not seen.released

    @property
    def serving(self) -> int:
        """Instances in service in both groups; a detached one is in neither."""
        views = (self.cloud.group(SPOT), self.cloud.group(ON_DEMAND))
        return sum(i.state == "InService" for view in views for i in view.instances)

    @property
    def ready(self) -> int:
        """Instances in service, detached ones too."""
        return sum(i.state == "InService" for i in self.cloud.instances())

    @property
    def on_demand(self) -> int:
        return self.cloud.group(ON_DEMAND).desired

    def spot_ids(self) -> list[str]:
        """The instances of the spot group, oldest first."""
        return [i.instance_id for i in self.cloud.group(SPOT).instances]

    def table(self) -> list[str]:
        """One line for each turn that did something: seconds, action, rule, on-demand after."""
        return [_line(r) for r in self._turns() if r.action != "hold"]

    def _turns(self) -> list[DecisionRecord]:
        return [r for r in self.states.records if r.controller is Controller.AVAILABILITY]

    def alarms(self) -> set[str]:
        """Every alarm that a turn raised."""
        return {alarm for record in self.states.records for alarm in record.alarms}

    def total(self, figure: Callable[[AvailabilityFigures], int]) -> int:
        """A figure added up over all turns."""
        return sum(figure(counted(record)) for record in self._turns())

    def asked(self) -> list[str]:
        """All requests to AWS, in order."""
        return [o.request.text() for record in self.states.records for o in record.outcomes]


def warning(*instance_ids: str, at_s: float) -> Interruption:
    return Interruption(
        kind=InterruptionKind.INTERRUPTION_WARNING, at=instant(at_s), instance_ids=instance_ids
    )


def _serving_after(seen: AvailabilityFigures) -> int:
    """What serves after a release, which takes those that do not serve first."""
    idle = seen.on_demand_desired + seen.released - seen.on_demand_serving
    return seen.spot_serving + seen.on_demand_serving - max(0, seen.released - idle)


def _line(record: DecisionRecord) -> str:
    wanted = counted(record).on_demand_desired
    return f"{seconds(record.at):g} {record.action} ({record.rule}) on-demand {wanted}"
