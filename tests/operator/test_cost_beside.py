"""What cost tells beside the ledger: what AWS billed, what users noticed, what was idle."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper.domain.money.ledger import EndedBy, LedgerItem
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.ports import Refused
from spotkeeper_operator import aws
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.cost import GROUP_TAG, noticed, read_actual, read_idle, spans_of
from tests.builders import held
from tests.functions.conftest import TABLE, Stage
from tests.operator.command import answered

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ASKED = {
    "TimePeriod": {"Start": "2026-11-18", "End": "2026-11-20"},
    "Granularity": "DAILY",
    "Metrics": ["UnblendedCost"],
    "Filter": {"Tags": {"Key": GROUP_TAG, "Values": ["main-on-demand", "main-spot"]}},
    "GroupBy": [{"Type": "DIMENSION", "Key": "PURCHASE_TYPE"}],
}


def billed(estimated: bool = False, **usd: float) -> dict[str, Any]:
    names = {"spot": "Spot Instances", "on_demand": "On Demand Instances", "others": "Others"}
    groups = [
        {"Keys": [names[kind]], "Metrics": {"UnblendedCost": {"Amount": str(v), "Unit": "USD"}}}
        for kind, v in usd.items()
    ]
    return {"Estimated": estimated, "Groups": groups}


@pytest.fixture
def explorer() -> Iterator[Stubber]:
    with mock_aws(), Stubber(boto3.client("ce", "us-east-1")) as stub:
        yield stub
        stub.assert_no_pending_responses()


def asked(explorer: Stubber) -> Any:
    client = cast("Any", explorer.client)
    return read_actual(client, ["main-spot", "main-on-demand"], NOON - timedelta(days=2), NOON)


def test_whole_days_are_added_up_page_by_page(explorer: Stubber) -> None:
    first = {"ResultsByTime": [billed(spot=1.5, on_demand=2.0)], "NextPageToken": "more"}
    explorer.add_response("get_cost_and_usage", first, ASKED)
    second = {"ResultsByTime": [billed(estimated=True, spot=0.5, others=0.25)]}
    explorer.add_response("get_cost_and_usage", second, ASKED | {"NextPageToken": "more"})
    found = asked(explorer)
    assert (found.spot, found.on_demand, found.others) == (2.0, 2.0, 0.25)
    assert found.estimated
    assert found.found


def test_what_is_not_allowed_is_named(explorer: Stubber) -> None:
    explorer.add_client_error("get_cost_and_usage", "AccessDeniedException", "no")
    with pytest.raises(Refused, match="ce:GetCostAndUsage"):
        asked(explorer)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"ResultsByTime": []}, "nothing is billed under the tag aws:autoscaling:groupName"),
        (
            {"ResultsByTime": [billed(estimated=True, spot=3.0, on_demand=1.0)]},
            "4.00 billed for instances from 2026-11-20 to 2026-11-21 (spot 3.00, on demand 1.00), "
            "0.00 for what else carries the tag, not final yet; by the ledger 0.00",
        ),
    ],
)
def test_the_command_tells_what_was_billed(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch, answer: Any, expected: str
) -> None:
    del deployed
    assert f"actual {expected}" in actually(monkeypatch, answer)


def test_what_was_billed_is_compared_with_the_ledger_of_the_same_days(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours are asked for, and billed are days: what ran in the morning is billed, too."""
    del deployed
    night = NOON.replace(hour=1)
    morning = replace(
        ITEM, option=PurchaseOption.ON_DEMAND, since=night, until=night + timedelta(hours=3)
    )
    LedgerTable(boto3.client("dynamodb"), TABLE).put([morning])
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {"g5.xlarge": 1.0})
    told = actually(monkeypatch, {"ResultsByTime": [billed(on_demand=3.0)]})
    assert "3.00 billed for instances" in told
    assert "by the ledger 3.00" in told
    assert "paid 0.00" in told


def actually(monkeypatch: pytest.MonkeyPatch, answer: Any) -> str:
    """What cost tells of two hours where Cost Explorer answers so."""
    explorer = Stubber(boto3.client("ce", "us-east-1"))
    make: Callable[..., Any] = Aws.client

    def client(aws: Aws, service: str, *more: Any) -> Any:
        return explorer.client if service == "ce" else make(aws, service, *more)

    monkeypatch.setattr(Aws, "client", client)
    explorer.add_response("get_cost_and_usage", answer)
    with explorer:
        return " ".join(answered("cost", "--since", "2h", "--actual").split())


ITEM = LedgerItem(
    fleet="main",
    instance_id="i-1",
    pool="us-east-1a/g5.xlarge",
    option=PurchaseOption.SPOT,
    since=NOON,
    until=NOON + timedelta(hours=1),
    ended_by=EndedBy.AWS,
)
HEALTH = held(seen={"RequestsLate": 2.0, "RequestsFailed": 0.5})


def test_losses_that_come_together_are_looked_at_once() -> None:
    ends = [ITEM, replace(ITEM, instance_id="i-2", until=NOON + timedelta(minutes=70))]
    others = [
        replace(ITEM, until=NOON + timedelta(hours=3)),
        replace(ITEM, until=None),
        replace(ITEM, ended_by=EndedBy.US),
    ]
    assert spans_of([*ends, *others], NOON, NOON + timedelta(hours=4)) == [
        (NOON + timedelta(minutes=177), NOON + timedelta(minutes=195)),
        (NOON + timedelta(minutes=57), NOON + timedelta(minutes=85)),
    ]


def test_requests_a_minute_are_requests_over_the_minutes_between_turns() -> None:
    turns = [replace(HEALTH, at=NOON + timedelta(seconds=s)) for s in (0, 60, 150, 1000)]
    found = noticed([turns], unread=0)
    # A gap counts for two minutes at most.
    assert found.late == pytest.approx(2.0 * (1 + 1.5 + 2))
    assert found.failed == pytest.approx(0.5 * 4.5)


def test_records_of_an_older_release_say_nothing_of_requests() -> None:
    old = [replace(HEALTH, at=NOON + timedelta(minutes=n), seen={}) for n in range(3)]
    found = noticed([old], unread=2)
    assert (found.late, found.failed, found.unread) == (None, None, 2)


def test_idle_is_what_the_load_leaves_of_the_live() -> None:
    results = [
        {"Id": "a", "Label": "OfferedLoad", "Timestamps": [NOON], "Values": [3.0]},
        {"Id": "b", "Label": "WorkersLive", "Timestamps": [NOON], "Values": [4.0]},
    ]
    with mock_aws(), Stubber(boto3.client("cloudwatch", "us-east-1")) as watch:
        watch.add_response("get_metric_data", {"MetricDataResults": results})
        watch.add_response("get_metric_data", {"MetricDataResults": []})
        client = cast("Any", watch.client)
        span = (NOON, NOON + timedelta(hours=1))
        assert read_idle(client, "test", ["main"], *span) == pytest.approx(0.25)
        assert read_idle(client, "test", ["main"], *span) is None


def test_what_may_not_be_asked_is_a_trouble_and_the_rest_is_told(
    deployed: Stage, denied: Callable[[str], None]
) -> None:
    del deployed
    denied("GetMetricData")
    found = json.loads(answered("cost", "--since", "2h", "--json"))
    assert found["paid"] == 0
    (trouble,) = found["troubles"]
    assert "cloudwatch:GetMetricData: AccessDenied" in trouble
