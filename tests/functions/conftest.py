"""Two fleets on a simulated cloud behind moto, and the functions as Lambda finds them."""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any
from unittest.mock import patch

import boto3
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from spotkeeper import wiring
from spotkeeper.domain.money.prices import PriceBook, PriceSeries
from spotkeeper_lab.aws.context import create_table, local_aws
from spotkeeper_lab.aws.wire import VirtualTime
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import IN_SERVICE, InstanceView, Physics, Purchase, two_groups
from spotkeeper_lab.fakes import digest
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.world import Context, Killed, forget
from tests.builders import NOON, at
from tests.rights import only_what_is_listed
from tests.search_logs import served

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"
PLENTY = ((0.0, 200),)
PATH = "/spotkeeper/test/fleets"
TABLE = "spotkeeper"
ACCOUNT = "123456789012"
NONCE = "51af3dc0-da77-11e4-872e-1234567db123"
WAKE_UPS = f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/wake-ups"


def groups(fleet: str) -> tuple[str, str]:
    """The names of a fleet's two groups."""
    return f"{fleet}-spot", f"{fleet}-on-demand"


def document(fleet: str, **changes: object) -> dict[str, Any]:
    spot, on_demand = groups(fleet)
    bounds = {"spot_min": 0, "spot_max": 100, "on_demand_max": 100}
    least = {"version": 1, "spot_group": spot, "on_demand_group": on_demand, "bounds": bounds}
    return least | changes


def slow_down() -> None:
    """Answer a call as AWS does when there are too many."""
    raise ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "Call")


class Stage:
    """Fleets whose spot groups want `desired` instances; `calls` are those that were made of AWS.

    `during` maps an operation to what happens while it is first called. A call takes `latency_s`,
    and those of the services or operations in `hang` as long as the client waits for an answer,
    at each attempt.
    """

    TIME_OUT_S = 30.0

    def __init__(self, fleets: tuple[str, ...], desired: int, spot: Any, physics: Physics) -> None:
        self.calls: list[str] = []
        self.during: dict[str, Callable[[], object]] = {}
        self.hang: set[str] = set()
        self.down: set[str] = set()
        """What AWS answers with a fault of its own, at each attempt: services, operations, and
        items of the table ("ocr control")."""
        self.latency_s = 0.0
        self.took_s = 0.0
        """How long the last function ran."""
        self.cloud = Cloud(
            market_of("functions", 86_400.0, {A: spot, B: ((0.0, 0),)}),
            [
                spec
                for fleet in fleets
                for spec in two_groups(*groups(fleet), pools=(A, B), maximum=200, desired=desired)
            ],
            physics,
        )

    def at(self, seconds: float) -> None:
        """Let time pass until `seconds` after noon."""
        self.cloud.advance(seconds)

    @property
    def now(self) -> datetime:
        return at(self.cloud.now_s)

    def call(self, handler: Callable[..., Any], event: object = None) -> Any:
        """Call a function as Lambda does; `calls` begins anew."""
        self.calls.clear()
        return self.again(handler, event)

    def again(self, handler: Callable[..., Any], event: object = None) -> Any:
        """Call a function while another runs."""
        began_s = self._began_s = self.cloud.now_s
        try:
            return handler({} if event is None else event, Context())
        finally:
            self.took_s = self.cloud.now_s - began_s

    def _spend(self, seconds: float) -> None:
        self.cloud.advance(self.cloud.now_s + seconds)
        if self.cloud.now_s - self._began_s >= self.TIME_OUT_S:
            raise Killed

    @property
    def hours(self) -> dict[Purchase, float]:
        """What was used until now."""
        used = dict.fromkeys(Purchase, 0.0)
        for view in self.cloud.history():
            ended_s = self.cloud.now_s if view.ended_s is None else view.ended_s
            used[view.purchase] += (ended_s - view.launched_s) / 3600
        return used

    @property
    def losses(self) -> int:
        return sum(view.lost for view in self.cloud.history())

    def counted(self, *services: str) -> Counter[str]:
        """How often each operation of some services was called last."""
        return Counter(c.partition(".")[2] for c in self.calls if c.partition(".")[0] in services)

    def restart(self) -> None:
        """Go on in a new Lambda environment, which has read no document yet."""
        forget()

    def note(self, params: Any, model: Any, context: dict[str, Any], **_: object) -> None:
        """Note a call that is about to be made; registered with botocore."""
        service, config = model.service_model.service_name, context["client_config"]
        self.calls.append(f"{service}.{model.name}")
        attempts, names = config.retries.get("total_max_attempts", 1), {service, model.name}
        if service == "dynamodb" and (key := params.get("Key")):
            names.add(f"{key['pk']['S'].removeprefix('fleet#')} {key['sk']['S']}")
        if self.hang & names:
            self._spend(attempts * config.read_timeout + attempts - 1)
            raise ReadTimeoutError(endpoint_url=service)
        if self.down & names:
            self._spend(0.1 * attempts + attempts - 1)
            told = "Service unavailable"
            raise ClientError(
                {"Error": {"Code": "ServiceUnavailable", "Message": told}}, model.name
            )
        if self.latency_s:
            self._spend(self.latency_s)
        if happens := self.during.pop(model.name, None):
            happens()

    @staticmethod
    def put(fleet: str, text: str) -> None:
        """Write a fleet's document."""
        boto3.client("ssm").put_parameter(
            Name=f"{PATH}/{fleet}", Type="String", Value=text, Overwrite=True
        )

    def items(self, fleet: str, beginning: str) -> list[dict[str, Any]]:
        """A fleet's items of a kind in the table, in order."""
        answer = boto3.client("dynamodb").query(
            TableName=TABLE,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :sk)",
            ExpressionAttributeValues={":pk": {"S": f"fleet#{fleet}"}, ":sk": {"S": beginning}},
        )
        return [dict(item) for item in answer["Items"]]

    def serve(self, fleet: str, busy_s: float, slots: int) -> None:
        """Have a fleet's instances in service finish a request of `busy_s` every 10 s lately."""
        views = [self.cloud.group(name) for name in groups(fleet)]
        there = [i.instance_id for view in views for i in view.instances if i.state == IN_SERVICE]
        ends = [at(self.cloud.now_s - 10 * slot) for slot in range(slots)]
        logs = [served(each, end, busy_s) for each in there for end in ends]
        wiring.load_table().add(digest(logs, self.now, fleet))

    def keep(self, item: dict[str, Any]) -> None:
        boto3.client("dynamodb").put_item(TableName=TABLE, Item=item)

    def records(self, fleet: str) -> list[dict[str, Any]]:
        """A fleet's decision records, oldest first."""
        return [json.loads(i["record"]["S"]) for i in self.items(fleet, "decision#")]

    def memory(self, fleet: str, controller: str) -> dict[str, Any]:
        (item,) = self.items(fleet, f"memory#{controller}")
        read: dict[str, Any] = json.loads(zlib.decompress(item["memory"]["B"]))
        return read

    def leased(self, fleet: str) -> set[str]:
        """The controllers of a fleet that somebody holds."""
        (state,) = self.items(fleet, "state")
        return {key.partition("_")[0] for key in state if key.endswith(("_holder", "_until"))}


def billed(
    lives: Iterable[InstanceView], until_s: float, spot: Mapping[float, float], on_demand: float
) -> float:
    """AWS's bill by its user guide up to a second; `spot` has prices by the second they begin.

    "Interrupted by Amazon EC2 in the first hour: no charge"; else the seconds, at least 60.
    """
    spans, usd = zip(spot.items(), [*[*spot][1:], inf], strict=True), 0.0
    prices = [(begin_s, end_s, price) for (begin_s, price), end_s in spans]
    for life in lives:
        ended_s = life.ended_s if life.ended_s is not None and life.ended_s < until_s else None
        end_s = until_s if ended_s is None else max(ended_s, life.launched_s + 60)
        of_spot = life.purchase is Purchase.SPOT
        if of_spot and life.lost and ended_s is not None and ended_s - life.launched_s < 3600:
            continue
        for begin_s, next_s, price in prices if of_spot else [(0.0, inf, on_demand)]:
            usd += max(0.0, min(end_s, next_s) - max(life.launched_s, begin_s)) / 3600 * price
    return usd


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPrices:
    """On-demand for 1 USD an hour, and spot for a share of it, at any time."""

    ratio: float
    since: datetime

    def now(self, pools: Sequence[str], now: datetime) -> PriceBook:
        """Return the prices of pools (zone/type)."""
        spot = PriceSeries(at=(self.since,), usd=(self.ratio,))
        types = {pool.partition("/")[2] for pool in pools}
        return PriceBook(spot=dict.fromkeys(pools, spot), on_demand=dict.fromkeys(types, 1.0))


@pytest.fixture(autouse=True)
def rights() -> Iterator[None]:
    """No function calls what its list of rights does not have."""
    with only_what_is_listed():
        yield


type StageOf = Callable[..., Stage]
type Metrics = Callable[[str], dict[str, float]]


@contextmanager
def deployed(
    cloud: Cloud, documents: Iterable[dict[str, Any]], now: Callable[[], datetime]
) -> Iterator[None]:
    """Deploy fleets beside a cloud, with a table, by their documents."""
    environment = {
        "TABLE_NAME": TABLE,
        "FLEET_DOCUMENTS_PATH": PATH,
        "DEFAULT_FLEET": "ocr",
        "WAKE_UP_QUEUE_URL": WAKE_UPS,
        "HEALTH_QUEUE_URL": WAKE_UPS.replace("wake-ups", "health"),
        "STACK_NONCE": NONCE,
        "POWERTOOLS_SERVICE_NAME": "spotkeeper-test",
        "POWERTOOLS_METRICS_NAMESPACE": "Spotkeeper",
    }
    with (
        local_aws(cloud, VirtualTime(NOON)),
        patch.dict("os.environ", environment),
        patch.object(wiring, "now", now),
    ):
        forget()
        create_table(boto3.client("dynamodb"), TABLE)
        for each in documents:
            Stage.put(each["spot_group"].removesuffix("-spot"), json.dumps(each))
        yield
    forget()


@pytest.fixture
def stage_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[StageOf]:
    """Make the stage; its spot groups serve from second 600 on."""
    # What a test sets before it makes the stage is taken back after the stage.
    with ExitStack() as stack:

        def make(
            fleets: tuple[str, ...] = ("ocr", "search"),
            desired: int = 4,
            spot: Any = PLENTY,
            physics: Physics | None = None,
        ) -> Stage:
            stage = Stage(fleets, desired, spot, physics or Physics())
            stack.enter_context(deployed(stage.cloud, map(document, fleets), lambda: stage.now))
            assert boto3.DEFAULT_SESSION
            boto3.DEFAULT_SESSION.events.register("provide-client-params", stage.note)
            stage.at(600)
            return stage

        yield make


def metrics_of(written: str, fleet: str) -> dict[str, float]:
    """The metrics of a fleet in what was written: the last value of each name."""
    values: dict[str, float] = {}
    for told in map(json.loads, written.splitlines()):
        if told.get("fleet") == fleet and "_aws" in told:
            (directive,) = told["_aws"]["CloudWatchMetrics"]
            assert directive["Namespace"] == "Spotkeeper"
            assert set(directive["Dimensions"][0]) == {"service", "fleet"}
            values |= {m["Name"]: told[m["Name"]][0] for m in directive["Metrics"]}
    return values


@pytest.fixture
def metrics(capsys: pytest.CaptureFixture[str]) -> Metrics:
    """The metrics emitted for a fleet since the last call."""
    return lambda fleet: metrics_of(capsys.readouterr().out, fleet)
