"""What do the fleets cost? Read from ledger and prices; as text, as JSON and as a page.

Cost Explorer adds what AWS billed, by the tag of the group, a day at a time. An account's cost
allocation tags must be activated once, in the billing console. What is billed shows up there a
day later, and each request costs 0.01 USD.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any

from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.money.ledger import EndedBy, Gap, LedgerItem
from spotkeeper.domain.money.prices import PriceBook, Priced, priced
from spotkeeper.domain.money.savings import Savings, savings
from spotkeeper.ports import FleetError
from spotkeeper_charts.page import Chart, Figure, Page, Row, Series, Table, Tiles, Timeline
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.text import as_json, columns, labelled, paragraphs

if TYPE_CHECKING:
    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import MetricDataQueryTypeDef

    from spotkeeper.adapters.stacks import Stack

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
    spot: float
    on_demand: float
    others: float
    estimated: bool

    @property
    def found(self) -> bool:
        """Whether anything was billed under the tag."""
        return bool(self.spot or self.on_demand or self.others)


def first_day(since: datetime) -> datetime:
    """Give the beginning of a time's first day (UTC), from which on AWS's bill is read."""
    return since.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def read_actual(client: Any, groups: Sequence[str], since: datetime, until: datetime) -> Actual:
    """Ask for the whole days that lie within a time, the first day as a whole."""
    first = first_day(since)
    last = max(first_day(until), first + timedelta(days=1))
    days: list[Any] = []
    token: dict[str, str] = {}
    while True:
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
        if not answer.get("NextPageToken"):
            break
        token = {"NextPageToken": answer["NextPageToken"]}
    billed: defaultdict[str, float] = defaultdict(float)
    for group in (group for day in days for group in day["Groups"]):
        billed[group["Keys"][0]] += float(group["Metrics"]["UnblendedCost"]["Amount"])
    return Actual(
        first=first,
        until=last,
        spot=billed.pop(SPOT, 0.0),
        on_demand=billed.pop(ON_DEMAND, 0.0),
        others=sum(billed.values()),
        estimated=any(day.get("Estimated", False) for day in days),
    )


PERIOD_S = 3600
LOAD, LIVE, WANTED = "OfferedLoad", "WorkersLive", "SpotDesired"


def read_idle(
    client: "CloudWatchClient", stack: str, fleets: Sequence[str], since: datetime, until: datetime
) -> float | None:
    """Answer the share of the live workers' time without a request; None where nothing is known."""
    found = _hours(client, stack, fleets, (LOAD, LIVE), "Average", since, until)
    live = sum(found[LIVE].values())
    busy = sum(min(load, found[LIVE].get(at, 0.0)) for at, load in found[LOAD].items())
    return 1 - busy / live if live else None


def read_peak(
    client: "CloudWatchClient", stack: str, fleets: Sequence[str], since: datetime, until: datetime
) -> int | None:
    """Return the most spot instances that were wanted at once; None where nothing is known.

    What runs is no measure: while one instance takes another's place, both run.
    """
    wanted = _hours(client, stack, fleets, (WANTED,), "Maximum", since, until)[WANTED]
    return round(max(wanted.values())) if wanted else None


def _hours(
    client: "CloudWatchClient",
    stack: str,
    fleets: Sequence[str],
    names: Sequence[str],
    stat: str,
    since: datetime,
    until: datetime,
) -> dict[str, dict[datetime, float]]:
    """Read metrics by the hour, each summed over the fleets."""
    queries: list[MetricDataQueryTypeDef] = [
        {
            "Id": f"{name[0].lower()}{name[1:]}{number}",
            "Label": name,
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
                "Stat": stat,
            },
        }
        for number, fleet in enumerate(fleets)
        for name in names
    ]
    sums: dict[str, dict[datetime, float]] = {name: {} for name in names}
    pages = client.get_paginator("get_metric_data").paginate(
        MetricDataQueries=queries, StartTime=since, EndTime=until
    )
    with aws_errors("cloudwatch:GetMetricData"):
        for page in pages:
            for result in page["MetricDataResults"]:
                hours = sums[result["Label"]]
                for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                    hours[at] = hours.get(at, 0.0) + value
    return sums


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
    late, failed = (_sum(per_span, name) for name in ("RequestsLate", "RequestsFailed"))
    return Noticed(late=late, failed=failed, spans=len(per_span), unread=unread)


def _sum(per_span: Sequence[Sequence[DecisionRecord]], name: str) -> float | None:
    found = [
        before.seen[name] * (min(after.at - before.at, LONGEST_STEP) / _MINUTE)
        for records in per_span
        for before, after in pairwise(sorted(records, key=lambda r: r.at))
        if name in before.seen
    ]
    return sum(found) if found else None


# The ledger is kept every five minutes.
LATE = timedelta(minutes=15)
GAPS_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What ran in a time, and its prices; `missing` names those that AWS does not have.

    `peak` is how many instances were needed at most, `unknown` names what is in no sum because it
    was never read. `noticed` is what users noticed of interruptions, `idle` the share of the live
    workers' time without a request, `actual` what AWS billed; None where it is not known or not
    requested. `troubles` says what could not be read.
    """

    items: tuple[LedgerItem, ...]
    book: PriceBook
    since: datetime
    until: datetime
    missing: tuple[str, ...]
    peak: int | None = None
    unknown: tuple[str, ...] = ()
    noticed: Noticed | None = None
    idle: float | None = None
    actual: Actual | None = None
    troubles: tuple[str, ...] = ()

    @property
    def begins(self) -> datetime:
        """The first instant that the ledger knows of; a fixed fleet is compared from there on."""
        return max([self.since, *sorted(item.since for item in self.items)[:1]])

    def within(self, since: datetime, until: datetime) -> tuple[Priced, ...]:
        """Price the part of it that lies within a time."""
        return priced(self.items, self.book, since, until)

    @property
    def found(self) -> tuple[Priced, ...]:
        return self.within(self.since, self.until)

    @cached_property
    def whole(self) -> Savings:
        """What was paid for all of it, and what that saved."""
        return savings(self.found, self.begins, self.until, self.peak)


def read_cost(
    aws: Aws,
    stack_name: str,
    fleet: str | None,
    since: datetime,
    until: datetime,
    *,
    billed: bool = False,
) -> Cost:
    """Read and price the ledger of a time; with `billed` ask AWS what it billed, too.

    Raises `Gone` and `OperatorError`; what is beside the ledger and not allowed is a trouble.
    """
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    fleets = chosen(documents, fleet)
    ledger = LedgerTable(aws.dynamodb, stack.table)
    # What was billed is compared with the ledger of the same days.
    first = first_day(since) if billed else since
    items = tuple(item for each in fleets for item in ledger.since(each.name, first))
    pools = {item.pool for item in items if item.option == "spot"}
    types = {item.instance_type for item in items}
    book = aws.prices(pools, types, first, until)
    missing = [f"spot {pool}" for pool in sorted(pools - book.spot.keys())]
    missing += [f"on-demand {kind}" for kind in sorted(types - book.on_demand.keys())]
    troubles: list[str] = []

    def ask[T](read: Callable[[], T]) -> T | None:
        try:
            return read()
        except FleetError as error:
            troubles.append(str(error))
            return None

    names = [each.name for each in fleets]
    groups = [name for each in fleets for name in (each.spot_group, each.on_demand_group)]
    return Cost(
        items=items,
        book=book,
        since=since,
        until=until,
        missing=tuple(missing),
        peak=ask(lambda: read_peak(aws.cloudwatch, stack.name, names, since, until)),
        unknown=(
            *(f"{error}: its cost is in no sum" for error in documents.errors),
            *unread(ledger, names, items, since, until),
        ),
        noticed=ask(lambda: _noticed(aws, stack, items, since, until)),
        idle=ask(lambda: read_idle(aws.cloudwatch, stack.name, names, since, until)),
        actual=ask(lambda: read_actual(aws.client("ce", CE_REGION), groups, since, until))
        if billed
        else None,
        troubles=tuple(dict.fromkeys(troubles)),
    )


def unread(
    ledger: LedgerTable,
    fleets: Sequence[str],
    items: Sequence[LedgerItem],
    since: datetime,
    until: datetime,
) -> Iterator[str]:
    """Say of which fleets the ledger is missing, or ends too early."""
    for name in fleets:
        at = ledger.complete_until(name)
        if at is None and not any(item.fleet == name for item in items):
            yield f"fleet {name}: its instances were never read; what it cost is not known"
        for gap in ledger.gaps(name, since):
            if gap.since < until:
                yield f"fleet {name}: {_gap(gap)}"
        if at is not None and until - at > LATE:
            yield f"fleet {name}: last read at {at:%Y-%m-%d %H:%M} UTC; later costs are not known"


def _gap(gap: Gap) -> str:
    parts = [f"not read from {gap.since:%Y-%m-%d %H:%M} to {gap.until:%Y-%m-%d %H:%M} UTC"]
    if gap.instances:
        one, ids = len(gap.instances) == 1, _named(gap.instances)
        ran = "1 instance that ran" if one else f"{len(gap.instances)} instances that ran"
        parts.append(f"{ran} meanwhile {'is' if one else 'are'} in no sum: {ids}")
    if gap.ended:
        parts.append(f"why, or when, these ended is not known: {_named(gap.ended)}")
    return "; ".join(parts)


def _named(instances: Sequence[str]) -> str:
    return ", ".join(instances[:GAPS_NAMED]) + (", ..." if len(instances) > GAPS_NAMED else "")


def _noticed(
    aws: Aws, stack: "Stack", items: Sequence[LedgerItem], since: datetime, until: datetime
) -> Noticed:
    """Read the records around interruptions, fleet by fleet."""
    found: list[Sequence[DecisionRecord]] = []
    unread = 0
    for name in sorted({item.fleet for item in items}):
        spans = spans_of((item for item in items if item.fleet == name), since, until)
        unread += len(spans[MOST_SPANS:])
        for first, last in spans[:MOST_SPANS]:
            records = aws.records(stack).between(name, first, last).records
            found.append([r for r in records if r.controller is Controller.HEALTH])
    return noticed(found, unread)


NOT_IN_IT = (
    "disks, data transfer, the stack itself (about 12 a fleet and month: docs/operations.md, "
    "What it costs), Savings Plans, reservations and other discounts"
)


class By(StrEnum):
    """How a cost can be split."""

    DAY = "day"
    ZONE = "zone"
    TYPE = "type"


type Pair = tuple[str, str]
"""A label and its text."""


def cost_text(cost: Cost, by: By | None = None) -> str:
    """Say what was paid and what it saved; USD at list and spot prices."""
    blocks = [
        [f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD"],
        _lines(_sums(cost)),
        _lines([*_share(cost), *_beside(cost)]),
    ]
    if by is not None:
        blocks.append(columns(rows(cost, by), frozenset({"hours", "paid", "on demand", "saved"})))
    return paragraphs([*blocks, _lines(_notes(cost))])


def cost_json(cost: Cost, by: By | None = None) -> str:
    whole = cost.whole
    answer = {
        "since": cost.begins,
        "until": cost.until,
        **asdict(whole),
        "paid": whole.paid,
        "saved_by_spot": whole.saved_by_spot,
        "saved_by_sizing": whole.saved_by_sizing,
        "missing_prices": cost.missing,
        "unpriced_hours": _unpriced(cost),
        "requests_around_interruptions": asdict(cost.noticed) if cost.noticed else None,
        "idle_share": cost.idle,
        "actual": asdict(cost.actual) if cost.actual else None,
        "unknown": cost.unknown,
        "troubles": cost.troubles,
        "not_in_it": NOT_IN_IT,
    }
    if by is not None:
        answer["rows"] = rows(cost, by)
    return as_json(answer)


def _lines(pairs: Iterable[Pair]) -> list[str]:
    return [line for pair in pairs for line in labelled(*pair, indent=0)]


def _sums(cost: Cost) -> list[Pair]:
    whole = cost.whole
    if cost.unknown and not cost.found:
        return [("paid", "not known")]
    least = "at least " if cost.unknown else ""
    return [
        ("paid", f"{least}{whole.paid:.2f}  (spot {whole.spent_spot:.2f} for {whole.spot_h:.1f} h, "
                 f"on demand {whole.spent_on_demand:.2f} for {whole.on_demand_h:.1f} h)"),
        ("same hours", f"{whole.same_on_demand:.2f} on demand"),
        ("fixed fleet", _fixed(whole)),
    ]  # fmt: skip


def _share(cost: Cost) -> list[Pair]:
    whole = cost.whole
    if cost.unknown and not cost.found:
        return [("saved", "not known")]
    return [
        ("spot saved", _saved(whole.saved_by_spot, whole.same_on_demand, "the same hours")),
        ("sizing saved", _by_sizing(whole)),
    ]


def _fixed(whole: Savings) -> str:
    if whole.fixed_fleet is None:
        return "not known: no metric says how many instances were needed"
    return f"{whole.fixed_fleet:.2f} for {whole.peak} on demand, the most that were needed"


def _by_sizing(whole: Savings) -> str:
    if whole.saved_by_sizing is None or whole.fixed_fleet is None:
        return "not known"
    return _saved(whole.saved_by_sizing, whole.fixed_fleet, "the fixed fleet")


def _beside(cost: Cost) -> list[Pair]:
    pairs = [("interrupted", f"{cost.whole.interruptions} instances" + _users(cost))]
    if cost.idle is not None:
        hours = cost.whole.spot_h + cost.whole.on_demand_h
        told = f"{cost.idle * hours:.1f} h of {hours:.1f} h: {cost.idle:.0%} of the workers' time"
        pairs.append(("idle", f"{told} had no request"))
    if cost.actual is not None:
        pairs.append(("actual", _actual(cost, cost.actual)))
    return pairs


def _users(cost: Cost) -> str:
    found = cost.noticed
    if found is None or not found.spans:
        return ""
    if found.failed is None:
        return "; the records do not say what users noticed"
    late = "" if found.late is None else f"{found.late:.0f} requests late and "
    told = f"; within 15 min of them {late}{found.failed:.0f} failed"
    return told + (f"; {found.unread} earlier times were not read" if found.unread else "")


def _actual(cost: Cost, actual: Actual) -> str:
    if not actual.found:
        return (
            f"nothing is billed under the tag {GROUP_TAG}: activate it as a cost allocation tag "
            "in the billing console; it shows a day later"
        )
    paid = savings(cost.within(actual.first, actual.until), actual.first, actual.until).paid
    sure = ", not final yet" if actual.estimated else ""
    return (
        f"{actual.spot + actual.on_demand:.2f} billed for instances from {actual.first:%Y-%m-%d} "
        f"to {actual.until:%Y-%m-%d} (spot {actual.spot:.2f}, on demand {actual.on_demand:.2f}), "
        f"{actual.others:.2f} for what else carries the tag{sure}; by the ledger {paid:.2f}"
    )


def _saved(usd: float, of: float, what: str) -> str:
    return f"{usd:z.2f}" + (f", {usd / of:z.1%} of {what}" if of else "")


def _notes(cost: Cost) -> list[Pair]:
    pairs = [("not in it", NOT_IN_IT)]
    if cost.whole.unpriced_h:
        named = ", ".join(f"{name} ({hours:.1f} h)" for name, hours in _unpriced(cost).items())
        told = f"{cost.whole.unpriced_h:.1f} h have no price and are in no sum"
        pairs.append(("missing", f"{told}: {named}"))
    pairs += [("not known", unknown) for unknown in cost.unknown]
    return [*pairs, *(("trouble", trouble) for trouble in cost.troubles)]


def _unpriced(cost: Cost) -> dict[str, float]:
    """Hours without a price, by the price that lacks."""
    hours: dict[str, float] = {}
    for each in cost.found:
        if each.unpriced_h:
            lists = each.item.instance_type not in cost.book.on_demand
            name = f"on-demand {each.item.instance_type}" if lists else f"spot {each.item.pool}"
            hours[name] = hours.get(name, 0.0) + each.unpriced_h
    return dict(sorted(hours.items()))


def rows(cost: Cost, by: By) -> list[dict[str, str]]:
    """Hours and USD, split."""
    return [
        {
            by.value: name,
            "hours": f"{sum(p.hours for p in found):.1f}",
            "paid": f"{sum(p.paid for p in found):.2f}",
            "on demand": f"{sum(p.on_demand for p in found):.2f}",
            "saved": f"{sum(p.on_demand - p.paid for p in found):.2f}",
        }
        for name, found in _told_apart(cost, by)
    ]


def _told_apart(cost: Cost, by: By) -> list[tuple[str, Sequence[Priced]]]:
    if by is By.DAY:
        return [(f"{first:%Y-%m-%d}", cost.within(first, last)) for first, last in _days(cost)]
    key: Callable[[Priced], str] = {
        By.ZONE: lambda p: p.item.zone,
        By.TYPE: lambda p: p.item.instance_type,
    }[by]
    names = sorted({key(p) for p in cost.found})
    return [(name, [p for p in cost.found if key(p) == name]) for name in names]


def _days(cost: Cost) -> list[tuple[datetime, datetime]]:
    """Cut a time at midnight, UTC."""
    days = []
    first = cost.since
    while first < cost.until:
        midnight = datetime.combine(first.astimezone(UTC).date(), time(), UTC) + timedelta(days=1)
        days.append((first, min(midnight, cost.until)))
        first = midnight
    return days


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Beyond this, hours crowd a picture: days are drawn.
BY_HOURS_UP_TO = timedelta(days=14)


def cost_page(cost: Cost, by: By | None = None) -> Page:
    """The page of a cost, split by day unless `by` says otherwise."""
    whole, kind = cost.whole, by or By.DAY
    every = [*_sums(cost), *_share(cost), *_beside(cost), *_notes(cost)]
    return Page(
        title="What it cost, and what it saved",
        subtitle=f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD at list "
        "and spot prices",
        footer="Written by spotkeeper cost from the ledger.",
        blocks=[
            Tiles(
                [
                    Figure(label="paid", value=f"{whole.paid:.2f}"),
                    Figure(label="the same hours on demand", value=f"{whole.same_on_demand:.2f}"),
                    Figure(label="saved by spot", value=f"{whole.saved_by_spot:.2f}"),
                    Figure(
                        label="saved by sizing",
                        value="not known"
                        if whole.saved_by_sizing is None
                        else f"{whole.saved_by_sizing:.2f}",
                    ),
                ]
            ),
            _over_time(cost),
            Table(
                caption=f"By {kind}",
                columns=(kind.value, "hours", "paid", "on demand", "saved"),
                numbers=("hours", "paid", "on demand", "saved"),
                rows=[Row(cells=tuple(row.values())) for row in rows(cost, kind)],
            ),
            Table(
                caption="All of it",
                columns=("what", "how much"),
                rows=[Row(cells=pair) for pair in every],
            ),
        ],
    )


def _over_time(cost: Cost) -> Timeline:
    step = HOUR if cost.until - cost.begins <= BY_HOURS_UP_TO else DAY
    count = max(1, ceil((cost.until - cost.begins) / step))
    starts = [cost.begins + number * step for number in range(count)]
    sums = [savings(cost.within(at, min(at + step, cost.until)), at, at + step) for at in starts]
    t = [(at - cost.begins).total_seconds() for at in starts]

    def an_hour(of: Callable[[Savings], float]) -> list[float]:
        hours = ((min(at + step, cost.until) - at) / HOUR for at in starts)
        return [of(one) / span for one, span in zip(sums, hours, strict=True)]

    def stacked(spot: list[float], both: list[float]) -> list[Series]:
        return [
            Series(label="spot", colour="spot", kind="area", t=t, values=spot),
            Series(label="on-demand", colour="on-demand", kind="area", t=t, values=both, base=spot),
        ]

    paid = stacked(an_hour(lambda s: s.spent_spot), an_hour(lambda s: s.paid))
    same = an_hour(lambda s: s.same_on_demand)
    running = stacked(an_hour(lambda s: s.spot_h), an_hour(lambda s: s.spot_h + s.on_demand_h))
    first = cost.begins
    return Timeline(
        length_s=max(1.0, (cost.until - first).total_seconds()),
        clock_s=first.hour * 3600.0 + first.minute * 60.0 + first.second,
        date=f"{first:%Y-%m-%d}",
        charts=[
            Chart(
                title="Paid",
                unit="USD an hour",
                height=220,
                series=[
                    *paid,
                    Series(label="the same on demand", colour="target", t=t, values=same),
                ],
            ),
            Chart(title="Instances", unit="running, in the mean", series=running),
        ],
    )
