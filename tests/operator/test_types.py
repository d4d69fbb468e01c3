"""What a request costs on each instance type: speeds of generated markets, and the command."""

import json
import math
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest

from spotkeeper.domain.load.load import Cluster
from spotkeeper.domain.money.ledger import LedgerItem
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper_lab.fakes import digest
from spotkeeper_operator.cost import Cost
from spotkeeper_operator.types import TypeCost, types_of
from tests.builders import NOON
from tests.functions.conftest import Stage
from tests.operator.command import answered
from tests.search_logs import log

TYPES = {"g5.xlarge": 1.0, "g6.xlarge": 1.7, "g6e.xlarge": 2.6}
PRICES = {"g5.xlarge": 0.30, "g6.xlarge": 0.40, "g6e.xlarge": 0.67}
HOUR = timedelta(hours=1)


def types_by_name(
    speeds: Mapping[str, float],
    prices: Mapping[str, float],
    seed: int = 1,
    requests: int = 400,
    *,
    harder: float = 1.5,
    mix: Callable[[str, float], float] = lambda *_: 1.0,
) -> dict[str, TypeCost]:
    """Two instances of each type, with two workers each, for an hour of ever harder requests.

    At its end they are `harder` times as hard as at its begin, and half-way of 1 s on average.
    `mix` is the share of its requests that a type serves at a part of the hour. Types are in the
    order of the answer.
    """
    rng = random.Random(seed)
    items, logs = [], []
    for name, kind in [(f"i-{kind}-{number}", kind) for kind in speeds for number in range(2)]:
        items.append(
            LedgerItem(
                fleet="ocr", instance_id=name, pool=f"us-east-1a/{kind}",
                option=PurchaseOption.SPOT, since=NOON - HOUR,
            )
        )  # fmt: skip
        for request in range(requests):
            passed = 1 - request / requests
            if rng.random() >= mix(kind, passed):
                continue
            ended = 3600 * request / requests
            hard = 2 * (1 + passed * (harder - 1)) / (1 + harder)
            took = hard * rng.lognormvariate(0, 0.3) / speeds[kind]
            who: Any = {"instance_id": name, "worker": f"gpu-{request % 2}"}
            number = f"{name}-{request}"
            logs.append(log(ended + took, ended, cluster=Cluster.AWS, request_id=number, **who))
    spot = {f"us-east-1a/{k}": PriceSeries(at=(NOON - HOUR,), usd=(p,)) for k, p in prices.items()}
    cost = Cost(
        items=tuple(items), book=PriceBook(spot=spot, on_demand={"g5.xlarge": 1.0}),
        since=NOON - HOUR, until=NOON,
    )  # fmt: skip
    by_minute = groupby(logs, lambda log: (log.instance_id, log.finished_at.minute))
    minutes = (list(part) for _, part in by_minute)
    digests = [each for part in minutes for each in digest(part, part[0].finished_at, "ocr")]
    return {it.instance_type: it for it in types_of("ocr", digests, cost).types}


@pytest.mark.parametrize("seed", range(12))
def test_speeds_and_the_choice_by_the_weights_shown_are_within_5_percent_of_the_best(
    seed: int,
) -> None:
    """A week of hours, whose prices a request are close to each other and change places.

    Neither the mix of types nor how hard the requests of an hour are changes the speeds.
    """

    def mix(kind: str, passed: float) -> float:
        return {"g5.xlarge": 1 - passed, "g6.xlarge": 0.5, "g6e.xlarge": passed}[kind]

    rng = random.Random(seed)
    speeds = {kind: math.exp(rng.uniform(-0.7, 1.1)) for kind in TYPES}
    usual = {kind: 0.3 * speed * rng.uniform(0.8, 1.25) for kind, speed in speeds.items()}
    found = types_by_name(speeds, usual, seed, requests=1800, harder=4.0, mix=mix)
    shown = {kind: float(it.weight or 0) for kind, it in found.items()}
    for kind, it in found.items():
        ratio = (it.speed or 0.0) / (found["g5.xlarge"].speed or 1.0)
        assert ratio == pytest.approx(speeds[kind] / speeds["g5.xlarge"], rel=0.05), kind
    paid = {"shown": 0.0, "best": 0.0}
    for _ in range(168):
        prices = {kind: usd * rng.uniform(0.85, 1.15) for kind, usd in usual.items()}
        held = {kind: rng.randint(0, 6) for kind in TYPES} | {rng.choice([*TYPES]): 20}
        for by, weights in (("shown", shown), ("best", speeds)):
            # An hour that serves 6: AWS launches what costs least a unit, as far as it has it.
            left = 6.0
            for kind in sorted(speeds, key=lambda kind: prices[kind] / weights[kind]):
                instances = min(float(held[kind]), left / speeds[kind])
                paid[by] += instances * prices[kind]
                left -= instances * speeds[kind]
    assert paid["shown"] <= 1.05 * paid["best"]


def test_a_type_with_few_logs_has_about_speed_1_and_one_that_served_alone_has_none() -> None:
    def mix(kind: str, passed: float) -> float:
        if kind == "g6e.xlarge":
            return float(passed > 0.5)
        return float(passed < 0.4) * (0.1 if kind == "g6.xlarge" else 1.0)

    speeds = {kind: it.speed for kind, it in types_by_name(TYPES, PRICES, mix=mix).items()}
    assert (speeds["g5.xlarge"], speeds["g6e.xlarge"]) == (1.0, None)
    assert 1.0 < (speeds["g6.xlarge"] or 0.0) < 1.2
    assert types_by_name({"g6.xlarge": 1.7}, PRICES)["g6.xlarge"].speed == 1.0


def test_the_cheapest_request_is_first_and_what_has_no_price_is_unknown() -> None:
    found = types_by_name(TYPES, PRICES)
    assert list(found) == ["g6.xlarge", "g6e.xlarge", "g5.xlarge"]
    one = found["g5.xlarge"]
    # Two workers of an instance serve one request in about 1.05 s each.
    assert one.spot_thousand_usd == pytest.approx(1000 * 0.30 * 1.046 / 3600 / 2, rel=0.08)
    assert one.on_demand_thousand_usd == pytest.approx(
        (one.spot_thousand_usd or 0) / 0.30, rel=0.01
    )
    assert found["g6.xlarge"].on_demand_hour_usd is None
    assert [found[kind].weight for kind in TYPES] == pytest.approx([10, 17, 26], abs=1)
    assert sum(it.share for it in found.values()) == pytest.approx(1.0)
    assert {it.logs for it in found.values()} == {800}


def test_the_command_on_a_stack(kept: Stage) -> None:
    (fleet,) = json.loads(answered("types", "--json"))["fleets"]
    (only,) = fleet["types"]
    assert (only["instance_type"], only["speed"], only["share"]) == ("g5.xlarge", 1.0, 1.0)
    assert only["logs"] > 0
    text = answered("types")
    assert "g5.xlarge" in text
    assert "Do not set it in a group" in " ".join(text.split())
