"""The deployed policy in a backtest: the checker's own turns, through fake ports, on a market.

Turns happen when they would in production: once in every minute, on every event when it is
delivered, and when a turn requested the next one. The spot group wants the target
throughout; on-demand is what the turns make it.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from spotkeeper.border.events import parse_event
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.availability import AvailabilityPolicy, RebalanceMeaning
from spotkeeper.domain.settings.sizing import Bounds
from spotkeeper.ports import Ports
from spotkeeper.turns.check_availability import check_availability, handle_interruption
from spotkeeper.turns.turn import TurnReport
from spotkeeper_lab.aws.wire import ACCOUNT, Events
from spotkeeper_lab.backtest.world import PaidLife, RunResult, Settings, World, account
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudEvent, EventKind, Physics, Purchase, two_groups
from spotkeeper_lab.fakes import TIME, FakeStates, FakeWakeUps, fake_ports, instant
from spotkeeper_lab.traces.market import Market

SPOT, ON_DEMAND = "spot", "on-demand"
TURN_EVERY_S = 60.0


def fleet_of(world: World, settings: Settings) -> Fleet:
    """The fleet of a world: its target on spot, as much again on demand at most.

    Its operator knows whether on-demand is warm and how long before a loss warnings arrive.
    """
    warm = world.warm_pool > 0 and (world.warm_start_s or 0.0) < world.cold_start_s
    chosen: dict[str, Any] = {**settings, "on_demand_warm": warm}
    chosen["notice_s"] = round(world.notice_s)
    if "rebalance" in chosen:
        chosen["rebalance"] = RebalanceMeaning(str(chosen["rebalance"]))
    return Fleet(
        name="backtest",
        spot_group=SPOT,
        on_demand_group=ON_DEMAND,
        bounds=Bounds(spot_min=0, spot_max=2 * world.target, on_demand_max=world.target),
        availability=replace(AvailabilityPolicy(), **chosen),
    )


def cloud_of(window: Market, world: World, desired: int | None = None) -> Cloud:
    """The cloud of a world: two groups, of which the spot group wants `desired`, or the target."""
    wanted = world.target if desired is None else desired
    groups = two_groups(
        SPOT, ON_DEMAND, pools=window.pools, maximum=2 * world.target, desired=wanted
    )
    shared = {field.name for field in fields(World)} & {field.name for field in fields(Physics)}
    physics = Physics(**{name: getattr(world, name) for name in shared})
    return Cloud(window, groups, physics, world.seed)


def run(window: Market, world: World, settings: Settings) -> RunResult:
    """Try the deployed policy over one window."""
    replay = replay_of(window, world, settings)
    replay.run(window.end_s)
    return account(lives(replay.cloud, window.end_s), window, world)


def lives(cloud: Cloud, end_s: float) -> Iterator[PaidLife]:
    """Every instance of a cloud; a draining one works until it goes, and counts as the peers' do.

    Those that are there at the end end there.
    """
    for view in cloud.history():
        ended_s = end_s if view.ended_s is None else view.ended_s
        yield PaidLife(
            pool=view.pool if view.purchase is Purchase.SPOT else None,
            launched_s=view.launched_s,
            ready_s=ended_s if view.in_service_s is None else view.in_service_s,
            ended_s=ended_s,
            lost=view.lost,
        )


@dataclass(slots=True, kw_only=True)
class Replay:
    """A cloud and the turns that keep one fleet on it whole.

    A minute's turn starts `jitter` after the minute, as a schedule's does.
    """

    cloud: Cloud
    fleet: Fleet
    ports: Ports
    wake_ups: FakeWakeUps
    jitter: Callable[[], float] = lambda: 0.0
    _on_the_way: list[tuple[float, int, CloudEvent]] = field(default_factory=list)
    _sent: int = 0
    _events: Events = field(default_factory=lambda: Events(TIME))
    _minute_s: float = 0.0
    _next_turn_s: float = 0.0

    def run(self, end_s: float) -> None:
        """Let time pass to the end, with every turn that is due before it."""
        while (at_s := self.next_s()) < end_s:
            self.step(at_s)
        self._take(end_s)

    def next_s(self) -> float:
        """The next instant at which something happens or a turn is due."""
        happening = self.cloud.next_s()
        due = [self._next_turn_s, *self.wake_ups.due_s[:1]]
        return min(due) if happening is None else min(*due, happening)

    def step(self, at_s: float) -> None:
        """Let an instant happen: its events are handled as they arrive, then the minute's turn."""
        self._take(at_s)
        while self._on_the_way and self._on_the_way[0][0] <= at_s:
            event = self._events.of_cloud(heapq.heappop(self._on_the_way)[2])
            if interruption := parse_event(event, ACCOUNT):
                done(handle_interruption(interruption, [self.fleet], self.ports, instant(at_s)))
        turns = self.wake_ups.take(at_s)
        if at_s >= self._next_turn_s:
            self._minute_s += TURN_EVERY_S
            self._next_turn_s = self._minute_s + self.jitter()
            turns += 1
        for _ in range(turns):
            done(check_availability([self.fleet], self.ports, instant(at_s)))

    def _take(self, at_s: float) -> None:
        for event in self.cloud.advance(at_s):
            if event.kind is EventKind.FULFILLED:
                continue
            self._sent += 1
            heapq.heappush(self._on_the_way, (event.deliver_s, self._sent, event))


def replay_of(
    window: Market,
    world: World,
    settings: Settings,
    *,
    states: FakeStates | None = None,
    desired: int | None = None,
) -> Replay:
    """A replay of a world from its start; `states` keep its decision records if wanted."""
    cloud = cloud_of(window, world, desired)
    chance, wake_ups = random.Random(world.seed), FakeWakeUps()
    return Replay(
        cloud=cloud,
        fleet=fleet_of(world, settings),
        ports=fake_ports(cloud, states=states or FakeStates(remember=0), wake_ups=wake_ups),
        wake_ups=wake_ups,
        jitter=lambda: chance.uniform(0.0, world.turn_jitter_s),
    )


def done(report: TurnReport) -> None:
    """Raise the errors that no code expects: a backtest of them would say nothing."""
    if report.defects:
        raise ExceptionGroup("a turn failed by a defect", report.defects)
