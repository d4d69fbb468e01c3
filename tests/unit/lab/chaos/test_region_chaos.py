"""A seed determines a run of several regions; a rule without make before break is noticed."""

from dataclasses import replace
from typing import Any

import pytest

from spotkeeper.domain import spread
from spotkeeper.turns import spread as turns
from spotkeeper_lab.run import region_chaos
from spotkeeper_lab.run.region_chaos import RegionRun, draw


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hours of a run are enough here."""
    monkeypatch.setattr(region_chaos, "HOURS", 3.0)


def test_covers_beyond_the_need_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(*arguments: Any) -> dict[str, spread.Place]:
        return {
            r: replace(place, share=replace(place.share, cover=2 * place.share.cover))
            for r, place in spread.spread(*arguments).items()
        }

    monkeypatch.setattr(turns, "spread", double)
    result = RegionRun(replace(draw(3), events=())).play()
    assert "covers" in result.broken[0][1]
