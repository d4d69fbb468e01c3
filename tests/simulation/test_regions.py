"""One fleet in two and three regions, by the deployed turns of each: bad days and how they end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from unittest.mock import Mock

import pytest

from spotkeeper.domain.decision import Alarm, Controller, DecisionRecord, RequestKind
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper.domain.permission import Control, Mode, Pause
from spotkeeper.ports import Throttled, Unavailable
from spotkeeper_lab.backtest import regions
from spotkeeper_lab.backtest.world import World, account
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import ON_DEMAND_DRY
from spotkeeper_lab.fakes import FakeLoadTable, FakeStates, digest, instant
from spotkeeper_lab.traces.market import Market, market_of
from spotkeeper_operator.status.known import RegionFigures, region_figures
from tests import search_logs
from tests.unit.turns.stage import Controls

WEST, EAST, EU = "us-west-2", "us-east-1", "eu-west-1"
HOUR = 3600.0
NEED = 3


def market(hours: float, **capacities: list[tuple[float, int]]) -> Market:
    """A market with a pool in each region, whose names have underscores here."""
    pools = {f"{name.replace('_', '-')}a/g5.xlarge": steps for name, steps in capacities.items()}
    return market_of("regions", hours * HOUR, pools)


DRY_FROM_HOUR_1 = [(0.0, 8), (HOUR, 0)]
PLENTY = [(0.0, 8)]


class Fleet:
    """A fleet of three over regions, its home in the first of the market."""

    def __init__(self, window: Market, **world: object) -> None:
        self.window = window
        common = {"target": NEED, "price_ratio": 1 / 3, "notice_s": 120.0}
        self.world = World(**common | world)  # type: ignore[arg-type]
        self.replays = regions.replays_of(window, self.world, {})
        self.off = set[str]()
        self.controls = {region: Controls(Control()) for region in self.replays}
        for region, one in self.replays.items():
            one.replay.ports = replace(one.replay.ports, controls=self.controls[region])
            states = one.replay.ports.states
            assert isinstance(states, FakeStates)
            states.records = type(states.records)(maxlen=None)

    @property
    def cut(self) -> set[str]:
        """The regions that no other reaches."""
        return self.replays[WEST].port.cut

    def run(self, until_s: float) -> None:
        """Let all regions run; those that are `off` have no health turns, as without a home."""
        for at_s in regions.played(self.replays, until_s):
            for one in map(self.replays.__getitem__, self.off):
                one.health_s += 60.0 * (one.health_s <= at_s)

    def serve(self, until_s: float) -> None:
        """Run, with a request a minute on every instance; the home gets the logs of all."""
        home = self.replays[WEST].replay
        table = home.ports.load
        assert isinstance(table, FakeLoadTable)
        for now_s in range(int(home.cloud.now_s) // 60 * 60 + 60, int(until_s) + 1, 60):
            for region, one in self.replays.items():
                views = [v for v in one.replay.cloud.instances() if v.in_service_s is not None]
                logs = [search_logs.served(v.instance_id, instant(now_s), 1.0) for v in views]
                name = home.fleet.name if region == WEST else f"{home.fleet.name}@{region}"
                table.add(digest(logs, instant(now_s), name))
            self.run(now_s)

    def records(self, region: str) -> Iterator[DecisionRecord]:
        states = self.replays[region].replay.ports.states
        assert isinstance(states, FakeStates)
        return iter(reversed(states.records))

    def memory(self, region: str) -> HealthMemory:
        """What a region's health turns remember."""
        replay = self.replays[region].replay
        lease = replay.ports.states.acquire(
            replay.fleet.name, Controller.HEALTH, instant(replay.cloud.now_s + HOUR), None
        )
        assert lease
        return lease.health

    def known(self) -> dict[str, RegionFigures]:
        """What the home's last record says of each region."""
        last = next(r for r in self.records(WEST) if r.controller is Controller.HEALTH)
        return {figures.region: figures for figures in region_figures(last.regions)}

    def alarms(self, region: str) -> set[Alarm]:
        return {alarm for record in self.records(region) for alarm in record.alarms}

    def serving(self) -> int:
        """The instances that serve now, of all regions and both groups."""
        return sum(
            view.in_service_s is not None and view.ended_s is None
            for one in self.replays.values()
            for view in one.replay.cloud.history()
        )

    def spot(self, region: str) -> int:
        """The size of a region's spot group."""
        return self.replays[region].replay.cloud.group("spot").desired

    def served(self, until_s: float) -> float:
        """The share of time with at least three; raises if the run ended earlier."""
        found = regions.ends(self.replays, self.window.window(0.0, until_s))
        return account(found, self.window.window(0.0, until_s), self.world).served_share


def spanning(hours: float, **more: list[tuple[float, int]]) -> Fleet:
    """A fleet of which one in the east serves what the home has no spot for, after 1.5 hours."""
    fleet = Fleet(market(hours, us_west_2=[(0.0, 2)], **more or {"us_east_1": PLENTY}))
    fleet.run(1.5 * HOUR)
    assert [fleet.known()[region].cover for region in (WEST, EAST)] == [2, 1]
    return fleet


@pytest.mark.parametrize("returns_h", [3.2, 6.0])
def test_a_home_that_is_gone_for_an_hour_costs_no_request(returns_h: float) -> None:
    fleet = spanning(6, us_east_1=[(0.0, 8), (3 * HOUR, 0)])
    fleet.off = {WEST}
    fleet.run(3.2 * HOUR)
    # It keeps its cover by its own means: on demand, once it has no spot.
    assert Alarm.SHARE_EXPIRED in fleet.alarms(EAST)
    assert (fleet.spot(EAST), fleet.serving()) == (1, NEED)
    if returns_h < 6:
        fleet.off = set()
        fleet.run(6 * HOUR)
        assert fleet.served(6 * HOUR) == 1.0
    else:
        fleet.run(4 * HOUR)
        assert fleet.spot(EAST) == 0


def test_a_home_that_is_paused_renews_what_it_gave() -> None:
    fleet = spanning(6)
    pause = Pause(until=instant(5 * HOUR), why="a test", by="tester", at=instant(1.5 * HOUR))
    fleet.controls[WEST].said = Control(pause=pause)
    fleet.run(4.5 * HOUR)
    assert fleet.spot(EAST) == 1
    fleet.controls[WEST].said = Control()
    fleet.run(6 * HOUR)
    assert {r: f.cover for r, f in fleet.known().items()} == {WEST: 2, EAST: 1}
    assert not {Alarm.SHARE_EXPIRED, Alarm.TWO_HOMES} & (fleet.alarms(EAST) | fleet.alarms(WEST))


def test_a_home_that_observes_would_hold_what_it_divides_and_writes_nothing() -> None:
    fleet = Fleet(market(2, us_west_2=PLENTY, us_east_1=PLENTY))
    fleet.controls[WEST].said = Control(mode=Mode.OBSERVE)
    home = fleet.replays[WEST].replay
    home.fleet = replace(
        home.fleet,
        bounds=replace(home.fleet.bounds, spot_min=0),
        sizing=replace(home.fleet.sizing, enabled=False),
    )
    fleet.run(HOUR)
    assert [home.ports.regions.of(home.fleet, region)[0] for region in (WEST, EAST)] == [None, None]
    assert fleet.known()[WEST].cover == home.cloud.group("spot").desired
    asked = [outcome.request for record in fleet.records(WEST) for outcome in record.outcomes]
    assert RequestKind.RESIZE_SPOT not in {request.kind for request in asked}


@pytest.mark.parametrize(("bounds", "need"), [({"spot_min": 5}, 5), ({"spot_max": 2}, 2)])
def test_where_load_does_not_size_the_fleet_its_bounds_change_the_need(
    bounds: dict[str, int], need: int
) -> None:
    fleet = Fleet(market(2, us_west_2=PLENTY, us_east_1=PLENTY))
    home = fleet.replays[WEST].replay
    off, free = replace(home.fleet.sizing, enabled=False), replace(home.fleet.bounds, spot_min=0)
    home.fleet = replace(home.fleet, sizing=off, bounds=free)
    fleet.run(0.5 * HOUR)
    assert fleet.spot(WEST) == NEED
    home.fleet = replace(home.fleet, bounds=replace(free, **bounds))
    # All are busy, and more would be needed.
    busy = [view.instance_id for view in home.cloud.instances()]
    table = home.ports.load
    assert isinstance(table, FakeLoadTable)
    for end_s in range(1800, 3600, 60):
        logs = [search_logs.served(i, instant(end_s), 60.0) for i in busy]
        table.add(digest(logs, instant(end_s), home.fleet.name))
    fleet.run(HOUR)
    assert fleet.spot(WEST) == sum(f.cover for f in fleet.known().values()) == need


def test_a_region_that_cannot_be_reached_is_covered_elsewhere_until_it_is_back() -> None:
    """Four minutes move nothing."""
    fleet = spanning(6, us_east_1=[(0.0, 1)], eu_west_1=PLENTY)
    fleet.cut.add(EAST)
    fleet.run(1.5 * HOUR + 240.0)
    assert [(f.cover, f.ask) for f in fleet.known().values()] == [(2, 2), (1, 1), (0, 0)]
    assert Alarm.REGION_GONE not in fleet.alarms(WEST)
    fleet.run(2.5 * HOUR)
    known = fleet.known()
    assert (known[EAST].state, known[EAST].cover) == ("gone", 0)
    assert sum(f.cover for f in known.values()) == NEED
    assert Alarm.REGION_GONE in fleet.alarms(WEST)
    # It serves on for itself: twice what it covers, until its share expires.
    assert fleet.spot(EAST) == 1
    fleet.cut.clear()
    fleet.run(6 * HOUR)
    assert sum(f.cover for f in fleet.known().values()) == NEED
    assert fleet.spot(EAST) == fleet.known()[EAST].ask
    assert fleet.served(6 * HOUR) == 1.0


@dataclass
class Costs:
    """A price port with one price, of what runs in a cloud, beside a dearer one."""

    usd: float
    of: Cloud
    reads: int = 0

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        self.reads += 1
        series = {usd: PriceSeries(at=(now,), usd=(usd,)) for usd in (self.usd, 9.0)}
        return PriceBook(spot={f"{usd}": series[usd] for usd in series if self.of.instances()})


def test_a_region_that_cannot_be_reached_keeps_its_cover_while_its_logs_arrive() -> None:
    fleet = spanning(4, us_east_1=[(0.0, 1)], eu_west_1=PLENTY)
    fleet.cut.add(EAST)
    fleet.serve(2.5 * HOUR)
    known = fleet.known()[EAST]
    assert (known.state, known.cover, fleet.serving()) == ("stale", 1, NEED)
    fleet.run(2.8 * HOUR)
    assert (fleet.known()[EAST].state, fleet.known()[EAST].cover) == ("gone", 0)


def test_a_home_whose_first_share_is_not_written_keeps_its_instances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(market(2, us_west_2=PLENTY, us_east_1=PLENTY))
    with monkeypatch.context() as patch:
        refused = Mock(side_effect=Unavailable("no table"))
        patch.setattr(fleet.replays[WEST].replay.ports.regions, "write", refused)
        fleet.run(0.5 * HOUR)
    assert (refused.called, fleet.spot(WEST), fleet.serving()) == (True, NEED, NEED)
    fleet.run(HOUR)
    assert (fleet.known()[WEST].cover, fleet.spot(WEST)) == (NEED, NEED)


def test_a_region_whose_share_is_not_read_stands_in_for_no_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(market(2, us_west_2=[(0.0, 2)], us_east_1=[(0.0, 0)]))
    while fleet.spot(EAST) == 0:
        fleet.run(fleet.replays[EAST].replay.cloud.now_s + 60.0)
    assert fleet.known()[EAST].cover == 0
    refused = Mock(side_effect=Throttled("slow down"))
    monkeypatch.setattr(fleet.replays[EAST].replay.ports.regions, "of", refused)
    fleet.run(fleet.replays[EAST].replay.cloud.now_s + 600.0)
    assert (refused.called, fleet.spot(EAST), fleet.serving()) == (True, 1, NEED)


def test_a_region_whose_launches_do_not_start_is_left_for_another() -> None:
    fleet = Fleet(market(3, us_west_2=[(0.0, 2)], us_east_1=PLENTY, eu_west_1=PLENTY))
    spot = fleet.replays[EAST].replay.cloud._group("spot")
    spot.physics = replace(spot.physics, cold_start_s=9 * HOUR)
    fleet.run(3 * HOUR)
    assert [f.cover for f in fleet.known().values()] == [2, 0, 1]


def test_on_demand_is_allowed_first_where_spot_is_missing() -> None:
    """Two of four may be on demand: the region that is dry has both, not the first one."""
    capacities = {"us_west_2": [(0.0, 2)], "us_east_1": [(0.0, 8), (HOUR, 0)]}
    fleet = Fleet(market(3, **capacities), target=4)
    home = fleet.replays[WEST].replay
    home.fleet = replace(home.fleet, bounds=replace(home.fleet.bounds, on_demand_max=2))
    fleet.run(2 * HOUR)
    # What serves elsewhere, also on demand, works on the same requests.
    assert (fleet.known()[EAST].cover, fleet.memory(WEST).elsewhere) == (2, 2)
    assert fleet.serving() == 4


@pytest.mark.parametrize("bound", ["spot_max", "spot", "on_demand_max", "on-demand", "refused"])
def test_what_a_region_may_not_hold_moves_to_another(bound: str) -> None:
    """Also where it has no spot, may or can launch nothing on demand, and spot is nowhere else."""
    dry = PLENTY if bound in {"spot_max", "spot"} else [(0.0, 8), (2 * HOUR, 0)]
    fleet = spanning(4, us_east_1=dry, eu_west_1=[(0.0, 0)] if dry != PLENTY else PLENTY)
    east = fleet.replays[EAST].replay
    if hasattr(bounds := east.fleet.bounds, bound):
        east.fleet = replace(east.fleet, bounds=replace(bounds, **{bound: 0}))
    elif bound == "refused":
        east.cloud.fail_launches("on-demand", HOUR, 4 * HOUR, ON_DEMAND_DRY)
    else:
        east.cloud.set_bounds(bound, 0, 0)
    fleet.run(3 * HOUR)
    assert (fleet.known()[EAST].cover, fleet.spot(EAST), fleet.serving()) == (0, 0, NEED)


@pytest.mark.parametrize(
    ("usd", "egress", "cover", "reads"),
    # Three need 180 requests an hour: 0.06 of the price of 1,000 for each.
    [(0.2, 0.0, NEED, 3), (0.2, 2.2, 0, 150), (0.2, 1.5, NEED, 3), (0.4, 0.0, 0, 150)],
)
def test_a_region_without_a_price_is_tried_and_then_has_one(
    usd: float, egress: float, cover: int, reads: int
) -> None:
    """A group that names no types has a price once it launches. Until then it is read each turn."""
    fleet = Fleet(market(4, us_west_2=PLENTY, us_east_1=PLENTY))
    east, home = fleet.replays[EAST].replay, fleet.replays[WEST].replay
    east.ports = replace(east.ports, prices=(costs := Costs(usd, east.cloud)))
    home.fleet = replace(home.fleet, egress_usd=egress)
    fleet.serve(1.5 * HOUR)
    assert fleet.known()[EAST].price_usd == pytest.approx(usd + 0.06 * egress, rel=0.1)
    costs.reads = 0
    fleet.serve(4 * HOUR)
    assert costs.reads <= reads
    assert fleet.known()[EAST].cover == cover
    assert fleet.served(4 * HOUR) == 1.0


def test_of_two_homes_the_higher_term_stays_and_the_other_rings() -> None:
    fleet = Fleet(market(3, us_west_2=PLENTY, us_east_1=PLENTY))
    fleet.run(0.5 * HOUR)
    port, home = fleet.replays[EAST].port, fleet.replays[WEST].replay.fleet
    theirs, _ = port.of(home, EAST)
    assert theirs
    ahead = replace(theirs, term=theirs.term + 100, cover=2, ask=2, home="another stack")
    port.write(home, EAST, replace(ahead, written=instant(0.5 * HOUR)), theirs.term)
    fleet.run(0.6 * HOUR)
    assert Alarm.TWO_HOMES in fleet.alarms(WEST)
    still, _ = port.of(home, EAST)
    assert still
    assert (still.cover, still.home) == (2, "another stack")
    # The other is silent: once its share has expired, this home goes on.
    fleet.run(1.2 * HOUR)
    after, _ = port.of(home, EAST)
    assert after
    assert after.term > ahead.term
    assert after.home == theirs.home


def test_a_region_follows_a_new_home_whose_terms_begin_again() -> None:
    """After a week nothing is left of what the one of before wrote, but what it remembers."""
    fleet = spanning(6)
    fleet.off = {WEST}
    fleet.run(4.5 * HOUR)
    home, fleet.off = fleet.replays[WEST].replay, set()
    fleet.replays[WEST].port.tables.clear()
    home.ports = replace(home.ports, states=FakeStates())
    fleet.run(4.7 * HOUR)
    assert (fleet.spot(EAST), fleet.serving()) == (1, NEED)


@pytest.mark.parametrize("paused", [True, False])
def test_a_region_that_is_paused_or_removed_gives_its_cover_away(
    paused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that is not written for a while does not raise the need."""
    fleet = Fleet(market(6, us_west_2=[(0.0, 2), (HOUR, 8)], us_east_1=PLENTY))
    fleet.run(HOUR)
    assert fleet.known()[EAST].cover == 1
    if paused:
        pause = Pause(until=instant(5 * HOUR), why="a test", by="tester", at=instant(HOUR))
        fleet.controls[EAST].said = Control(pause=pause)
    else:
        fleet.controls[WEST].said = Control(leaving=(EAST,))
    with monkeypatch.context() as patch:
        write = (port := fleet.replays[WEST].port).write
        patch.setattr(port, "write", lambda of, r, *more: r == WEST and write(of, r, *more))
        fleet.run(1.2 * HOUR)
    fleet.run(1.5 * HOUR)
    known = fleet.known()[EAST]
    assert (known.cover, known.state) == (0, "leaving")
    assert sum(f.cover for f in fleet.known().values()) == NEED
    fleet.run(4 * HOUR)
    assert fleet.served(4 * HOUR) == 1.0
    assert fleet.spot(EAST) == (1 if paused else 0)
