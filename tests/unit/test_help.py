"""Help names what there is to choose from, and standard input is a file called `-`."""

import io
import sys
from pathlib import Path

import pytest

from spotkeeper_cli import lab_commands
from spotkeeper_lab.backtest.policies import POLICIES
from spotkeeper_lab.replay.run import RULE_NAMES
from spotkeeper_lab.traces.market_file import read_market
from spotkeeper_lab.traces.requests import read_requests


def test_help_names_every_policy_and_every_rule() -> None:
    assert ", ".join(POLICIES) == lab_commands.POLICY_NAMES
    assert ", ".join(RULE_NAMES) == lab_commands.RULE_NAMES


class Stdin:
    """Standard input that has something to say."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_a_market_and_requests_come_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"time_s,pool,capacity\n0,a/x,3\n7200,,\n"))
    assert read_market(Path("-")).pools == ("a/x",)
    monkeypatch.setattr(sys, "stdin", Stdin(b"arrival_s,service_s\n1,2\n5000,2\n"))
    assert len(read_requests(Path("-"))) == 2
