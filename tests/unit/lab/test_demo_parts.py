"""The parts of the demo, each alone: its scene and its series."""

from datetime import UTC, datetime

import numpy as np
import pytest

from spotkeeper_lab.checkout import NotACheckout, load_handler
from spotkeeper_lab.run.demo import (
    LEAD_S,
    DemoSettings,
    Look,
    Scene,
    expected_serving,
    per_second,
    scene,
)
from spotkeeper_lab.traces.market import Market, market_of
from spotkeeper_lab.traces.requests import RequestTrace

HOUR = 3600.0


def test_a_function_that_is_not_beside_the_package_says_how_to_have_it() -> None:
    with pytest.raises(NotACheckout, match=r"app\.py is missing: in a checkout .* make bootstrap"):
        load_handler("no_such_function")


def requests(*arrivals: float, service_s: float = 2.0, end_s: float = HOUR) -> RequestTrace:
    return RequestTrace(
        name="some",
        arrival_s=np.array(arrivals, dtype=np.float64),
        service_s=np.full(len(arrivals), service_s),
        end_s=end_s,
    )


def market(hours: float = 3.0, capacity: int = 3) -> Market:
    steps = [(0.0, capacity), (HOUR, 0), (2 * HOUR, capacity)]
    return market_of("some", hours * HOUR, {"a/x": steps, "b/x": [(0.0, capacity)]})


def staged(**settings: object) -> Scene:
    values: dict[str, object] = {"market": market(), "requests": requests(10.0), "hours": 1.0}
    return scene(DemoSettings(**{**values, **settings}))  # type: ignore[arg-type]


# --- scene ----------------------------------------------------------------------------------------


def test_the_lead_stands_still_and_the_hours_follow() -> None:
    stage = staged(start_h=0.5)
    assert stage.market.end_s == stage.end_s == LEAD_S + HOUR
    assert stage.market.of("a/x").times == (0.0, LEAD_S + HOUR / 2)
    assert stage.market.capacity("a/x", 0.0) == 3
    assert stage.start == datetime(2026, 1, 1, 0, 15, tzinfo=UTC)


def test_requests_that_end_early_begin_again() -> None:
    stage = staged(hours=2.0, requests=requests(10.0, 1800.0))
    # The lead has the last quarter of an hour of the trace, which is empty.
    expected = [LEAD_S + 10.0, LEAD_S + 1800.0, LEAD_S + HOUR + 10.0, LEAD_S + HOUR + 1800.0]
    assert stage.requests.arrival_s.tolist() == expected


# --- series ---------------------------------------------------------------------------------------


def test_a_requested_instance_is_owed_once_it_can_have_started() -> None:
    looks = [
        Look(
            at_s=at_s,
            target=target,
            spot=frozenset(),
            on_demand=0,
            stays=0,
            on_demand_desired=0,
            workers=0,
        )
        for at_s, target in ((0, 2), (10, 4), (20, 1))
    ]
    expected = expected_serving(per_second(looks, lambda one: one.target, 30.0), 5.0)
    assert [expected[second] for second in (9, 14, 15, 20)] == [2, 2, 4, 1]
