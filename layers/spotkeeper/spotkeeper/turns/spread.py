"""One fleet in several regions: the home divides the need, each region reports.

A region's turns work without its home, and the home's without any region that does not answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from spotkeeper.domain.availability.count import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory, within
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.decision import Alarm, RegionFigures
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.decide import HealthPlan, by_share
from spotkeeper.domain.permission import Permission
from spotkeeper.domain.spread import (
    EXPIRES,
    RELEASE,
    STALE,
    Division,
    Place,
    Report,
    Share,
    SpreadMemory,
    spread,
)
from spotkeeper.ports import Conflict, FleetError, Prices, Regions
from spotkeeper.turns.turn import TABLE, Round

# A share is written when it changes, and this often.
RENEWED = timedelta(minutes=4)
PRICED_EVERY_S = 3600
NEVER = Report(at=datetime.min.replace(tzinfo=UTC))


# --- in a region ----------------------------------------------------------------------------------


def with_share(snapshot: Snapshot, this: Round) -> Snapshot:
    """Read the share of a fleet in several regions; it is the need, and limits on-demand."""
    fleet = snapshot.fleet
    share = _share_of(this, snapshot.groups.spot)
    most = min(fleet.bounds.on_demand_max, share.on_demand_max)
    fleet = replace(fleet, bounds=replace(fleet.bounds, on_demand_max=most))
    return replace(snapshot, fleet=fleet, share=share, unread=tuple(this.unread))


def _share_of(this: Round, spot: Group) -> Share:
    """Return the share in force; without any, the group as it is."""
    fleet, now, known = this.fleet, this.now, this.lease.availability.share
    regions, most = _regions(this), fleet.bounds.on_demand_max
    read = this.optional("share", None, lambda: regions.of(fleet.name, regions.here)[0], api=TABLE)
    as_it_is = Share(written=now, cover=spot.desired, ask=spot.desired, on_demand_max=most)
    return (read or known or as_it_is).in_force(fleet.bounds.spot_min, now)


def reported(assessment: Assessment, memory: AvailabilityMemory, this: Round) -> AvailabilityMemory:
    """Report what this region has to its home; the next turn repeats what fails."""
    group, prices, now = assessment.snapshot.groups.spot, this.ports.prices, this.now
    if prices and not within(memory.priced_at, now, PRICED_EVERY_S):
        pools = group.offers or tuple({i.pool for i in group.instances})
        price = this.optional("prices", memory.price, lambda: _price(prices, pools, now), api="EC2")
        memory = replace(memory, price=price, priced_at=now)
    gap = (
        assessment.spot_failures
        if group.desired > len(group.instances) or assessment.spot.missing
        else ()
    )
    share = assessment.snapshot.share
    report = Report(
        at=now,
        term=share.term if share else 0,
        serving=assessment.spot.serving + assessment.spot.unproven,
        launching=assessment.spot.launching,
        warned=assessment.spot.at_risk,
        bare=assessment.unfilled if assessment.both_short else 0,
        on_demand=assessment.on_demand.serving,
        refused={failure.failure_class: failure.at for failure in gap},
        since=memory.gap_since,
        price=memory.price,
        paused=this.permission is not Permission.ACT,
        release=RELEASE,
    )
    name = this.fleet.name
    this.optional("report", None, lambda: _regions(this).report(name, report), api=TABLE)
    return memory


def _price(prices: Prices, pools: tuple[str, ...], now: datetime) -> float | None:
    """Return the lowest price of a spot hour in some pools, USD."""
    return min([one.usd[-1] for one in prices.now(pools, now).spot.values()], default=None)


def _regions(this: Round) -> Regions:
    if this.ports.regions is None:
        raise FleetError("this stack cannot reach the tables of regions: deploy it anew")
    return this.ports.regions


# --- at home --------------------------------------------------------------------------------------


def shared(wanted: HealthPlan, this: Round, logged_at: Mapping[str, datetime]) -> HealthPlan:
    """Size the spot group by the share; at home, divide the need among the regions first."""
    snapshot = wanted.assessment.snapshot
    if not this.fleet.regions:
        share = _share_of(this, snapshot.spot)
        _look_again(this, share.cover)
        expired = (Alarm.SHARE_EXPIRED,) if this.now - share.written > EXPIRES else ()
        return replace(by_share(wanted, share.ask), alarms=expired)
    need = wanted.sizing.spot_desired if this.fleet.sizing.enabled else snapshot.need or 0
    memory, division, figures, alarms = _divided(this, need, wanted, logged_at)
    cover, ask = division[_regions(this).here]
    _look_again(this, cover)
    wanted = by_share(wanted, ask)
    there = sum(f.serving + f.on_demand for f in figures if f.region != _regions(this).here)
    kept = replace(wanted.memory, spread=memory, elsewhere=there)
    return replace(wanted, memory=kept, regions=figures, alarms=alarms)


def divided_need(memory: SpreadMemory, desired: int) -> int:
    """Return the need that was divided last; before the first time, what the home has."""
    return desired if memory.need is None else memory.need


def _look_again(this: Round, cover: int) -> None:
    """Have this region's availability turn now where its cover is another than it knows."""
    known = this.lease.availability.share
    if this.permission is Permission.ACT and known is not None and known.cover != cover:
        name, now = this.fleet.name, this.now
        wake_ups = this.ports.wake_ups
        this.optional("a turn", None, lambda: wake_ups.at(name, now, now, woken=1), api="SQS")


def _divided(
    this: Round, need: int, wanted: HealthPlan, logged_at: Mapping[str, datetime]
) -> tuple[SpreadMemory, Division, tuple[RegionFigures, ...], tuple[Alarm, ...]]:
    """Read each region, divide the need, and write what has changed."""
    fleet, now, regions, owner = this.fleet, this.now, _regions(this), this.ports.owner
    memory, here = wanted.memory.spread, regions.here
    tables = {here: "", **fleet.elsewhere}
    shares, reports = dict(memory.given), dict(memory.reports)
    for region, table in tables.items():
        nothing: tuple[Share | None, Report | None] = (None, None)
        read = partial(regions.of, fleet.name, region, table)
        share, report = this.optional(
            f"region {region}", nothing, read, api=f"the table of {region}"
        )
        shares |= {region: share} if share else {}
        reports |= {region: report} if report else {}
    alarms = set[Alarm]()
    # A turn that only observes has no name of its own.
    if owner and any(_of_another(one, owner, memory.term, now) for one in shares.values()):
        alarms.add(Alarm.TWO_HOMES)
    places = _places(this, tables, shares, reports, wanted, logged_at)
    trial = timedelta(seconds=fleet.availability.launch_deadline_s)
    division, memory = spread(need, here, places, memory, now, trial)
    if any(place.gone and place.cover for place in places.values()):
        alarms.add(Alarm.REGION_GONE)
    memory = replace(memory, reports={r: reports[r] for r in tables if r in reports})
    if this.permission is Permission.PAUSED or Alarm.TWO_HOMES in alarms:
        # A home that is paused only renews what it gave.
        division = {r: (place.cover, shares[r].ask if r in shares else place.cover)
                    for r, place in places.items()}  # fmt: skip
    if this.permission is not Permission.OBSERVE and Alarm.TWO_HOMES not in alarms:
        memory = _given(this, tables, division, shares, memory, alarms)
    figures = tuple(_figures(r, places[r], reports.get(r), division[r]) for r in tables)
    return memory, division, figures, tuple(sorted(alarms))


def _of_another(share: Share, owner: str, term: int, now: datetime) -> bool:
    """Tell whether another home gives this region its share: of two, the higher term stays."""
    return share.home not in ("", owner) and share.term >= term and now - share.written < EXPIRES


def _places(
    this: Round,
    tables: Mapping[str, str],
    shares: Mapping[str, Share],
    reports: Mapping[str, Report],
    wanted: HealthPlan,
    logged_at: Mapping[str, datetime],
) -> dict[str, Place]:
    now, here = this.now, _regions(this).here
    spot, load = wanted.assessment.snapshot.spot, wanted.assessment.load
    known = [report.price for report in reports.values() if report.price is not None]
    served = 3.6 * load.arrival_rate / max(1, wanted.sizing.spot_desired)
    places = dict[str, Place]()
    for region in tables:
        report = reports.get(region, NEVER)
        stale = now - report.at > STALE
        price = report.price if report.price is not None else max(known, default=0.0)
        cover = shares[region].cover if region in shares else 0
        places[region] = Place(
            # Before its first share, the home covers what it has.
            cover=spot.desired if region == here and not shares else cover,
            report=report,
            price=price + (this.fleet.egress_usd * served if region != here else 0.0),
            fresh=not stale and report.release >= RELEASE,
            leaving=report.paused or region in this.control.leaving,
            gone=region != here and stale and not within(logged_at.get(region), now, STALE.seconds),
        )
    return places


def _given(
    this: Round,
    tables: Mapping[str, str],
    division: Division,
    shares: Mapping[str, Share],
    memory: SpreadMemory,
    alarms: set[Alarm],
) -> SpreadMemory:
    """Write the shares, higher covers first: none is lowered unless another has been raised."""
    term = 1 + max([memory.term, *[share.term for share in shares.values()]])
    raised, given = True, dict[str, Share]()
    most = on_demand_of(this.fleet, division)
    for region in sorted(tables, key=lambda r: _cover(shares, r) - division[r][0]):
        before, (cover, ask) = shares.get(region), division[region]
        if not raised and cover < _cover(shares, region):
            cover = _cover(shares, region)
        share = Share(
            term=term,
            cover=cover,
            ask=max(cover, ask),
            on_demand_max=most[region],
            written=this.now,
            home=this.ports.owner or (before.home if before else ""),
        )
        if before and this.now - before.written < RENEWED and same(before, share):
            given[region] = before
            continue
        seen, name = before.term if before else 0, this.fleet.name
        try:
            with this.budget.watched(f"the table of {region}"):
                _regions(this).give(name, region, tables[region], share, seen)
            given[region] = share
        except Conflict as error:
            alarms.add(Alarm.TWO_HOMES)
            this.unread.append(f"share of {region}: {error}")
        except FleetError as error:
            this.unread.append(f"share of {region}: {type(error).__name__}: {error}")
        raised &= region in given or cover <= _cover(shares, region)
    kept = {region: given.get(region, shares.get(region)) for region in tables}
    return replace(
        memory,
        term=term,
        given={
            # What is gone has given its cover away, whatever its table says.
            r: replace(share, cover=0, ask=0) if r not in given and not division[r][1] else share
            for r, share in kept.items()
            if share
        },
    )


def _cover(shares: Mapping[str, Share], region: str) -> int:
    return shares[region].cover if region in shares else 0


def same(one: Share, other: Share) -> bool:
    """Tell whether two shares say the same, whenever they were written."""
    return replace(one, term=0, written=other.written) == replace(other, term=0)


def on_demand_of(fleet: Fleet, division: Division) -> dict[str, int]:
    """Divide the most on-demand that the fleet may have; what no cover needs is everyone's."""
    left, most = fleet.bounds.on_demand_max, dict[str, int]()
    for region, (cover, _) in division.items():
        most[region] = min(cover, left)
        left -= most[region]
    return {region: count + left for region, count in most.items()}


def _figures(
    region: str, place: Place, report: Report | None, given: tuple[int, int]
) -> RegionFigures:
    said = place.report
    state = "gone" if place.gone else "leaving" if place.leaving else ""
    return RegionFigures(
        region=region,
        cover=given[0],
        ask=given[1],
        serving=said.serving,
        on_demand=said.on_demand,
        price_usd=place.price if said.price is not None else None,
        refused_since=said.since if said.refused else None,
        refused=tuple(sorted(said.refused)),
        known_at=report.at if report else None,
        state=state or ("" if place.fresh else "stale"),
    )
