"""What do the fleets cost? Read from ledger and prices; as text, as JSON and as a page.

Cost Explorer adds what AWS billed, by the tag of the group, a day at a time. An account's cost
allocation tags must be activated once, in the billing console. What is billed shows up there a
day later, and each request costs 0.01 USD.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property, partial
from itertools import batched, groupby, pairwise
from math import ceil
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.decision import Controller, DecisionRecord, HealthFigures
from spotkeeper.domain.money.ledger import EndedBy, LedgerItem
from spotkeeper.domain.money.prices import PriceBook, Priced, priced
from spotkeeper.domain.money.savings import Savings, savings
from spotkeeper.ports import FleetError
from spotkeeper_charts.page import Chart, Colour, Figure, Page, Row, Series, Table, Tiles, Timeline
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.text import as_json, columns, extended, labelled, paragraphs

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import MetricDataQueryTypeDef

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Auto Scaling gives every instance this tag with its group's name.
GROUP_TAG = "aws:autoscaling:groupName"
# Cost Explorer is served from here for all regions.
CE_REGION = "us-east-1"
SPOT, ON_DEMAND = "Spot Instances", "On Demand Instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actual:
    """USD that AWS billed for the groups' instances in whole days (UTC), by how they were bought.

    `others` is all else that carries the tag: disks, data transfer. `estimated` says that a day of
    it may still change.
    """

    first: datetime
    until: datetime
    spot_usd: float
    on_demand_usd: float
    others_usd: float
    estimated: bool


def first_day(since: datetime) -> datetime:
    """Return the beginning of a time's first day (UTC), from which on AWS's bill is read."""
    return since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def read_actual(client: Any, groups: Sequence[str], since: datetime, until: datetime) -> Actual:
    """Ask for the whole days that lie within a time, the first day as a whole."""
    first = first_day(since)
    last = max(first_day(until), first + DAY)
    days: list[Any] = []
    token: dict[str, str] | None = {}
    while token is not None:
        with aws_errors("ce:GetCostAndUsage"):
            answer = client.get_cost_and_usage(
                TimePeriod={"Start": f"{first:%Y-%m-%d}", "End": f"{last:%Y-%m-%d}"},
                Granularity="DAILY",
                Metrics=["UnblendedCost"],
                Filter={"Tags": {"Key": GROUP_TAG, "Values": sorted(groups)}},
                GroupBy=[{"Type": "DIMENSION", "Key": "PURCHASE_TYPE"}],
                **token,
            )
        days += answer["ResultsByTime"]
        following = answer.get("NextPageToken")
        token = {"NextPageToken": following} if following else None
    billed: defaultdict[str, float] = defaultdict(float)
    for group in (group for day in days for group in day["Groups"]):
        billed[group["Keys"][0]] += float(group["Metrics"]["UnblendedCost"]["Amount"])
    return Actual(
        first=first,
        until=last,
        spot_usd=billed.pop(SPOT, 0.0),
        on_demand_usd=billed.pop(ON_DEMAND, 0.0),
        others_usd=sum(billed.values()),
        estimated=any(day.get("Estimated", False) for day in days),
    )


PERIOD_S = 3600
# The metrics read of each fleet, and of which of an hour's values the hour's is made.
LOAD, LIVE, WANTED = "OfferedLoad", "WorkersLive", "SpotDesired"
METRICS = {LOAD: "Average", LIVE: "Average", WANTED: "Maximum"}
# GetMetricData takes no more queries at once.
QUERIES_AT_MOST = 500


def read_use(
    client: "CloudWatchClient",
    stack: str,
    fleets: Mapping[str, int],
    since: datetime,
    until: datetime,
) -> tuple[float | None, int | None]:
    """Return the share of the live workers' time without a request, and the peak; None if unknown.

    `fleets` are their slots by name: a worker is fully busy with as many requests. The peak is the
    most spot instances that were wanted at once. What runs is no measure: while one instance takes
    another's place, both run.
    """
    series = [(name, fleet, slots) for fleet, slots in fleets.items() for name in METRICS]
    queries: list[MetricDataQueryTypeDef] = [
        {
            "Id": f"q{number}",
            "MetricStat": {
                "Metric": {
                    "Namespace": "Spotkeeper",
                    "MetricName": name,
                    "Dimensions": [
                        {"Name": "service", "Value": stack},
                        {"Name": "fleet", "Value": fleet},
                    ],
                },
                "Period": PERIOD_S,
                "Stat": METRICS[name],
            },
        }
        for number, (name, fleet, _) in enumerate(series)
    ]
    # By the hour, summed over the fleets.
    hours: dict[str, defaultdict[datetime, float]] = {name: defaultdict(float) for name in METRICS}
    with aws_errors("cloudwatch:GetMetricData"):
        for some in batched(queries, QUERIES_AT_MOST, strict=False):
            pages = client.get_paginator("get_metric_data").paginate(
                MetricDataQueries=some, StartTime=since, EndTime=until
            )
            for result in (each for page in pages for each in page["MetricDataResults"]):
                name, _, slots = series[int(result["Id"].removeprefix("q"))]
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    hours[name][at] += value / slots if name == LOAD else value
    live = sum(hours[LIVE].values())
    busy = sum(min(load, hours[LIVE].get(at, 0.0)) for at, load in hours[LOAD].items())
    peak = max(hours[WANTED].values(), default=None)
    return 1 - busy / live if live else None, None if peak is None else round(peak)


# AWS warns two minutes before the end; the load's window shows requests for a while after.
BEFORE, AFTER = timedelta(minutes=3), timedelta(minutes=15)
# Further ones are named, not read: each is a question of its own.
MOST_SPANS = 50
LONGEST_STEP = timedelta(minutes=2)
_MINUTE = timedelta(minutes=1)

type Span = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """Requests late and failed around interruptions; None where the records do not say.

    `spans` are the times looked at, `unread` those of which there were too many.
    """

    late: float | None
    failed: float | None
    spans: int
    unread: int


def spans_of(items: Iterable[LedgerItem], since: datetime, until: datetime) -> list[Span]:
    """Cut out the times around instances that AWS took, those that touch as one; newest first."""
    ends = sorted(
        item.until
        for item in items
        if item.until and item.ended_by is EndedBy.AWS and since <= item.until <= until
    )
    spans: list[Span] = []
    for end in ends:
        first, last = end - BEFORE, min(end + AFTER, until)
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))
    return spans[::-1]


def noticed(per_span: Sequence[Sequence[DecisionRecord]], unread: int) -> Noticed:
    """Add up what health turns saw of requests, a record for the time until the next."""

    def total(per_minute: Callable[[HealthFigures], float | None]) -> float | None:
        values = [
            count * (min(after.at - before.at, LONGEST_STEP) / _MINUTE)
            for records in per_span
            for before, after in pairwise(sorted(records, key=lambda r: r.at))
            if before.health and (count := per_minute(before.health)) is not None
        ]
        return sum(values) if values else None

    late = total(lambda figures: figures.requests_late)
    failed = total(lambda figures: figures.requests_failed)
    return Noticed(late=late, failed=failed, spans=len(per_span), unread=unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a cost: a day, a zone or a type."""

    name: str
    hours: float
    paid_usd: float
    on_demand_usd: float
    saved_usd: float


# The ledger is kept every five minutes.
LATE = timedelta(minutes=15)
GAPS_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What ran in a time, and its prices.

    `peak` is the most instances that were needed. `unknown` names what is not included because it
    was never read. `noticed` is what users noticed of interruptions, `idle` the share of the live
    workers' time without a request, `actual` what AWS billed; None if not known or not requested.
    `troubles` says what could not be read. `regions` is what its fleets' other regions cost, USD,
    where this one is their home.
    """

    items: tuple[LedgerItem, ...]
    book: PriceBook
    since: datetime
    until: datetime
    peak: int | None = None
    unknown: tuple[str, ...] = ()
    noticed: Noticed | None = None
    idle: float | None = None
    actual: Actual | None = None
    troubles: tuple[str, ...] = ()
    regions: Mapping[str, float] = field(default_factory=dict)

    @property
    def begins(self) -> datetime:
        """The first instant that the ledger knows of; a fixed fleet is compared from there on."""
        return max([self.since, *sorted(item.since for item in self.items)[:1]])

    def within(self, since: datetime, until: datetime) -> tuple[Priced, ...]:
        """Price the part of it that lies within a time."""
        return priced(self.items, self.book, since, until)

    @property
    def lives(self) -> tuple[Priced, ...]:
        return self.within(self.since, self.until)

    @property
    def is_known(self) -> bool:
        """Whether any of it is."""
        return bool(self.lives) or not self.unknown

    @cached_property
    def whole(self) -> Savings:
        """What was paid for all of it, and what that saved."""
        return savings(self.lives, self.begins, self.until, self.peak)


def read_cost(
    aws: Aws,
    stack_name: str,
    fleet: str | None,
    since: datetime,
    until: datetime,
    *,
    billed: bool = False,
    own: Mapping[str, float] | None = None,
) -> Cost:
    """Read and price the ledger of a time; with `billed` ask AWS what it billed, too.

    `own` are on-demand prices of types, USD an hour, that replace the list's.

    Raises `Gone` and `OperatorError`; what is beside the ledger and not allowed is a trouble.
    """
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    ledger = LedgerTable(aws.dynamodb, stack.table)
    # A fleet that was removed cost something until it was last looked at.
    ends = {name: ledger.opened(name)[1] for name in ledger.fleets() - documents.names}
    last = {name: at for name, at in sorted(ends.items()) if at and (fleet or at > since)}
    gone = [name for name in last if fleet in (None, name)]
    fleets = chosen(documents, fleet) if fleet not in ends else ()
    # What was billed is compared with the ledger of the same days.
    first = first_day(since) if billed else since
    slots = {each.name: each.slots for each in fleets}
    names = [*slots, *gone]
    items, book, known = _priced_ledger(aws, ledger, names, first, until, own)
    items = tuple(replace(item, until=item.until or ends.get(item.fleet)) for item in items)
    troubles: list[str] = []

    def ask[T](read: Callable[[], T]) -> T | None:
        try:
            return read()
        except FleetError as error:
            troubles.append(str(error))
            return None

    def around_interruptions() -> Noticed:
        records: list[Sequence[DecisionRecord]] = []
        unread = 0
        for name in sorted({item.fleet for item in items}):
            spans = spans_of((item for item in items if item.fleet == name), since, until)
            unread += len(spans[MOST_SPANS:])
            for span in spans[:MOST_SPANS]:
                records.append(aws.records(stack).between(name, *span).of(Controller.HEALTH))
        return noticed(records, unread)

    def elsewhere(region: str) -> float:
        there = aws.there(region)
        table = LedgerTable(there.dynamodb, there.stack(stack_name).table)
        items, book, known = _priced_ledger(there, table, names, since, until, own)
        lives = priced(items, book, max(since, known), until)
        return sum(one.paid for one in lives)

    others = {r: ask(partial(elsewhere, r)) for each in fleets for r in each.elsewhere}
    use = ask(lambda: read_use(aws.cloudwatch, stack.name, slots, since, until))
    idle, peak = use or (None, None)
    groups = [name for each in fleets for name in (each.spot_group, each.on_demand_group)]
    return Cost(
        items=items,
        book=book,
        since=max(since, known),
        until=until,
        peak=None if gone else peak,
        unknown=(
            *(f"{error}: its cost is not included" for error in documents.left_out),
            *unread(ledger, names, items, since, until),
        ),
        noticed=ask(around_interruptions),
        idle=idle,
        actual=ask(lambda: read_actual(aws.client("ce", CE_REGION), groups, since, until))
        if billed
        else None,
        troubles=tuple(dict.fromkeys(troubles)),
        regions={region: usd for region, usd in others.items() if usd is not None},
    )


def _priced_ledger(
    aws: Aws,
    ledger: LedgerTable,
    fleets: Sequence[str],
    since: datetime,
    until: datetime,
    own: Mapping[str, float] | None,
) -> tuple[tuple[LedgerItem, ...], PriceBook, datetime]:
    """Read the ledger of some fleets in a region, the prices there, and since when it is known.

    What adopted instances cost before is not all that their group cost.
    """
    began = {name: ledger.complete_since(name) for name in fleets}
    items = tuple(
        replace(item, since=max(item.since, began[name] or item.since))
        for name in fleets
        for item in ledger.since(name, since)
    )
    pools = {item.pool for item in items if item.option == "spot"}
    book = aws.prices(pools, {item.instance_type for item in items}, since, until)
    known = min((at or since for at in began.values()), default=since)
    return items, replace(book, on_demand={**book.on_demand, **(own or {})}), known


def unread(
    ledger: LedgerTable,
    fleets: Sequence[str],
    items: Sequence[LedgerItem],
    since: datetime,
    until: datetime,
) -> Iterator[str]:
    """Say of which fleets the ledger is missing, or ends too early."""
    for name in fleets:
        at = ledger.opened(name)[1]
        if at is None and not any(item.fleet == name for item in items):
            yield f"fleet {name}: cost not known, its instances were never read"
        for gap in ledger.gaps(name, since):
            if gap.since < until:
                parts = [
                    f"not read from {gap.since:%Y-%m-%d %H:%M} to {gap.until:%Y-%m-%d %H:%M} UTC"
                ]
                ran, ended = (
                    ", ".join(ids[:GAPS_NAMED]) + ", ..." * (len(ids) > GAPS_NAMED)
                    for ids in (gap.instances, gap.ended)
                )
                if gap.instances:
                    parts.append(f"not included of that time ({len(gap.instances)}): {ran}")
                if gap.ended:
                    parts.append(f"it is not known when or why these ended: {ended}")
                yield f"fleet {name}: {'; '.join(parts)}"
        if at is not None and until - at > LATE:
            yield f"fleet {name}: last read at {at:%Y-%m-%d %H:%M} UTC; later costs are not known"


NOT_IN_IT = (
    "disks, data transfer, the stack itself (about 14 a month: docs/bill.md), "
    "capacity reservations, Savings Plans and other discounts"
)


class By(StrEnum):
    """How a cost can be split."""

    DAY = "day"
    ZONE = "zone"
    TYPE = "type"


NUMBERS = ("hours", "paid", "on demand", "saved")

type Pair = tuple[str, str]
"""A label and its text."""


def cost_text(cost: Cost, by: By | None = None) -> str:
    """Say what was paid and what it saved; USD at list and spot prices."""
    sums, beside, notes = (
        [line for pair in pairs for line in labelled(*pair, indent=0)] for pairs in _pairs(cost)
    )
    head = f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD"
    table = [columns(rows(cost, by), frozenset(NUMBERS))] if by else []
    return paragraphs([[head], sums, beside, *table, notes])


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAnswer(Savings):
    """A cost for programs; USD are numbers, and their names end so."""

    since: datetime
    until: datetime
    paid_usd: float
    saved_by_sizing_usd: float | None
    missing_prices: tuple[str, ...]
    unpriced_hours: Mapping[str, float]
    requests_around_interruptions: Noticed | None
    idle_share: float | None
    actual: Actual | None
    unknown: tuple[str, ...]
    troubles: tuple[str, ...]
    regions_usd: Mapping[str, float]
    not_in_it: str
    by: By | None
    rows: tuple[Part, ...]


def cost_json(cost: Cost, by: By | None = None) -> str:
    answer = extended(
        CostAnswer,
        cost.whole,
        since=cost.begins,
        until=cost.until,
        paid_usd=cost.whole.paid,
        saved_by_sizing_usd=cost.whole.saved_by_sizing,
        missing_prices=tuple(_unpriced(cost)),
        unpriced_hours=_unpriced(cost),
        requests_around_interruptions=cost.noticed,
        idle_share=cost.idle,
        actual=cost.actual,
        unknown=cost.unknown,
        troubles=cost.troubles,
        regions_usd=cost.regions,
        not_in_it=NOT_IN_IT,
        by=by,
        rows=parts_of(cost, by) if by else (),
    )
    return as_json(answer)


def _pairs(cost: Cost) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Say what was paid; what that saved, with what is beside it; and what is not included."""
    whole, actual = cost.whole, cost.actual

    def saved(usd: float, of: float, what: str) -> str:
        return f"{usd:z.2f}" + (f", {usd / of:z.1%} of {what}" if of else "")

    fixed = "not known: no metric says how many instances were needed"
    by_sizing = "not known"
    if whole.fixed_fleet_usd is not None and whole.saved_by_sizing is not None:
        fixed = f"{whole.fixed_fleet_usd:.2f} for {whole.peak} on demand, the most that were needed"
        by_sizing = saved(whole.saved_by_sizing, whole.fixed_fleet_usd, "the fixed fleet")
    least = "at least " if cost.unknown else ""
    sums = [
        ("paid", f"{least}{whole.paid:.2f}  "
                 f"(spot {whole.spent_spot_usd:.2f} for {whole.spot_h:.1f} h, "
                 f"on demand {whole.spent_on_demand_usd:.2f} for {whole.on_demand_h:.1f} h)"),
        ("same hours", f"{whole.same_on_demand_usd:.2f} on demand"),
        ("fixed fleet", fixed),
    ]  # fmt: skip
    beside = [
        ("spot saved", saved(whole.saved_by_spot_usd, whole.same_on_demand_usd, "the same hours")),
        ("sizing saved", by_sizing),
    ]

    interrupted = f"{least}{whole.interruptions} instance{'s' * (whole.interruptions != 1)}"
    users = cost.noticed
    if users and users.spans and users.failed is None:
        interrupted += "; the records do not say what users noticed"
    elif users and users.spans:
        late = "" if users.late is None else f"{users.late:.0f} requests late and "
        interrupted += f"; within 15 min of them {late}{users.failed:.0f} failed"
        interrupted += f"; {users.unread} earlier times were not read" if users.unread else ""
    if not cost.is_known:
        sums, beside = [("paid", "not known")], [("saved", "not known")]
        interrupted = "not known"
    everywhere = whole.paid + sum(cost.regions.values())
    for region, usd in cost.regions.items():
        sums.append(("elsewhere", f"{region} {saved(usd, everywhere, 'what all regions cost')}"))
    beside.append(("interrupted", interrupted))
    if cost.idle is not None:
        hours = whole.spot_h + whole.on_demand_h + whole.reserved_h
        idle = f"{cost.idle * hours:.1f} h of {hours:.1f} h: {cost.idle:.0%} of the workers' time"
        beside.append(("idle", f"{idle} had no request"))
    if actual is not None and not (actual.spot_usd or actual.on_demand_usd or actual.others_usd):
        none = f"nothing is billed under the tag {GROUP_TAG}: activate it as a cost allocation tag "
        beside.append(("actual", f"{none}in the billing console; costs appear a day later"))
    elif actual is not None:
        same_days = cost.within(actual.first, actual.until)
        billed = (
            f"{actual.spot_usd + actual.on_demand_usd:.2f} billed for instances from "
            f"{actual.first:%Y-%m-%d} to {actual.until:%Y-%m-%d} (spot {actual.spot_usd:.2f}, "
            f"on demand {actual.on_demand_usd:.2f}), {actual.others_usd:.2f} for other items with "
            f"the tag{', not final yet' if actual.estimated else ''}; by the ledger "
            f"{savings(same_days, actual.first, actual.until).paid:.2f}"
        )
        beside.append(("actual", billed))

    notes = [("not included", NOT_IN_IT)]
    if whole.reserved_h:
        paid = "which are paid for whether they are used or not"
        notes.append(("reserved", f"{whole.reserved_h:.1f} h in capacity reservations, {paid}"))
    if whole.unpriced_h:
        named = ", ".join(f"{name} ({hours:.1f} h)" for name, hours in _unpriced(cost).items())
        unpriced = f"{whole.unpriced_h:.1f} h have no price and are not included"
        notes.append(("missing", f"{unpriced}: {named}"))
    notes += (("not known", unknown) for unknown in cost.unknown)
    notes += (("trouble", trouble) for trouble in cost.troubles)
    return sums, beside, notes


def _unpriced(cost: Cost) -> dict[str, float]:
    """Hours without a price, by the price that lacks."""
    hours: defaultdict[str, float] = defaultdict(float)
    for each in cost.lives:
        if each.unpriced_h:
            lists = each.item.instance_type not in cost.book.on_demand
            name = f"on-demand {each.item.instance_type}" if lists else f"spot {each.item.pool}"
            hours[name] += each.unpriced_h
    return dict(sorted(hours.items()))


def parts_of(cost: Cost, by: By) -> tuple[Part, ...]:
    """Split hours and USD; days end at midnight, UTC."""
    parts: dict[str, Sequence[Priced]] = {}
    if by is By.DAY:
        first = cost.begins if cost.is_known else cost.until
        while first < cost.until:
            midnight = first_day(first) + DAY
            parts[f"{first:%Y-%m-%d}"] = cost.within(first, min(midnight, cost.until))
            first = midnight
    else:
        key = attrgetter("item.zone" if by is By.ZONE else "item.instance_type")
        parts = {name: [*of] for name, of in groupby(sorted(cost.lives, key=key), key)}
    return tuple(
        Part(
            name=name,
            hours=sum(p.hours for p in lives),
            paid_usd=sum(p.paid for p in lives),
            on_demand_usd=sum(p.on_demand for p in lives),
            saved_usd=sum(p.saved for p in lives),
        )
        for name, lives in parts.items()
    )


def rows(cost: Cost, by: By) -> list[dict[str, str]]:
    """Say the parts in the cells of a table."""
    return [
        {
            by.value: part.name,
            "hours": f"{part.hours:.1f}",
            "paid": f"{part.paid_usd:.2f}",
            "on demand": f"{part.on_demand_usd:.2f}",
            "saved": f"{part.saved_usd:.2f}",
        }
        for part in parts_of(cost, by)
    ]


# Beyond this, hours crowd a picture: days are drawn.
BY_HOURS_UP_TO = timedelta(days=14)


def cost_page(cost: Cost, by: By | None = None) -> Page:
    """The page of a cost, split by day unless `by` says otherwise."""
    whole, kind = cost.whole, by or By.DAY
    sizing = whole.saved_by_sizing
    figures = {
        "paid": f"{whole.paid:.2f}",
        "the same hours on demand": f"{whole.same_on_demand_usd:.2f}",
        "saved by spot": f"{whole.saved_by_spot_usd:.2f}",
        "saved by sizing": "not known" if sizing is None else f"{sizing:.2f}",
    }
    return Page(
        title="What it cost, and what it saved",
        subtitle=f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD at list "
        "and spot prices",
        footer="Written by spotkeeper cost from the ledger.",
        blocks=[
            Tiles(
                [
                    Figure(label=label, value=value if cost.is_known else "not known")
                    for label, value in figures.items()
                ]
            ),
            _over_time(cost),
            Table(
                caption=f"By {kind}",
                columns=(kind.value, *NUMBERS),
                numbers=NUMBERS,
                rows=[Row(cells=tuple(row.values())) for row in rows(cost, kind)],
            ),
            Table(
                caption="All of it",
                columns=("what", "how much"),
                rows=[Row(cells=pair) for pairs in _pairs(cost) for pair in pairs],
            ),
        ],
    )


def _over_time(cost: Cost) -> Timeline:
    first = cost.begins
    step = HOUR if cost.until - first <= BY_HOURS_UP_TO else DAY
    count = max(1, ceil((cost.until - first) / step))
    spans = [
        (at, min(at + step, cost.until))
        for at in (first + number * step for number in range(count))
    ]
    sums = [savings(cost.within(at, end), at, at + step) for at, end in spans]

    def drawn(label: str, colour: Colour, of: Callable[[Savings], float], **more: Any) -> Series:
        """Values an hour."""
        pairs = zip(sums, spans, strict=True)
        values = [of(one) / ((end - at) / HOUR) for one, (at, end) in pairs]
        t = [(at - first).total_seconds() for at, _ in spans]
        return Series(label=label, colour=colour, t=t, values=values, **more)

    def stacked(of: Callable[[Savings], float], both: Callable[[Savings], float]) -> list[Series]:
        spot = drawn("spot", "spot", of, kind="area")
        return [spot, drawn("on-demand", "on-demand", both, kind="area", base=spot.values)]

    paid = stacked(lambda s: s.spent_spot_usd, lambda s: s.paid)
    same = drawn("the same on demand", "target", lambda s: s.same_on_demand_usd)
    running = stacked(lambda s: s.spot_h, lambda s: s.spot_h + s.on_demand_h + s.reserved_h)
    return Timeline(
        length_s=max(1.0, (cost.until - first).total_seconds()),
        clock_s=first.hour * 3600.0 + first.minute * 60.0 + first.second,
        date=f"{first:%Y-%m-%d}",
        charts=[
            Chart(title="Paid", unit="USD an hour", height=220, series=[*paid, same]),
            Chart(title="Instances", unit="running, in the mean", series=running),
        ],
    )
