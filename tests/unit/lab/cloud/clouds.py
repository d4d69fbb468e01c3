"""Clouds of two pools for the tests of the market and of the verbs."""

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import (
    CloudEvent,
    EventKind,
    GroupSpec,
    Physics,
    Purchase,
)
from spotkeeper_lab.traces.market import Market, market_of

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"


QUIET = Physics(cold_start_s=120, notice_s=120)


def market(a: list[tuple[float, int]], b: list[tuple[float, int]] | None = None) -> Market:
    """Two pools for three hours."""
    return market_of("test", 10_800.0, {A: a, B: b or [(0.0, 0)]})


def cloud(
    given_market: Market, desired: int, physics: Physics = QUIET, *, minimum: int = 0
) -> Cloud:
    """A spot group of `desired` beside an empty on-demand group."""
    groups = [
        GroupSpec(
            name="spot",
            purchase=Purchase.SPOT,
            minimum=minimum,
            maximum=10,
            desired=desired,
            pools=(A, B),
        ),
        GroupSpec(
            name="od", purchase=Purchase.ON_DEMAND, minimum=0, maximum=10, desired=0, pools=(A, B)
        ),
    ]
    return Cloud(given_market, groups, physics)


def ids(one: Cloud, group: str) -> list[str]:
    """The instances of a group."""
    return [instance.instance_id for instance in one.group(group).instances]


def kinds(events: list[CloudEvent], *wanted: EventKind) -> list[tuple[EventKind, float, str]]:
    """The events of some kinds."""
    return [(e.kind, e.at_s, e.instance_id) for e in events if e.kind in wanted]
