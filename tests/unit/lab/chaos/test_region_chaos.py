"""What chaos of several regions notices: faults of the rule, each in the weather that shows it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spotkeeper.domain import spread
from spotkeeper.turns import spread as turns
from spotkeeper_lab.run import region_chaos
from spotkeeper_lab.run.region_chaos import Event, RegionRun, Trouble, draw


def double(*arguments: Any) -> dict[str, spread.Place]:
    return {
        r: replace(place, share=replace(place.share, cover=2 * place.share.cover))
        for r, place in spread.spread(*arguments).items()
    }


@pytest.mark.parametrize(
    ("module", "name", "fault", "trouble", "seed", "broken"),
    [
        (turns, "spread", double, Trouble.APART, 3, "covers"),
        # Covers are lowered before others are raised.
        (turns, "sorted", lambda these, key: reversed(sorted(these, key=key)),
         Trouble.UNWRITTEN, 9, "covers"),
        (turns, "RELEASE", 0, Trouble.OLDER, 4, "serve"),
        # A region that is gone keeps its cover.
        (turns, "STALE", timedelta(days=1), Trouble.LOST, 15, "serve"),
        (spread, "REST", timedelta(0), Trouble.APART, 40, "spot is free"),
    ],
)  # fmt: skip
def test_a_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    fault: Any,
    trouble: Trouble,
    seed: int,
    broken: str,
) -> None:
    monkeypatch.setattr(region_chaos, "HOURS", 3.0)
    drawn = draw(seed)
    event = Event(trouble, drawn.regions[-1], 1800.0, 3 * 3600.0, 30.0)
    scenario = replace(drawn, events=(event,))
    assert not RegionRun(scenario).play().broken
    monkeypatch.setattr(module, name, fault, raising=False)
    assert broken in RegionRun(scenario).play().broken[0][1]
