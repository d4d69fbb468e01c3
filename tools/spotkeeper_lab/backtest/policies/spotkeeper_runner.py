"""The deployed policy in a backtest: the checker's own turns, through fake ports, on a market.

Turns happen when they would in production: once in every minute, on every event when it is
delivered, and when a turn asked for the next one. The spot group is asked for the target
throughout; on-demand is what the turns make it.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import Ports
from spotkeeper.turns.check_availability import check_availability, handle_interruption
from spotkeeper.turns.turn import TurnReport
from spotkeeper_lab.backtest.accounting import PaidLife, RunResult, account
from spotkeeper_lab.backtest.policies.deployed import _KINDS, cloud_of, fleet_of, interruption_of
from spotkeeper_lab.backtest.policies.values import Settings
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudEvent,
    InstanceView,
    Purchase,
)
from spotkeeper_lab.fakes.groups import FakeGroups
from spotkeeper_lab.fakes.histories import FakeLoadHistories
from spotkeeper_lab.fakes.load_table import FakeLoadTable
from spotkeeper_lab.fakes.request_queues import FakeRequestQueues
from spotkeeper_lab.fakes.states import FakeStates
from spotkeeper_lab.fakes.virtual_time import instant
from spotkeeper_lab.fakes.wake_ups import FakeWakeUps
from spotkeeper_lab.traces.market import Market

TURN_EVERY_S = 60.0


def run(window: Market, world: World, settings: Settings) -> RunResult:
    """Try the deployed policy over one window."""
    replay = replay_of(window, world, settings)
    replay.run(window.end_s)
    return account(lives_of(replay.cloud, window.end_s), window, world)


@dataclass(slots=True, kw_only=True)
class Replay:
    """A cloud and the turns that keep one fleet on it whole; `turns` counts them.

    The turn of a minute comes `jitter` after its beginning, as that of a schedule does.
    """

    cloud: Cloud
    fleet: Fleet
    ports: Ports
    wake_ups: FakeWakeUps
    jitter: Callable[[], float] = lambda: 0.0
    turns: int = 0
    _on_the_way: list[tuple[float, int, CloudEvent]] = field(default_factory=list)
    _told: int = 0
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
            event = heapq.heappop(self._on_the_way)[2]
            self.turns += 1
            _done(
                handle_interruption(interruption_of(event), [self.fleet], self.ports, instant(at_s))
            )
        for _ in range(self.wake_ups.take(at_s)):
            self._turn(at_s)
        if at_s >= self._next_turn_s:
            self._minute_s += TURN_EVERY_S
            self._next_turn_s = self._minute_s + self.jitter()
            self._turn(at_s)

    def _turn(self, at_s: float) -> None:
        self.turns += 1
        _done(check_availability([self.fleet], self.ports, instant(at_s)))

    def _take(self, at_s: float) -> None:
        for event in self.cloud.advance(at_s):
            if event.kind not in _KINDS:
                continue
            self._told += 1
            heapq.heappush(self._on_the_way, (event.deliver_s, self._told, event))


def replay_of(
    window: Market, world: World, settings: Settings, *, states: FakeStates | None = None
) -> Replay:
    """A replay of a world from its start; `states` keep its decision records if wanted."""
    cloud = cloud_of(window, world)
    groups, states = FakeGroups(cloud), states or FakeStates(remember=0)
    wake_ups = FakeWakeUps()
    ports = Ports(
        groups=groups,
        writer=groups,
        instances=groups,
        states=states,
        load=FakeLoadTable(),
        histories=FakeLoadHistories(),
        queues=FakeRequestQueues(),
        wake_ups=wake_ups,
    )
    fleet = fleet_of(world, settings)
    chance = random.Random(world.seed)
    return Replay(
        cloud=cloud,
        fleet=fleet,
        ports=ports,
        wake_ups=wake_ups,
        jitter=lambda: chance.uniform(0.0, world.turn_jitter_s),
    )


def lives_of(cloud: Cloud, end_s: float) -> list[PaidLife]:
    """Every instance as the accounting counts it."""
    return [_life(view, end_s) for view in cloud.history()]


def _life(view: InstanceView, end_s: float) -> PaidLife:
    """A draining worker still works until its instance goes: it counts, as the peers' do."""
    ended_s = end_s if view.ended_s is None else view.ended_s
    return PaidLife(
        pool=view.pool if view.purchase is Purchase.SPOT else None,
        launched_s=view.launched_s,
        ready_s=ended_s if view.in_service_s is None else view.in_service_s,
        ended_s=ended_s,
        lost=view.lost,
    )


def _done(report: TurnReport) -> None:
    """Raise what nobody foresaw: a backtest of it would say nothing."""
    if report.defects:
        raise ExceptionGroup("a turn met what nobody foresaw", report.defects)
