"""The doctor's daily look: what is wrong is logged whole and its errors are counted."""

import json
import logging

import pytest
from moto.servicequotas.responses import ServiceQuotasResponse

from functions.examine_account.app import handler as examine_account
from tests.functions.conftest import Stage, StageOf
from tests.operator.command import STACK, deploy


@pytest.fixture
def deployed(stage_of: StageOf, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A fleet on groups without hooks, in an account without any service-linked role."""
    # moto lists no service quotas.
    monkeypatch.setattr(
        ServiceQuotasResponse, "list_service_quotas", lambda _: '{"Quotas": []}', raising=False
    )
    stage = stage_of(("ocr",))
    deploy()
    monkeypatch.setenv("STACK_NAME", STACK)
    return stage


def emitted(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """What was counted without a fleet."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in lines if "_aws" in line]
    (directive,) = told["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["service"]]
    return {metric["Name"]: told[metric["Name"]][0] for metric in directive["Metrics"]}


def test_findings_are_logged_and_errors_counted(
    deployed: Stage, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    counts = deployed.call(examine_account)
    found = [vars(each) for each in caplog.records if each.message == "found wrong"]
    assert len(found) == sum(counts.values())
    roles = [each["evidence"] for each in found if each["finding"] == "no-service-linked-role"]
    assert any("AWSServiceRoleForEC2Spot" in evidence for evidence in roles)
    assert all(each["fix"] for each in found)
    assert emitted(capsys) == {"Misconfigurations": counts["error"]}
    assert counts["error"] >= len(roles) > 0
    reads = ("Describe", "Get", "List", "Query")
    changes = [c for c in deployed.calls if not c.partition(".")[2].startswith(reads)]
    assert changes == []


def test_a_clean_bill_is_counted_too(
    deployed: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("functions.examine_account.app.examine", lambda _: ())
    assert deployed.call(examine_account) == {"error": 0, "warning": 0, "unknown": 0, "note": 0}
    assert emitted(capsys) == {"Misconfigurations": 0}
