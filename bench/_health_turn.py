"""The whole health turn of 500 workers: digests of 15 minutes, the fleet's state and history.

The adapters are those that are deployed; DynamoDB is a client that has its answers ready, parsed,
so that what is measured begins where its answer has come. Parsing the answers is shown beside it.
"""

import base64
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from statistics import median
from typing import Any

import botocore.session
from botocore.parsers import create_parser

from bench._figures import Figure
from bench.collect import READ_USD
from bench.size import FLEET as SIZED
from bench.size import LIMIT_MS, NOW, SHIP_EVERY_S, WORKERS, history, message
from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.adapters.dynamodb.load_items import pack
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.domain.fleet import Group, Instance, Phase
from spotkeeper.domain.sizing.promise import OBJECTIVE_WINDOW_S
from spotkeeper.ports import Ports
from spotkeeper.turns.check_health import check_health

TURNS = 12
# From a message's sending to its digest in the table.
UNDER_WAY_S = 5
PAGE_BYTES = 1024 * 1024
ITEM_BYTES = 220
MINUTES = 365 / 12 * 24 * 60
# As most turns do, it holds: it has as many as it wants.
FLEET = replace(SIZED, bounds=replace(SIZED.bounds, spot_min=WORKERS))
GROUPS = {
    FLEET.spot_group: Group(
        name=FLEET.spot_group,
        desired=WORKERS,
        minimum=0,
        maximum=2000,
        instances=tuple(
            Instance(instance_id=f"i-{n:017x}", pool="us-east-1a/g5.xlarge", phase=Phase.IN_SERVICE)
            for n in range(WORKERS)
        ),
    ),
    FLEET.on_demand_group: Group(
        name=FLEET.on_demand_group, desired=0, minimum=0, maximum=2000
    ),
}  # fmt: skip


@dataclass(slots=True)
class Answers:
    """A DynamoDB client of one fleet that answers at once, and keeps what it answered."""

    items: list[dict[str, Any]]
    kept: dict[str, Any] = field(default_factory=dict)
    now: datetime = NOW
    pages: list[dict[str, Any]] = field(default_factory=list)

    def get_paginator(self, _: str) -> "Answers":
        """Be the only paginator."""
        return self

    def paginate(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Answer a query for digests that are in the table by now, page by page."""
        values = query["ExpressionAttributeValues"]
        there = (self.now - timedelta(seconds=UNDER_WAY_S)).isoformat()
        begin = self._at(values[":first"]["S"])
        end = min(self._at(values.get(":stop", {"S": "3"})["S"]), self._at(there))
        while begin < end:
            stop = min(end, begin + PAGE_BYTES // ITEM_BYTES)
            found = self.items[begin:stop]
            page: dict[str, Any] = {"Count": len(found)}
            if query.get("Select") != "COUNT":
                page["Items"] = found
            self.pages.append(page)
            yield page
            begin = stop

    def _at(self, key: str) -> int:
        return bisect_left(self.items, key, key=lambda item: item["sk"]["S"])

    def get_item(self, **_: Any) -> dict[str, Any]:
        """Answer the load's history."""
        return {"Item": self.kept["history"]} if "history" in self.kept else {}

    def put_item(self, *, Item: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Keep the load's history; a decision record goes nowhere."""
        if "history" in Item:
            self.kept["history"] = Item
        return {}

    def update_item(
        self, *, ExpressionAttributeValues: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        """Keep the state of the health controller."""
        if ":memory" in ExpressionAttributeValues:
            self.kept["health_memory"] = ExpressionAttributeValues[":memory"]
        return {"Attributes": {**self.kept, "health_notes": {"L": []}}}


class _Groups:
    """Both groups as they are; nothing that is asked of them happens."""

    def describe(self, names: object) -> Mapping[str, Group]:
        """Describe them."""
        del names
        return GROUPS

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Do nothing of what is asked."""
        return lambda *asked: None


def _items() -> list[dict[str, Any]]:
    """What all workers send from 15 minutes before the first turn to the last one."""
    random = Random(0)
    sent = [
        (age_s, worker)
        for worker in range(WORKERS)
        for age_s in range(
            -60 * TURNS + worker % SHIP_EVERY_S, OBJECTIVE_WINDOW_S + SHIP_EVERY_S, SHIP_EVERY_S
        )
    ]
    packed = (
        pack(message(worker, NOW - timedelta(seconds=age_s), random)) for age_s, worker in sent
    )
    return sorted((dict(item) for item in packed), key=lambda item: item["sk"]["S"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Processor time of a turn and of parsing its digests in ms, and how many there were."""

    turn_ms: float
    parse_ms: float
    digests: int
    calls: int


def _ports(client: Any, load: LoadDigestTable) -> Ports:
    groups: Any = _Groups()
    return Ports(
        queues=groups,
        wake_ups=groups,
        groups=groups,
        writer=groups,
        instances=groups,
        states=FleetStateTable(client, "bench", timedelta(days=30)),
        load=load,
        histories=LoadHistoryTable(client, "bench"),
    )


def _turn(client: Answers, load: LoadDigestTable) -> Measured:
    client.pages.clear()
    ports = _ports(client, load)
    began = time.process_time()
    report = check_health([FLEET], ports, client.now)
    turn_ms = 1000 * (time.process_time() - began)
    assert not report.errors, report.errors
    pages = list(client.pages)
    return Measured(
        turn_ms=turn_ms,
        parse_ms=_parse_ms(pages),
        digests=sum(page["Count"] for page in pages if "Items" in page),
        calls=len(pages),
    )


def _parse_ms(pages: list[dict[str, Any]]) -> float:
    """Processor time that botocore takes for these answers."""
    shape = botocore.session.get_session().get_service_model("dynamodb")
    output: Any = shape.operation_model("Query").output_shape
    parser, bodies = create_parser("json"), [json.dumps(page, default=_text) for page in pages]
    answers: list[Any] = [{"status_code": 200, "headers": {}, "body": b.encode()} for b in bodies]
    began = time.process_time()
    for answer in answers:
        parser.parse(answer, output)
    return 1000 * (time.process_time() - began)


def _text(packed: bytes) -> str:
    return base64.b64encode(packed).decode()


def _asked(item: dict[str, Any]) -> dict[str, Any]:
    """Keep of an item what the query asks for."""
    return {name: item[name] for name in ("sk", "digest")}


def measure(items: Sequence[dict[str, Any]]) -> tuple[Measured, Measured]:
    """Run a turn a minute, each by a function that was just started and by one that is warm."""
    client: Any = Answers([_asked(item) for item in items])
    ports = _ports(client, LoadDigestTable(client, "bench"))
    ports.histories.write(FLEET.name, history(), NOW)
    warm = LoadDigestTable(client, "bench")
    runs: list[tuple[Measured, Measured]] = []
    for minute in range(TURNS):
        client.now = NOW + timedelta(minutes=minute, seconds=7)
        runs.append((_turn(client, LoadDigestTable(client, "bench")), _turn(client, warm)))
    # The first turns fill the memory and the state.
    cold, again = zip(*runs[2:], strict=True)
    return _typical(cold), _typical(again)


def _typical(runs: tuple[Measured, ...]) -> Measured:
    return Measured(
        turn_ms=median(run.turn_ms for run in runs),
        parse_ms=median(run.parse_ms for run in runs),
        digests=round(median(run.digests for run in runs)),
        calls=round(median(run.calls for run in runs)),
    )


def _read_usd(items: Sequence[Mapping[str, Any]]) -> float:
    """What reading or counting a window of 15 minutes each minute costs a month."""
    size = sum(
        len(name) + len(next(iter(value.values())))
        for item in items
        for name, value in item.items()
        if item["sk"]["S"] <= NOW.isoformat()
    )
    return size / 1024 / 8 * READ_USD * MINUTES


def figures() -> list[Figure]:
    """The health turn, warm and cold."""
    items = _items()
    cold, warm = measure(items)
    rows = [
        Figure(name="warm: the turn", value=warm.turn_ms, unit="ms", limit=LIMIT_MS),
        Figure(name="cold: the turn", value=cold.turn_ms, unit="ms"),
        Figure(name="cold over warm", value=cold.turn_ms / warm.turn_ms, unit="times"),
    ]
    for name, run in (("warm", warm), ("cold", cold)):
        rows.append(Figure(name=f"{name}: digests read", value=run.digests, unit=""))
        rows.append(Figure(name=f"{name}: pages read or counted", value=run.calls, unit=""))
        rows.append(Figure(name=f"{name}: botocore parses them", value=run.parse_ms, unit="ms"))
    rows.append(Figure(name="reading or counting", value=_read_usd(items), unit="USD a month"))
    return rows
