"""The fleets of a run: documents, groups and cloud, and the requests that come."""

import json

import numpy as np

from spotkeeper_lab.chaos.story.scenario import SPOT_MAX, Scenario, StartState
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import GroupSpec, Physics, Purchase
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION
from spotkeeper_lab.traces.market import market_of
from spotkeeper_lab.traces.requests import RequestTrace

A, B = "us-east-1a/g5.xlarge", "us-east-1b/g5.xlarge"
REQUEST_QUEUE = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/chaos-requests"
OTHERS = 2
POOL_SIZE = 40


def documents_of(scenario: Scenario) -> dict[str, str]:
    """The document of the fleet that things happen to, and of one that nothing should happen to."""
    main = {
        "version": 1,
        "spot_group": "ocr-spot",
        "on_demand_group": "ocr-on-demand",
        "onprem_workers": scenario.onprem_workers,
        "request_queue_url": REQUEST_QUEUE if scenario.queue_known else None,
        "bounds": {
            "spot_min": scenario.spot_min,
            "spot_max": SPOT_MAX,
            "on_demand_max": SPOT_MAX,
        },
        "objective": {"wait_s": 10.0, "share": 0.95} if scenario.objective else None,
        "sizing": {"enabled": scenario.sized},
        "availability": {
            "early_replacement": scenario.early_replacement,
            "on_demand_warm": scenario.warm_pool > 0,
        },
    }
    other = {
        "version": 1,
        "spot_group": "search-spot",
        "on_demand_group": "search-on-demand",
        "bounds": {"spot_min": OTHERS, "spot_max": OTHERS, "on_demand_max": OTHERS},
        "sizing": {"enabled": False},
        "worker_health": {"enabled": False},
    }
    return {"ocr": json.dumps(main), "search": json.dumps(other)}


def specs_of(scenario: Scenario, pools: tuple[str, ...]) -> list[GroupSpec]:
    """The four groups."""
    most = scenario.group_maximum
    first = {StartState.SERVING: (4, 0), StartState.EMPTY: (0, 0), StartState.ON_DEMAND: (0, 6)}[
        scenario.start
    ]
    sizes = {"ocr": (*first, most), "search": (OTHERS, 0, OTHERS)}
    return [
        GroupSpec(
            name=f"{fleet}-{purchase}",
            purchase=purchase,
            minimum=0,
            maximum=maximum,
            desired=desired,
            pools=pools,
        )
        for fleet, (spot, on_demand, maximum) in sizes.items()
        for purchase, desired in ((Purchase.SPOT, spot), (Purchase.ON_DEMAND, on_demand))
    ]


def cloud_of(scenario: Scenario) -> Cloud:
    """The cloud of a run, with as much spot capacity as anybody asks for."""
    strict = scenario.strict
    physics = Physics(
        cold_start_s=scenario.cold_start_s,
        warm_start_s=min(60.0, scenario.cold_start_s) if scenario.warm_pool else None,
        warm_pool=scenario.warm_pool,
        notice_s=120.0,
        event_delay_s=scenario.event_delay_s,
        event_lost=scenario.event_lost,
        event_twice=scenario.event_twice,
        retry_longest_s=240.0,
        terminate_hook_s=30.0,
        launch_hook_s=scenario.launch_hook_s,
        hook_continues=scenario.hook_continues,
        ghost_s=scenario.ghost_s,
        aws_scale_in=strict,
        cancellations_shown=strict,
        pending_ends_refused=strict,
        marks_needed=strict,
        suspend_after_s=scenario.suspend_after_s,
    )
    market = market_of("chaos", 1e6, {A: [(0.0, POOL_SIZE)], B: [(0.0, POOL_SIZE)]})
    return Cloud(market, specs_of(scenario, (A, B)), physics, scenario.seed)


def requests_of(scenario: Scenario) -> RequestTrace:
    """Poisson arrivals of the loads, and service times about their mean."""
    rng = np.random.default_rng(scenario.seed)
    edges = [*(at_s for at_s, _ in scenario.loads), scenario.end_s]
    arrivals = [
        np.sort(rng.uniform(start, stop, rng.poisson((stop - start) * load / scenario.service_s)))
        for (start, load), stop in zip(scenario.loads, edges[1:], strict=True)
    ]
    arrival_s = np.concatenate(arrivals)
    service_s = rng.gamma(4.0, scenario.service_s / 4.0, len(arrival_s)) + 0.05
    return RequestTrace(
        name="chaos", arrival_s=arrival_s, service_s=service_s, end_s=scenario.end_s
    )
