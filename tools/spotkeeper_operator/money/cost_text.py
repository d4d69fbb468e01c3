"""What fleets cost, as text of 80 columns and as JSON."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum

from spotkeeper.domain.money.prices import Priced
from spotkeeper.domain.money.savings import Savings, savings
from spotkeeper_operator.money.read_cost import Cost
from spotkeeper_operator.text import columns, labelled, paragraphs

NOT_IN_IT = (
    "disks, data transfer, the stack itself (docs/operations.md, What it costs), "
    "Savings Plans, reservations and other discounts"
)


class By(StrEnum):
    """What a cost can be told apart by."""

    DAY = "day"
    ZONE = "zone"
    TYPE = "type"


def cost_text(cost: Cost, by: By | None = None) -> str:
    """Say what was paid and what it saved; USD at list and spot prices."""
    whole = savings(cost.found, cost.begins, cost.until)
    blocks = [
        [f"{cost.begins:%Y-%m-%d %H:%M} to {cost.until:%Y-%m-%d %H:%M} UTC, USD"],
        _sums(whole),
        _share(whole),
    ]
    if by is not None:
        blocks.append(columns(_rows(cost, by), frozenset({"hours", "paid", "on demand", "saved"})))
    return paragraphs([*blocks, _notes(cost, whole)])


def cost_json(cost: Cost, by: By | None = None) -> str:
    """The same for programs."""
    whole = savings(cost.found, cost.begins, cost.until)
    answer = {
        "since": cost.begins.isoformat(),
        "until": cost.until.isoformat(),
        **asdict(whole),
        "paid": whole.paid,
        "saved_by_spot": whole.saved_by_spot,
        "saved_by_sizing": whole.saved_by_sizing,
        "missing_prices": cost.missing,
        "not_in_it": NOT_IN_IT,
    }
    if by is not None:
        answer["rows"] = _rows(cost, by)
    return json.dumps(answer, indent=2) + "\n"


def _sums(whole: Savings) -> list[str]:
    rows = [
        ("paid", f"{whole.paid:.2f}  (spot {whole.spent_spot:.2f} for {whole.spot_h:.1f} h, "
                 f"on demand {whole.spent_on_demand:.2f} for {whole.on_demand_h:.1f} h)"),
        ("same hours", f"{whole.same_on_demand:.2f} on demand"),
        ("fixed fleet", f"{whole.fixed_fleet:.2f} for {whole.peak} on demand, the peak"),
    ]  # fmt: skip
    return [line for row in rows for line in labelled(*row, indent=0)]


def _share(whole: Savings) -> list[str]:
    rows = [
        ("spot saved", _saved(whole.saved_by_spot, whole.same_on_demand, "the same hours")),
        ("sizing saved", _saved(whole.saved_by_sizing, whole.fixed_fleet, "the fixed fleet")),
        ("interrupted", f"{whole.interruptions} instances"),
    ]
    return [line for row in rows for line in labelled(*row, indent=0)]


def _saved(usd: float, of: float, what: str) -> str:
    return f"{usd:.2f}" + (f", {usd / of:.1%} of {what}" if of else "")


def _notes(cost: Cost, whole: Savings) -> list[str]:
    lines = labelled("not in it", NOT_IN_IT, indent=0)
    if whole.unpriced_h:
        told = f"{whole.unpriced_h:.1f} h have no price and are in no sum"
        lines += labelled(
            "missing",
            ": ".join([told, *([", ".join(cost.missing)] * bool(cost.missing))]),
            indent=0,
        )
    return lines


def _rows(cost: Cost, by: By) -> list[dict[str, str]]:
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
