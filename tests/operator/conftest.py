"""A deployed stack to ask: a fleet on the simulated cloud, turned by the real functions."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from moto.servicequotas.responses import ServiceQuotasResponse

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from functions.handle_interruption.app import handler as handle_interruption
from functions.keep_ledger.app import handler as keep_ledger
from spotkeeper import wiring
from spotkeeper.domain.money.prices import PriceBook
from spotkeeper_lab.aws.wire import Events, VirtualTime
from spotkeeper_lab.cloud.values import EventKind
from spotkeeper_operator import aws
from tests.builders import NOON
from tests.functions.conftest import Stage, document, stage_of
from tests.operator.command import STACK, deploy, intercept

__all__ = ["stage_of"]


@pytest.fixture
def deployed(
    stage_of: Callable[..., Stage],
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Stage:
    """A stack whose fleet was busy and lost two of its spot instances a few minutes ago.

    A parameter, if a test gives one, says how much spot there is later.
    """
    later = getattr(request, "param", ())
    stage = stage_of(("main",), spot=((0.0, 200), (840.0, 3), *later))
    deploy()
    # Spotkeeper does not size this fleet: its load is reported, and changes nothing here.
    stage.put("main", json.dumps(document("main", sizing={"enabled": False})))
    for _ in range(8):
        stage.serve("main", 6.5, 6)
        stage.call(check_health)
        stage.call(check_availability)
        stage.at(stage.cloud.now_s + 60)
    stage.at(stage.cloud.now_s - 60 + 20)
    ring("both-short")
    stage.calls.clear()
    capsys.readouterr()
    return stage


def ring(
    alarm: str, state: Literal["ALARM", "INSUFFICIENT_DATA"] = "ALARM", query: str = ""
) -> None:
    cloudwatch, name = boto3.client("cloudwatch"), f"{STACK}-{alarm}"
    of: dict[str, Any] = {
        "Namespace": "Spotkeeper", "MetricName": "BothShort", "Statistic": "Maximum", "Period": 60,
    }  # fmt: skip
    if query:
        of = {"Metrics": [{"Id": "q", "Expression": query, "Period": 60}]}
    cloudwatch.put_metric_alarm(
        AlarmName=name,
        **of,
        EvaluationPeriods=1,
        Threshold=0,
        ComparisonOperator="GreaterThanThreshold",
    )
    cloudwatch.set_alarm_state(AlarmName=name, StateValue=state, StateReason="told to")


@pytest.fixture
def kept(deployed: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The same stack after its ledger was kept; AWS lists one spot price and one list price."""
    prices: Any = SimpleNamespace(now=lambda *_: PriceBook())
    none: Any = SimpleNamespace(ends=lambda *_: {})
    of_none = {"prices": prices, "activities": none, "clock": lambda: deployed.now}
    fixed = replace(wiring.ledger_ports(), **of_none)
    monkeypatch.setattr(wiring, "ledger_ports", lambda: fixed)
    deployed.call(keep_ledger)
    # moto's spot prices are all the same and of 2006, and it has no price list.
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {"g5.xlarge": 1.006})
    return deployed


class Days:
    """Lets time pass as a deployed stack lives through it: events at once, turns every minute."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._events = Events(VirtualTime(NOON))

    def minutes(self, count: int) -> None:
        """Let minutes pass, each with its turns."""
        for _ in range(count):
            self.sleep(60)

    def sleep(self, seconds: float) -> None:
        """Let time pass; the output of the functions is kept apart from the command's."""
        cloud = self.stage.cloud
        with redirect_stdout(io.StringIO()):
            for event in cloud.advance(cloud.now_s + seconds):
                if event.kind is not EventKind.FULFILLED:
                    self.stage.again(handle_interruption, self._events.of_cloud(event))
            if cloud.now_s % 60 < seconds:
                self.stage.serve("main", 6.5, 6)
                self.stage.again(check_health)
                self.stage.again(check_availability)


@pytest.fixture(autouse=True)
def _quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto lists no service quotas."""
    quotas = [
        {"QuotaName": "All G and VT Spot Instance Requests", "Value": 64.0},
        {"QuotaName": "Running On-Demand G and VT instances", "Value": 0.0},
    ]
    monkeypatch.setattr(
        ServiceQuotasResponse,
        "list_service_quotas",
        lambda _: json.dumps({"Quotas": quotas}),
        raising=False,
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operations that commands ask of AWS, each page of an answer counted."""
    made: list[str] = []

    def counted(_: BaseClient, operation: str, __: object) -> None:
        made.append(operation)

    intercept(monkeypatch, counted)
    return made


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have AWS refuse one operation, with a code."""

    def one(operation: str, code: str = "AccessDenied") -> None:
        def refuse(_: BaseClient, asked: str, __: object) -> None:
            if asked == operation:
                text = f"not allowed to {operation}"
                raise ClientError({"Error": {"Code": code, "Message": text}}, operation)

        intercept(monkeypatch, refuse)

    return one
