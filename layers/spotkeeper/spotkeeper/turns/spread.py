"""One fleet in several regions: the home divides the need, each region reports.

A region's turns work without its home, and the home's without any region that does not answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial

from spotkeeper.domain.availability.count import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory, within
from spotkeeper.domain.decision import Alarm
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.health.decide import HealthPlan, resized
from spotkeeper.domain.permission import Permission
from spotkeeper.domain.spread import EXPIRES, RELEASE, STALE, Place, Report, Share, Standing, spread
from spotkeeper.turns.turn import TABLE, Round

# A share is written when it changes, and this often.
RENEWED = timedelta(minutes=4)
PRICED_EVERY_S, PRICE_KEPT_S = 3600, 86_400
UNREAD: tuple[Share | None, Report | None] = (None, None)

type Places = Mapping[str, Place]


def reported(assessment: Assessment, memory: AvailabilityMemory, this: Round) -> AvailabilityMemory:
    """Report what this region has to its home; the next turn repeats what fails."""
    groups, prices, now = assessment.snapshot.groups, this.ports.prices, this.now
    if prices and not within(memory.priced_at, now, PRICED_EVERY_S):
        pools = groups.spot.offers or tuple({i.pool for i in groups.spot.instances})
        book = this.optional("prices", None, lambda: prices.now(pools, now), api="EC2")
        if usd := [each.usd[-1] for each in book.spot.values()] if book else []:
            memory = replace(memory, price=min(usd), priced_at=now)
    refused = {f.failure_class: f.at for f in assessment.spot_failures if assessment.spot.missing}
    # What was launched, and does not serve in time, is no better than refused.
    refused |= {FailureClass.BOOTSTRAP: now} if assessment.spot.late else {}
    share, bounds = assessment.snapshot.share, this.fleet.bounds
    beyond = max(0, assessment.shortfall - min(bounds.on_demand_max, groups.on_demand.maximum))
    report = Report(
        at=now,
        term=share.term if share else 0,
        serving=assessment.spot.serving + assessment.spot.unproven,
        launching=assessment.spot.launching,
        bare=assessment.unfilled if assessment.both_short else beyond,
        most=min(groups.spot.maximum, bounds.spot_max),
        on_demand=assessment.on_demand.serving,
        refused=refused,
        since=memory.gap_since,
        price=memory.price if within(memory.priced_at, now, PRICE_KEPT_S) else None,
        paused=this.permission is not Permission.ACT,
        release=RELEASE,
    )
    write = partial(this.ports.regions.write, this.fleet, this.ports.regions.here, report)
    this.optional("report", False, write, api=TABLE)
    return memory


def own_share(this: Round) -> Share | None:
    """Read the share in force: the last one, also if it is not read now, or is never written."""
    share = _share_and_report(this, this.ports.regions.here)[0] or this.lease.health.share
    return share and share.in_force(this.fleet.bounds.spot_min, this.now)


def _share_and_report(this: Round, region: str) -> tuple[Share | None, Report | None]:
    read = partial(this.ports.regions.of, this.fleet, region)
    return this.optional(f"region {region}", UNREAD, read, api=region)


def shared(wanted: HealthPlan, this: Round) -> HealthPlan:
    """Size the spot group by the share; at home, divide the need among the regions first."""
    fleet, regions, memory = this.fleet, this.ports.regions, wanted.memory
    if fleet.regions:
        need, bounds = wanted.sizing.spot_desired, fleet.bounds
        if not fleet.sizing.enabled:
            held = wanted.assessment.snapshot.sized.desired
            need = min(max(held, bounds.spot_min), bounds.spot_max)
        places = _divided(this, wanted, need)
        there = [p.report for r, p in places.items() if r != regions.here]
        elsewhere = sum(report.serving + report.on_demand for report in there)
        share: Share | None = places[regions.here].share
        memory = replace(memory, places=places, divided=need, elsewhere=elsewhere)
    else:
        share = own_share(this)
        if share and this.now - share.written > EXPIRES:
            this.alarms.add(Alarm.SHARE_EXPIRED)
    if share is None or not share.term:
        # A share that was never written sizes nothing.
        return wanted
    spot = wanted.assessment.snapshot.spot
    if memory.share and share.cover < memory.share.cover:
        # What stands in on demand for a unit that serves elsewhere ends now.
        turn = partial(this.ports.wake_ups.at, fleet.name, this.now, this.now, 0)
        this.optional("a turn of availability", None, turn, api="SQS")
    memory = replace(memory, share=share, size_limited=False)
    size = max(min(share.ask, spot.maximum, fleet.bounds.spot_max), spot.minimum)
    return resized(replace(wanted, memory=memory), size)


def _divided(this: Round, wanted: HealthPlan, need: int) -> Places:
    """Read each region, divide the need, and write what has changed."""
    home, before = this.ports.owner, _read(this, wanted)
    own = [p.share.term for p in wanted.memory.places.values() if p.share.home == home]
    if any(p.standing is Standing.GONE and p.report.release for p in before.values()):
        this.alarms.add(Alarm.REGION_GONE)
    theirs = [p.share for p in before.values() if p.share.home not in ("", home)]
    in_force = [share.term for share in theirs if this.now - share.written < EXPIRES]
    # Of two homes, the higher term stays. A turn that only observes has no name of its own.
    if home and in_force and max(in_force) >= max(own, default=0):
        this.alarms.add(Alarm.TWO_HOMES)
        return before
    # A home that is paused only renews what it gave.
    paused, here = this.permission is Permission.PAUSED, this.ports.regions.here
    return _given(this, before, before if paused else spread(need, here, before, this.now))


def _read(this: Round, wanted: HealthPlan) -> Places:
    """Read what each region was given and reports; what cannot be read is as it was."""
    fleet, here, now, known = this.fleet, this.ports.regions.here, this.now, wanted.memory.places
    snapshot, load = wanted.assessment.snapshot, wanted.assessment.load
    egress = fleet.egress_usd * 3.6 * load.arrival_rate / max(1, wanted.sizing.spot_desired)
    places = dict[str, Place]()
    for region in (here, *fleet.elsewhere):
        (share, report), place = _share_and_report(this, region), known.get(region, Place())
        report, away, logs = report or place.report, region != here, f"{fleet.name}@{region}"
        stale = now - report.at > STALE
        share = (share or place.share).in_force(0, now)
        logged = max([d.sent_at for d in snapshot.digests if d.fleet == logs], default=None)
        if away and stale and not within(logged, now, STALE.seconds):
            # Others cover what it did; once it is back, what nothing serves yet ends first.
            standing, share = Standing.GONE, replace(share, cover=0, ask=0)
        elif stale or report.release < RELEASE:
            standing = Standing.STALE
        else:
            leaves = report.paused or region in this.control.leaving
            standing = Standing.LEAVING if leaves else Standing.OPEN
        price = 0.0 if report.price is None else report.price + egress * away
        places[region] = replace(place, share=share, report=report, price=price, standing=standing)
    return places


def _given(this: Round, before: Places, division: Places) -> Places:
    """Write the shares, higher covers first: none is lowered unless another has been raised."""
    term = 1 + max(place.share.term for place in before.values())
    raised, given = True, dict(division)
    on_demand = _on_demand(division, this.fleet.bounds.on_demand_max)
    for region in sorted(division, key=lambda r: before[r].share.cover - division[r].share.cover):
        old, new = before[region].share, division[region].share
        cover = new.cover if raised else max(old.cover, new.cover)
        ask, most, name = max(cover, new.ask), on_demand[region], this.ports.owner or old.home
        share = replace(new, cover=cover, ask=ask, on_demand_max=most, home=name)
        # What is gone, or only silent, keeps what it has until its share expires.
        gone = division[region].standing is Standing.GONE
        if gone or (share == old and this.now - old.written < RENEWED):
            continue
        share = replace(share, term=term, written=this.now)
        if this.permission is not Permission.OBSERVE:
            write = partial(this.ports.regions.write, this.fleet, region, share, old.term)
            written = this.optional(f"share of {region}", False, write, api=region)
            share, raised = share if written else old, raised and (written or cover <= old.cover)
        given[region] = replace(division[region], share=share)
    return given


def _on_demand(division: Places, most: int) -> Mapping[str, int]:
    """Divide what may run on demand: first to where spot does not hold the cover."""
    allowed = dict.fromkeys(division, 0)
    for lacking in (True, False):
        for region, place in division.items():
            cover, report = place.share.cover, place.report
            part = min(cover, max(report.on_demand, cover - place.held)) if lacking else cover
            more = max(0, min(part - allowed[region], most))
            allowed[region], most = allowed[region] + more, most - more
    return allowed
