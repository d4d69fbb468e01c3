"""The backtest against the demo: fake ports against boto3, moto and the deployed handlers.

On the same market, with the same target, both must decide the same in every turn.
"""

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from spotkeeper_lab.backtest.deployed import cloud_of, fleet_of, replay_of
from spotkeeper_lab.backtest.policies import deployed_settings
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.fakes import FakeStates, instant
from spotkeeper_lab.run.demo import LEAD_S, Day, DemoSettings, Scene
from spotkeeper_lab.traces.market import Market, generate
from spotkeeper_lab.traces.requests import RequestTrace

# Events a little late never meet a minute's turn: at the same instant, AWS promises no order.
NOTICED = World(
    target=4,
    cold_start_s=240.0,
    warm_start_s=60.0,
    warm_pool=4,
    notice_s=120.0,
    notice_lost=0.2,
    event_delay_s=20.0,
    on_demand_failure=0.1,
    seed=3,
)
SURPRISED = World(target=3, cold_start_s=120.0, event_delay_s=5.0, seed=1)


class FixedScene(Scene):
    """A fleet of the world's size, which no load resizes and no worker's silence touches."""

    @property
    def fleet_document(self) -> dict[str, object]:
        """What `fleet_of` gives the backtest, as an operator writes it."""
        world = NOTICED if self.first_desired == NOTICED.target else SURPRISED
        fleet = fleet_of(world, deployed_settings())
        return super().fleet_document | {
            "bounds": asdict(fleet.bounds),
            "availability": asdict(fleet.availability),
            "sizing": {"enabled": False},
            "worker_health": {"enabled": False},
        }


def scene_of(market: Market, world: World) -> Scene:
    """The demo's scene of a world: the same market, groups and physics, no requests."""
    nothing = np.array([], dtype=np.float64)
    requests = RequestTrace(name="none", arrival_s=nothing, service_s=nothing, end_s=market.end_s)
    settings = DemoSettings(
        market=market,
        requests=requests,
        hours=(market.end_s - LEAD_S) / 3600.0,
        seed=world.seed,
        incidents=False,
        physics=cloud_of(market, world).physics,
    )
    return FixedScene(
        settings=settings,
        market=market,
        requests=requests,
        workers_per_instance=1,
        physics=settings.physics,
        hooks=(),
        spot_min=0,
        spot_max=2 * world.target,
        first_desired=world.target,
    )


type Turn = tuple[float, str, str, float, float]


def turn_of(record: dict[str, Any], at_s: float) -> Turn:
    """When it was, what it did and why, and what both groups want after it."""
    seen = record["availability"]
    spot = seen["spot_desired"]
    return at_s, record["action"], record["reason"], seen["on_demand_desired"], spot


def demo_turns(market: Market, world: World) -> list[Turn]:
    """The availability controller's turns as the deployed handlers left them in the table."""
    scene = scene_of(market, world)
    with Day(scene).deployed() as day:
        day.run(lambda look: None)
    turns = [
        turn_of(record, (datetime.fromisoformat(record["at"]) - scene.start).total_seconds())
        for record in map(json.loads, day.records)
        if record["controller"] == "availability"
    ]
    # The demo ends with the turn of its last instant, the backtest before it.
    return [turn for turn in turns if turn[0] < market.end_s]


def backtest_turns(market: Market, world: World) -> list[Turn]:
    """The same turns, through the fake ports."""
    states = FakeStates()
    replay_of(market, world, deployed_settings(), states=states).run(market.end_s)
    return [
        turn_of(asdict(record), (record.at - instant(0.0)).total_seconds())
        for record in states.records
    ]


@pytest.mark.parametrize("world", [NOTICED, SURPRISED], ids=["noticed", "surprised"])
def test_on_a_generated_market_the_backtest_decides_as_the_deployed_handlers_do(
    world: World,
) -> None:
    market = generate(5, hours=24.0).window(6 * 3600.0, 2 * 3600.0)
    demo, backtest = demo_turns(market, world), backtest_turns(market, world)
    assert demo == backtest
    assert {action for _, action, *_ in demo} >= {"hold", "backfill", "release"}
