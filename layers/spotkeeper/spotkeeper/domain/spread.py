"""How one need is divided among regions: two numbers for each of them, once a minute.

`cover` is what a region must serve by its own means, spot or else on demand: the covers add up to
the need. `ask` is what its spot group should hold; `ask - cover` is on trial for another region's
unit. A unit moves in one way only: ask for it elsewhere, and move its cover once it serves there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from spotkeeper.domain.failure import FailureClass, Remedy, needs_operator, remedy

# A share that the home does not renew: its trials end, then its cover.
EXPIRES, KEPT = timedelta(minutes=15), timedelta(hours=1)
# An older report gets no trial; with no search logs either, its region is gone.
STALE = timedelta(minutes=5)
# How long a region that refused is left alone, by capacity or by what only an operator mends.
REST, LONG_REST = timedelta(minutes=2), timedelta(hours=1)
# A unit that runs well moves to a price this much lower, that has lasted this long.
CHEAPER, CHEAPER_FOR = 0.95, timedelta(minutes=30)
# What a report means; one of an older release gets no trial.
RELEASE = 1
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a home says to a region; a higher `term` is newer, `home` is the stack that says it."""

    term: int = 0
    cover: int = 0
    ask: int = 0
    on_demand_max: int = 0
    written: datetime
    home: str = ""

    def in_force(self, floor: int, now: datetime) -> "Share":
        """Return what holds now: the same for an hour after it expired, then without its trial.

        An hour later it is `floor` at most: a home that is gone cannot move what a region covers.
        """
        overdue = now - self.written - EXPIRES
        if overdue < KEPT:
            return self
        cover = self.cover if overdue < 2 * KEPT else min(self.cover, floor)
        return replace(self, cover=cover, ask=cover)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a region says to its home: counts of instances, and its spot group's last refusals.

    `serving` and `launching` are on spot; `bare` is what of the cover neither group serves, and
    on-demand cannot. `most` is what its spot group may hold. `price` is a spot hour in USD, None
    where it is not known.
    `refused` maps each class to when it refused last, while spot has a gap; that began at `since`.
    """

    at: datetime
    term: int = 0
    serving: int = 0
    launching: int = 0
    bare: int = 0
    most: int = 10_000
    on_demand: int = 0
    refused: Mapping[FailureClass, datetime] = field(default_factory=dict)
    since: datetime | None = None
    price: float | None = None
    paused: bool = False
    release: int = 0


class Standing(StrEnum):
    """Whether a region takes part: only an `OPEN` one gets trials, only the report of one that is
    open or leaving is believed. One that is leaving gives its cover away; what is gone has none.
    """

    OPEN = ""
    LEAVING = "leaving"
    STALE = "stale"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One region as its home knows it, and what the home remembers of it.

    `price` is an instance's hour, USD, with the transfer of its requests. 0 where it is not known:
    such a region is tried, as what it launches has a price, and takes nothing over for its price.
    It has been cheaper than another that serves since `cheaper`.
    """

    share: Share = Share(written=NEVER)
    report: Report = Report(at=NEVER)
    price: float = 0.0
    standing: Standing = Standing.OPEN
    rests_until: datetime | None = None
    cheaper: datetime | None = None

    @property
    def held(self) -> int:
        """How many spot instances serve or will."""
        return self.report.serving + self.report.launching

    def short(self, cover: int) -> int:
        """How many units of a cover others should serve: what spot was refused, or may not hold."""
        if self.standing is not Standing.OPEN:
            return cover * (self.standing is Standing.LEAVING)
        refused = any(remedy(each) is not Remedy.NONE for each in self.report.refused)
        return max(0, cover - self.held if refused else 0, cover - self.report.most)

    def resting(self, now: datetime) -> datetime | None:
        """Say when its last rest ends: it refused; meanwhile its refusals are old."""
        if self.rests_until and self.rests_until > now:
            return self.rests_until
        if any(needs_operator(each) for each in self.report.refused):
            return now + LONG_REST
        return now + REST if self.report.refused else self.rests_until


def spread(need: int, home: str, places: Mapping[str, Place], now: datetime) -> dict[str, Place]:
    """Divide a need among regions, the home first, by what they report."""
    by_price = sorted(places, key=lambda r: places[r].price)
    takers = [r for r in by_price if places[r].standing is Standing.OPEN]
    rests = {r: place.resting(now) for r, place in places.items()}
    by_rest = sorted(takers, key=lambda r: rests[r] or NEVER)
    cover = {r: place.share.cover for r, place in places.items()}
    cover[home] += max(0, need - sum(cover.values()))
    there = {r: place.report.serving + place.report.on_demand for r, place in places.items()}
    # A smaller need: what nothing serves yet, then from the dearest.
    for serving in (there, dict.fromkeys(places, 0)):
        for r in reversed(by_price):
            cover[r] -= min(max(0, cover[r] - serving[r]), sum(cover.values()) - need)
    for to in takers:  # What serves beyond its cover takes another's: make before break.
        for origin in reversed(by_price):
            dear = 0 < places[to].price <= CHEAPER * places[origin].price
            count = places[origin].short(cover[origin]) or min(int(dear), cover[origin])
            count = min(count, max(0, places[to].report.serving - cover[to]))
            cover[origin], cover[to] = cover[origin] - count, cover[to] + count
    for origin in by_price:  # Both groups are short: on-demand where nothing was refused of late.
        able = [r for r in by_rest if not places[r].report.bare]
        if able and places[origin].standing is not Standing.STALE:
            count = min(places[origin].report.bare, cover[origin])
            cover[origin], cover[able[0]] = cover[origin] - count, cover[able[0]] + count
    ask, left = dict(cover), sum(place.short(cover[r]) for r, place in places.items())
    runs_well, cheaper = not left, dict[str, datetime]()
    for r in takers:  # What trials have launched is kept.
        kept = min(left, max(0, places[r].held - cover[r]))
        ask[r], left = ask[r] + kept, left - kept
    rested = (r for r in takers if (rests[r] or now) <= now)
    if to := next((r for r in rested if ask[r] < places[r].report.most), ""):
        # One region at a time is tried for the rest.
        ask[to] += min(left, places[to].report.most - ask[to])
        dearest = max((places[r].price for r in places if cover[r]), default=0.0)
        if runs_well and places[to].price <= CHEAPER * dearest > 0:
            cheaper[to] = places[to].cheaper or now
            ask[to] += int(now - cheaper[to] >= CHEAPER_FOR)
    return {
        r: replace(
            place,
            share=replace(place.share, cover=cover[r], ask=ask[r]),
            rests_until=rests[r],
            cheaper=cheaper.get(r),
        )
        for r, place in places.items()
    }
