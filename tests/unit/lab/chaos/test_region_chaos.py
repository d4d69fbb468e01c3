"""A seed determines a run of several regions; a rule without make before break is noticed."""

from dataclasses import replace
from typing import Any

import pytest

from spotkeeper.domain import spread
from spotkeeper.turns import spread as turns
from spotkeeper_lab.run import region_chaos
from spotkeeper_lab.run.region_chaos import Event, RegionRun, Trouble, draw


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hours of a run are enough here."""
    monkeypatch.setattr(region_chaos, "HOURS", 3.0)


def test_a_partition_breaks_no_promise() -> None:
    away = Event(Trouble.PARTITION, "us-east-1", 3000.0, 6600.0)
    assert not RegionRun(replace(draw(3), events=(away,))).play().broken


def test_covers_beyond_the_need_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(*arguments: Any) -> dict[str, spread.Place]:
        return {
            r: replace(place, share=replace(place.share, cover=2 * place.share.cover))
            for r, place in spread.spread(*arguments).items()
        }

    monkeypatch.setattr(turns, "spread", double)
    result = RegionRun(replace(draw(3), events=())).play()
    assert "covers" in result.broken[0][1]
