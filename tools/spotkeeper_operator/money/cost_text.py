"""What fleets cost, as text and as JSON."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum

from spotkeeper.domain.money.prices import Priced
from spotkeeper.domain.money.savings import Savings, savings
from spotkeeper_operator.money.actual import GROUP_TAG, Actual
from spotkeeper_operator.money.read_cost import Cost
from spotkeeper_operator.text import as_json, columns, labelled, paragraphs

NOT_IN_IT = (
    "disks, data transfer, the stack itself (about 12 a fleet and month: docs/operations.md, "
    "What it costs), Savings Plans, reservations and other discounts"
)


class By(StrEnum):
    """What a cost can be told apart by."""

    DAY = "day"
    ZONE = "zone"
    TYPE = "type"


type Pair = tuple[str, str]
"""A label and what is said."""


def cost_text(cost: Cost, by: By | None = None) -> str:
    """Say what was paid and what it saved; USD at list and spot prices."""
    whole = savings(cost.found, cost.begins, cost.until, cost.peak)
    blocks = [
        [f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD"],
        _lines(_sums(cost, whole)),
        _lines([*_share(cost, whole), *_beside(cost, whole)]),
    ]
    if by is not None:
        blocks.append(columns(rows(cost, by), frozenset({"hours", "paid", "on demand", "saved"})))
    return paragraphs([*blocks, _lines(_notes(cost, whole))])


def cost_json(cost: Cost, by: By | None = None) -> str:
    whole = savings(cost.found, cost.begins, cost.until, cost.peak)
    answer = {
        "since": cost.begins.isoformat(),
        "until": cost.until.isoformat(),
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


def sentences(cost: Cost, whole: Savings) -> list[Pair]:
    """All that is said, each with its label."""
    return [*_sums(cost, whole), *_share(cost, whole), *_beside(cost, whole), *_notes(cost, whole)]


def _lines(pairs: Iterable[Pair]) -> list[str]:
    return [line for pair in pairs for line in labelled(*pair, indent=0)]


def _sums(cost: Cost, whole: Savings) -> list[Pair]:
    if cost.unknown and not cost.found:
        return [("paid", "not known")]
    least = "at least " if cost.unknown else ""
    return [
        ("paid", f"{least}{whole.paid:.2f}  (spot {whole.spent_spot:.2f} for {whole.spot_h:.1f} h, "
                 f"on demand {whole.spent_on_demand:.2f} for {whole.on_demand_h:.1f} h)"),
        ("same hours", f"{whole.same_on_demand:.2f} on demand"),
        ("fixed fleet", _fixed(whole)),
    ]  # fmt: skip


def _share(cost: Cost, whole: Savings) -> list[Pair]:
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


def _beside(cost: Cost, whole: Savings) -> list[Pair]:
    pairs = [("interrupted", f"{whole.interruptions} instances" + _users(cost))]
    if cost.idle is not None:
        hours = whole.spot_h + whole.on_demand_h
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


def _notes(cost: Cost, whole: Savings) -> list[Pair]:
    pairs = [("not in it", NOT_IN_IT)]
    if whole.unpriced_h:
        named = ", ".join(f"{name} ({hours:.1f} h)" for name, hours in _unpriced(cost).items())
        told = f"{whole.unpriced_h:.1f} h have no price and are in no sum"
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
    """Hours and USD, told apart."""
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
