"""What a request costs on each instance type: service times of the same minutes, prices of now."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.speeds import TRUSTED, Served, Speeds, learn
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.cost import Cost, read_cost
from spotkeeper_operator.text import columns, labelled, paragraphs

_RIGHT = frozenset(
    {"speed", "logs", "spot/h", "list/h", "spot/1000", "list/1000", "share", "weight"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCost:
    """An instance type of a fleet; what is not known is None.

    `speed` is relative to the type with the most logs, `share` is that of the instance hours.
    Prices are USD: an hour of an instance, and a thousand requests on instances that are busy all
    the time. `weight` is what an instance serves, the least of them 10.
    """

    instance_type: str
    logs: int
    speed: float | None
    share: float
    spot_hour_usd: float | None = None
    on_demand_hour_usd: float | None = None
    spot_thousand_usd: float | None = None
    on_demand_thousand_usd: float | None = None
    weight: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTypes:
    """A fleet's types, the cheapest request first; `unknown` logs name no known instance."""

    name: str
    types: tuple[TypeCost, ...]
    unknown: int = 0


def read_types(
    aws: Aws, stack_name: str, fleet: str | None, now: datetime, lasting: timedelta
) -> list[FleetTypes]:
    """Read search logs and ledger of a time up to now; raises `Gone` and `OperatorError`."""
    since = now - lasting
    cost = read_cost(aws, stack_name, fleet, since, now)
    table = LoadDigestTable(aws.dynamodb, aws.stack(stack_name).table)
    fleets = sorted({item.fleet for item in cost.items})
    return [types_of(name, table.since(name, since), cost) for name in fleets]


def types_of(fleet: str, digests: Sequence[LoadDigest], cost: Cost) -> FleetTypes:
    mine = [priced for priced in cost.found if priced.item.fleet == fleet]
    kinds = {it.item.instance_id: it.item.instance_type for it in mine}
    hours: dict[str, float] = defaultdict(float)
    for each in mine:
        hours[each.item.instance_type] += each.hours
    logs: dict[str, int] = defaultdict(int)
    spent_s: dict[str, float] = defaultdict(float)
    workers: dict[str, set[tuple[str, str]]] = defaultdict(set)
    # Requests that failed say little of a speed.
    served = [w for d in digests for w in d.workers if w.ok and not w.error + w.timeout]
    for worker in served:
        if kind := kinds.get(worker.instance_id):
            logs[kind] += worker.ok
            spent_s[kind] += sum(worker.busy_ms.values()) / 1000
            workers[kind].add((worker.instance_id, worker.worker_id))
    # As sizing learns them. What never served beside another type has no speed, unless none did.
    learned = learn(Speeds(kinds=kinds), (), digests, cost.until).types
    # Types are compared with the one of the most logs; few logs say little.
    most = max(learned.values(), key=lambda it: it.logs, default=Served()).speed
    speeds = {
        kind: (it.speed / most) ** min(1.0, it.logs / TRUSTED) for kind, it in learned.items()
    } or dict.fromkeys(logs, 1.0)
    work_s = sum(spent_s[kind] * speed for kind, speed in speeds.items())
    mean_s = work_s / (sum(logs[kind] for kind in speeds) or 1)
    serves = {
        kind: speed * len(workers[kind]) / (len({instance for instance, _ in workers[kind]}) or 1)
        for kind, speed in speeds.items()
    }
    least = min(serves.values(), default=1.0)
    found = []
    for kind in sorted(hours):
        an_hour = 3600 * serves[kind] / mean_s if kind in serves and mean_s else None
        # The mean of the newest prices of the pools that the fleet used.
        theirs = (it for it in cost.items if (it.fleet, it.instance_type) == (fleet, kind))
        pools = {it.pool for it in theirs if it.option is PurchaseOption.SPOT}
        newest = [cost.book.spot[pool].usd[-1] for pool in sorted(pools & cost.book.spot.keys())]
        spot = sum(newest) / len(newest) if newest else None
        listed = cost.book.on_demand.get(kind)
        thousand = [
            1000 * usd / an_hour if usd is not None and an_hour else None for usd in (spot, listed)
        ]
        found.append(
            TypeCost(
                instance_type=kind,
                logs=logs[kind],
                speed=speeds.get(kind),
                share=hours[kind] / (sum(hours.values()) or 1.0),
                spot_hour_usd=spot,
                on_demand_hour_usd=listed,
                spot_thousand_usd=thousand[0],
                on_demand_thousand_usd=thousand[1],
                weight=round(10 * serves[kind] / least) if kind in serves else None,
            )
        )
    found.sort(
        key=lambda it: (it.spot_thousand_usd is None, it.spot_thousand_usd or 0, it.instance_type)
    )
    unknown = sum(w.ok for w in served if w.instance_id and w.instance_id not in kinds)
    return FleetTypes(name=fleet, types=tuple(found), unknown=unknown)


def types_text(found: list[FleetTypes]) -> str:
    """A table for each fleet, and what it means."""

    def number(value: float | None, digits: int) -> str:
        return "?" if value is None else f"{value:.{digits}f}"

    blocks = []
    for each in found:
        rows = [
            {
                "type": it.instance_type,
                "speed": number(it.speed, 2),
                "logs": str(it.logs),
                "spot/h": number(it.spot_hour_usd, 3),
                "list/h": number(it.on_demand_hour_usd, 3),
                "spot/1000": number(it.spot_thousand_usd, 4),
                "list/1000": number(it.on_demand_thousand_usd, 4),
                "share": f"{it.share:.0%}",
                "weight": number(it.weight, 0),
            }
            for it in each.types
        ]
        blocks.append([f"fleet {each.name}", *columns(rows, _RIGHT)])
        if each.unknown:
            text = f"{each.unknown} search logs of instances that the ledger does not have yet"
            blocks.append(labelled("not in it", text, indent=0))
    blocks += [] if found else [["no instance of this time is in the ledger"]]
    meanings = {
        "speed": "service times of the same minutes, against the type with the most logs. Below "
        f"{TRUSTED} logs it is averaged with 1; ? if a type never served beside another.",
        "1000": "USD for a thousand requests on instances that are busy all the time.",
        "weight": "how much an instance serves; the slowest type has 10. Use it to choose types. "
        "Do not set it in a group: Spotkeeper counts instances.",
    }
    legend = [line for row in meanings.items() for line in labelled(*row, indent=0)]
    return paragraphs([*blocks, legend])
