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
    mine = [priced for priced in cost.lives if priced.item.fleet == fleet]
    kinds = {item.item.instance_id: item.item.instance_type for item in mine}
    hours: dict[str, float] = defaultdict(float)
    for each in mine:
        hours[each.item.instance_type] += each.hours
    logs: dict[str, int] = defaultdict(int)
    spent_s: dict[str, float] = defaultdict(float)
    workers: dict[str, set[tuple[str, str]]] = defaultdict(set)
    # Requests that failed say little of a speed.
    served = [w for d in digests for w in d.workers if w.ok and not w.failed]
    for worker in served:
        if kind := kinds.get(worker.instance_id):
            logs[kind] += worker.ok
            spent_s[kind] += sum(worker.busy_ms.values()) / 1000
            workers[kind].add((worker.instance_id, worker.worker_id))
    # As sizing learns them. What never served beside another type has no speed, unless none did.
    learned = learn(Speeds(kinds=kinds), (), digests, cost.until).types
    # Types are compared with the one of the most logs; few logs say little.
    most = max(learned.values(), key=lambda item: item.logs, default=Served()).speed
    speeds = {
        kind: (item.speed / most) ** min(1.0, item.logs / TRUSTED) for kind, item in learned.items()
    } or dict.fromkeys(logs, 1.0)
    work_s = sum(spent_s[kind] * speed for kind, speed in speeds.items())
    mean_s = work_s / (sum(logs[kind] for kind in speeds) or 1)
    serves = {
        kind: speed * len(workers[kind]) / (len({instance for instance, _ in workers[kind]}) or 1)
        for kind, speed in speeds.items()
    }
    least = min(serves.values(), default=1.0)
    rows = []
    for kind in sorted(hours):
        an_hour = 3600 * serves[kind] / mean_s if kind in serves and mean_s else None
        # The mean of the newest prices of the pools that the fleet used.
        theirs = (item for item in cost.items if (item.fleet, item.instance_type) == (fleet, kind))
        pools = {item.pool for item in theirs if item.option is PurchaseOption.SPOT}
        newest = [cost.book.spot[pool].usd[-1] for pool in sorted(pools & cost.book.spot.keys())]
        spot = sum(newest) / len(newest) if newest else None
        listed = cost.book.on_demand.get(kind)
        thousand = [
            1000 * usd / an_hour if usd is not None and an_hour else None for usd in (spot, listed)
        ]
        rows.append(
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
    rows.sort(
        key=lambda item: (
            item.spot_thousand_usd is None,
            item.spot_thousand_usd or 0,
            item.instance_type,
        )
    )
    unknown = sum(w.ok for w in served if w.instance_id and w.instance_id not in kinds)
    return FleetTypes(name=fleet, types=tuple(rows), unknown=unknown)


def types_text(fleets: list[FleetTypes]) -> str:
    """A table for each fleet, and what it means."""

    def number(value: float | None, digits: int) -> str:
        return "?" if value is None else f"{value:.{digits}f}"

    blocks = []
    for each in fleets:
        rows = [
            {
                "type": served.instance_type,
                "speed": number(served.speed, 2),
                "logs": str(served.logs),
                "spot/h": number(served.spot_hour_usd, 3),
                "list/h": number(served.on_demand_hour_usd, 3),
                "spot/1000": number(served.spot_thousand_usd, 4),
                "list/1000": number(served.on_demand_thousand_usd, 4),
                "share": f"{served.share:.0%}",
                "weight": number(served.weight, 0),
            }
            for served in each.types
        ]
        blocks.append([f"fleet {each.name}", *columns(rows, _RIGHT)])
        if each.unknown:
            text = f"{each.unknown} search logs of instances that the ledger does not have yet"
            blocks.append(labelled("not included", text, indent=0))
    blocks += [] if fleets else [["no instance of this time is in the ledger"]]
    meanings = {
        "speed": "service times of the same minutes, against the type with the most logs. Below "
        f"{TRUSTED} logs it is averaged with 1; ? if a type never served beside another.",
        "1000": "USD for a thousand requests on instances that are busy all the time.",
        "weight": "how much an instance serves; the slowest type has 10. Use it to choose types. "
        "Do not set it in a group: Spotkeeper counts instances.",
    }
    legend = [line for row in meanings.items() for line in labelled(*row, indent=0)]
    return paragraphs([*blocks, legend])
