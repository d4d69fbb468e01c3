"""How the market moves in the simulated cloud: what it takes back, and whom it warns."""

import random
from collections.abc import Iterator, Sequence

from spotkeeper_lab.cloud.capacity import MarketMove, Offer, moves
from spotkeeper_lab.cloud.engine import LOSS, RETRY
from spotkeeper_lab.cloud.group import SimulatedMachine
from spotkeeper_lab.cloud.lives import SPOT_TAKEN, CloudLives
from spotkeeper_lab.cloud.values import EventKind, GroupSpec, Physics, Purchase
from spotkeeper_lab.traces.market import Market


class CloudMarket(CloudLives):
    """Auto Scaling groups over a market."""

    def __init__(
        self, market: Market, groups: Sequence[GroupSpec], physics: Physics, seed: int = 0
    ) -> None:
        super().__init__(groups, physics, seed)
        self._moves: Iterator[MarketMove] = iter(())
        self._move: MarketMove | None = None
        self._take_market(market)
        self._happen()

    def _next_happening(self) -> float:
        task = super()._next_happening()
        return min(task, self._move.at_s) if self._move else task

    def _happen(self) -> None:
        """Do all that is due now: losses, the market's moves, starts, ends, launches, retries."""
        self._work(LOSS)
        while self._move and self._move.at_s <= self.now_s:
            self._follow(self._move)
            self._move = next(self._moves, None)
        self._work(RETRY)
        self._fill_dirty()

    def set_market(self, market: Market) -> None:
        """Exchange the market; its times are the cloud's, and its capacity holds from now on."""
        self._take_market(market)
        self._happen()

    def _take_market(self, market: Market) -> None:
        notice_s = self.physics.notice_s
        self._offers = {pool: Offer(market.of(pool), notice_s) for pool in market.pools}
        self._held = {pool: self._held.get(pool, {}) for pool in market.pools}
        for group in self._groups.values():
            if group.spec.purchase is Purchase.SPOT:
                for pool in group.spec.pools:
                    market.of(pool)
        self._capacity = {pool: market.capacity(pool, self.now_s) for pool in market.pools}
        self._moves = moves(market, self.now_s, notice_s)
        self._move = next(self._moves, None)
        for pool in market.pools:
            self._doom(pool, self._capacity[pool], self.now_s)

    def _follow(self, move: MarketMove) -> None:
        if not move.announced:
            self._capacity[move.pool] = move.capacity
            self._wake(move.pool)
        self._doom(move.pool, move.capacity, move.due_s)

    def _doom(self, pool: str, capacity: int, due_s: float) -> None:
        """Choose the instances that a drop takes: the newest of those not yet chosen."""
        standing = [m for m in self._held[pool].values() if m.doomed_s is None]
        for machine in reversed(standing[capacity:]):
            self._take_back(machine, due_s)

    def _take_back(self, machine: SimulatedMachine, due_s: float) -> None:
        machine.doomed_s = due_s
        if due_s <= self.now_s:
            self._lose(machine)
            return
        self._at(due_s, LOSS, lambda: self._lose(machine))
        chance = random.Random(f"{self._seed}/notice/{machine.number}").random()
        if self.physics.notice_s > 0 and chance >= self.physics.notice_lost:
            machine.warned_s = self.now_s
            self._warned[machine.instance_id] = machine
            self._touch(machine)
            group = machine.group.spec.name if machine.group else ""
            self._tell(EventKind.WARNING, group, machine.instance_id)

    def _lose(self, machine: SimulatedMachine) -> None:
        if machine.ended_s is None:
            machine.lost = True
            self._taken.append(machine)
            self._die(machine, SPOT_TAKEN)
