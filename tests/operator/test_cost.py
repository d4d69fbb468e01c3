"""cost on a stack whose ledger was kept: prices are what AWS says, or missing."""

import json

import boto3
import pytest

from spotkeeper.adapters.dynamodb.ledger import LedgerTable
from spotkeeper_operator import aws
from tests.builders import TABLE
from tests.functions.conftest import PATH, Stage
from tests.operator.command import answered, run


def test_a_missing_price_is_named(kept: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    del kept
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {})
    out = answered("cost", "--since", "2h")
    assert "have no price and are in no sum: on-demand g5.xlarge" in " ".join(out.split())
    found = json.loads(answered("cost", "--since", "2h", "--json"))
    assert found["missing_prices"] == ["on-demand g5.xlarge"]


def test_what_was_never_read_is_not_known(deployed: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never read, a document that is broken, a ledger that is not kept any more: exit code 1."""
    monkeypatch.setattr(aws, "on_demand_prices", lambda *_: {})
    code, out, _ = run("cost")
    assert code == 1
    assert "fleet main: its instances were never read" in " ".join(out.split())
    assert "paid not known" in " ".join(out.split())
    assert "0.00" not in out
    ledger = LedgerTable(boto3.client("dynamodb"), TABLE)
    ledger.looked("main", deployed.now)
    assert run("cost")[0] == 0
    deployed.put("night", "{")
    code, out, _ = run("cost")
    assert (code, "its cost is in no sum" in " ".join(out.split())) == (1, True)
    boto3.client("ssm").delete_parameter(Name=f"{PATH}/night")
    deployed.at(deployed.cloud.now_s + 3600)
    found = json.loads(run("cost", "--json")[1])
    assert "later costs are not known" in found["unknown"][0]
