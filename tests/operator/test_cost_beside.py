"""What cost tells beside the ledger: what AWS billed, what users noticed, what was idle."""

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
from spotkeeper_operator import aws
from spotkeeper_operator.aws import Aws
from spotkeeper_operator.cost import GROUP_TAG, noticed, read_use, spans_of
from tests.builders import held
from tests.functions.conftest import TABLE, Stage
from tests.operator.command import answered

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def billed(estimated: bool = False, **usd: float) -> dict[str, Any]:
    names = {"spot": "Spot Instances", "on_demand": "On Demand Instances", "others": "Others"}
    groups = [
        {"Keys": [names[kind]], "Metrics": {"UnblendedCost": {"Amount": str(v), "Unit": "USD"}}}
        for kind, v in usd.items()
    ]
    return {"Estimated": estimated, "Groups": groups}


@pytest.mark.parametrize(
    ("since", "answers", "expected"),
    [
        ("2h", [{"ResultsByTime": []}], f"nothing is billed under the tag {GROUP_TAG}"),
        (
            "2d",
            [
                {"ResultsByTime": [billed(spot=1.5, on_demand=2.0)], "NextPageToken": "more"},
                {"ResultsByTime": [billed(estimated=True, spot=0.5, others=0.25)]},
            ],
            "4.00 billed for instances from 2026-11-18 to 2026-11-20 (spot 2.00, on demand 2.00), "
            "0.25 for what else carries the tag, not final yet; by the ledger 0.00",
        ),
    ],
)
def test_what_was_billed_on_whole_days_is_added_up_page_by_page(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch, since: str, answers: Any, expected: str
) -> None:
    del deployed
    assert f"actual {expected}" in actually(monkeypatch, since, *answers)


def test_what_was_billed_is_compared_with_the_ledger_of_the_same_days(
    deployed: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hours are requested, but the bill is by day and includes what ran in the morning."""
    del deployed
    night = NOON.replace(hour=1)
    morning = replace(
        ITEM, option=PurchaseOption.ON_DEMAND, since=night, until=night + timedelta(hours=3)
    )
    LedgerTable(boto3.client("dynamodb"), TABLE).put([morning])
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {"g5.xlarge": 1.0})
    told = actually(monkeypatch, "2h", {"ResultsByTime": [billed(on_demand=3.0)]})
    assert "3.00 billed for instances" in told
    assert "by the ledger 3.00" in told
    assert "paid 0.00" in told


def actually(monkeypatch: pytest.MonkeyPatch, since: str, *answers: Any) -> str:
    """The output of `cost` when Cost Explorer answers with these pages."""
    explorer = Stubber(boto3.client("ce", "us-east-1"))
    make: Any = Aws.client

    def client(aws: Aws, service: str, *more: Any) -> Any:
        return explorer.client if service == "ce" else make(aws, service, *more)

    monkeypatch.setattr(Aws, "client", client)
    first, last = ("2026-11-18", "2026-11-20") if since == "2d" else ("2026-11-20", "2026-11-21")
    asked = {
        "TimePeriod": {"Start": first, "End": last},
        "Granularity": "DAILY",
        "Metrics": ["UnblendedCost"],
        "Filter": {"Tags": {"Key": GROUP_TAG, "Values": ["main-on-demand", "main-spot"]}},
        "GroupBy": [{"Type": "DIMENSION", "Key": "PURCHASE_TYPE"}],
    }
    for answer in answers:
        explorer.add_response("get_cost_and_usage", answer, dict(asked))
        asked["NextPageToken"] = answer.get("NextPageToken")
    with explorer:
        return " ".join(answered("cost", "--since", since, "--actual").split())


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


def test_idle_is_what_the_load_leaves_of_the_live_and_the_peak_is_what_was_wanted() -> None:
    """Of two fleets: sums by the hour. What ran is no measure of the peak."""
    wanted = (("OfferedLoad", 1.5), ("WorkersLive", 2.0), ("SpotDesired", 3.0))
    results = [
        {"Id": f"{name}{n}", "Label": name, "Timestamps": [NOON], "Values": [value]}
        for name, value in wanted
        for n in range(2)
    ]
    with mock_aws(), Stubber(boto3.client("cloudwatch", "us-east-1")) as watch:
        watch.add_response("get_metric_data", {"MetricDataResults": results})
        watch.add_response("get_metric_data", {"MetricDataResults": []})
        client = cast("Any", watch.client)
        span = (NOON, NOON + timedelta(hours=1))
        idle, peak = read_use(client, "test", ["main", "night"], *span)
        assert (idle, peak) == (0.25, 6)
        assert read_use(client, "test", ["main"], *span) == (None, None)
