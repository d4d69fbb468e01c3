"""How one need is divided among regions: two numbers for each of them, once a minute.

`cover` is what a region must serve by its own means, spot or else on demand: the covers add up to
the need. `ask` is what its spot group should hold; `ask - cover` is on trial for another region's
unit. A unit moves in one way only: ask for it elsewhere, and move its cover once it serves there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

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

    `serving` and `launching` are on spot, `warned` are those that AWS will take; `bare` is what
    neither group serves of the cover. `price` is a spot hour in USD, None where it is not known.
    `refused` maps each class to when it refused last, while spot has a gap; that began at `since`.
    """

    at: datetime
    term: int = 0
    serving: int = 0
    launching: int = 0
    warned: int = 0
    bare: int = 0
    on_demand: int = 0
    refused: Mapping[FailureClass, datetime] = field(default_factory=dict)
    since: datetime | None = None
    price: float | None = None
    paused: bool = False
    release: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One region as its home knows it: the cover that it was given last, and its report.

    `leaving` ones are removed or paused, `gone` ones cannot be reached and send no search logs:
    both give their cover away. `fresh` says that the report is of now, and of this release.
    """

    cover: int
    report: Report
    price: float
    fresh: bool = True
    leaving: bool = False
    gone: bool = False

    @property
    def held(self) -> int:
        """How many spot instances serve or will."""
        return self.report.serving + self.report.launching

    @property
    def short(self) -> int:
        """How many units of its cover others should serve: what its spot group was refused."""
        if not self.fresh:
            return 0
        if self.leaving:
            return self.cover
        refused = any(remedy(each) is not Remedy.NONE for each in self.report.refused)
        return max(0, self.cover - self.held) if refused else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadMemory:
    """What the home remembers of regions: until when each rests, and since when it is on trial.

    `need` is what it divided last, None before the first time.
    `cheaper` is the region that has been cheaper than another that serves, and since when. `given`
    is what was written last, under `term`, and `reports` are the last: for regions whose table does
    not answer.
    """

    term: int = 0
    need: int | None = None
    rests: Mapping[str, datetime] = field(default_factory=dict)
    trials: Mapping[str, datetime] = field(default_factory=dict)
    cheaper: Mapping[str, datetime] = field(default_factory=dict)
    given: Mapping[str, Share] = field(default_factory=dict)
    reports: Mapping[str, Report] = field(default_factory=dict)


type Division = Mapping[str, tuple[int, int]]
"""Cover and ask by region."""


def spread(
    need: int,
    home: str,
    places: Mapping[str, Place],
    memory: SpreadMemory,
    now: datetime,
    trial: timedelta,
) -> tuple[Division, SpreadMemory]:
    """Divide a need; a trial that neither serves nor is refused within `trial` is over."""
    by_price = sorted(places, key=lambda r: (places[r].price, r != home))
    takers = [r for r in by_price if places[r].fresh and not (places[r].leaving or places[r].gone)]
    rests = _rests(places, memory, now, trial)
    ready = [r for r in takers if now >= rests.get(r, now) and not places[r].short]
    cover = _covers(need, home, places, by_price, (*ready, *takers, home)[0])
    now_at = {r: replace(place, cover=cover[r]) for r, place in places.items()}

    def move(count: int, origin: str, to: str) -> None:
        for r, more in ((origin, -count), (to, count)):
            cover[r] += more
            now_at[r] = replace(now_at[r], cover=cover[r])

    for to in takers:  # What serves beyond its cover takes another's: make before break.
        for origin in [r for r in reversed(by_price) if r != to]:
            spare = max(0, places[to].report.serving - cover[to])
            dear = places[to].price <= CHEAPER * places[origin].price
            count = now_at[origin].short or (min(1, cover[origin]) if dear else 0)
            move(min(spare, count), origin, to)
    for origin in by_price:  # Both groups are short: on-demand elsewhere.
        bare = min(places[origin].report.bare, cover[origin]) if places[origin].fresh else 0
        able = (r for r in takers if r != origin and not places[r].report.bare)
        if bare and (to := next(able, "")):
            move(bare, origin, to)
    ask, left = dict(cover), sum(place.short for place in now_at.values())
    wanted, cheaper = left, dict[str, datetime]()
    for r in takers:  # What trials have launched is kept.
        kept = min(left, max(0, places[r].held - cover[r]))
        ask[r], left = ask[r] + kept, left - kept
    if ready:  # One region at a time is tried for the rest.
        to = next((r for r in ready if not now_at[r].short), ready[0])
        ask[to] += left
        dearest = max(places[r].price for r in places if cover[r]) if any(cover.values()) else 0.0
        if not wanted and places[to].price <= CHEAPER * dearest:
            cheaper[to] = memory.cheaper.get(to, now)
            ask[to] += int(now - cheaper[to] >= CHEAPER_FOR)
    trials = {r: memory.trials.get(r, now) for r in places if ask[r] > cover[r]}
    return (
        {r: (cover[r], ask[r]) for r in places},
        replace(memory, need=need, rests=rests, trials=trials, cheaper=cheaper),
    )


def _rests(
    places: Mapping[str, Place], memory: SpreadMemory, now: datetime, trial: timedelta
) -> dict[str, datetime]:
    """Let regions rest that refused, or whose trial is over; a refusal while one rests is old."""
    rests = {r: until for r, until in memory.rests.items() if r in places and until > now}
    for r in places.keys() - rests.keys():
        refused = places[r].report.refused
        overdue = r in memory.trials and now - memory.trials[r] > trial
        if overdue or any(needs_operator(each) for each in refused):
            rests[r] = now + LONG_REST
        elif refused:
            rests[r] = now + REST
    return rests


def _covers(
    need: int, home: str, places: Mapping[str, Place], by_price: list[str], heir: str
) -> dict[str, int]:
    """Bring the covers to the need: more is the home's, less is taken from the dearest first.

    What a region covered that is gone, `heir` covers.
    """
    cover = {r: 0 if place.gone else place.cover for r, place in places.items()}
    cover[heir] += sum(place.cover for place in places.values() if place.gone)
    cover[home] += max(0, need - sum(cover.values()))
    for r in reversed(by_price):
        cover[r] -= min(cover[r], sum(cover.values()) - need)
    return cover
