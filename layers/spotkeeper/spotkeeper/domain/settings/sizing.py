"""How a fleet is sized: its bounds, the load rate or the promise about waiting."""

from dataclasses import dataclass

from spotkeeper.domain.settings.setting import instances, seconds, setting, share


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many instances the operator allows; `on_demand_max` bounds the backfill."""

    spot_min: int = instances(
        "fewest spot instances; 0 with a `request_queue_url` lets the fleet sleep",
        "nothing may scale to zero",
        default=0,
    )
    spot_max: int = instances("most spot instances")
    on_demand_max: int = instances(
        "most on-demand instances as backfill; limits the bill on a bad day"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The promise about waiting: `share` of the requests start within `wait_s`.

    `start_up_s` is how long an instance takes to serve, until launches of the fleet show it.
    """

    wait_s: float = seconds(
        "requests should start within this wait; with 0, or without an `objective`, "
        "`target_load_rate` sizes the fleet",
        "[choosing an objective](sizing.md#choosing-an-objective)",
        most=3600,
    )
    share: float = setting(
        "share of requests that should start within `wait_s`", least=0.5, most=0.9999
    )
    start_up_s: int = seconds(
        "time from launch to serving, until the fleet's own launches show it",
        "the first launches take longer",
        least=1,
        most=3600,
        default=240,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingPolicy:
    """How load becomes workers."""

    enabled: bool = setting(
        "false: Spotkeeper does not set the spot group's desired capacity",
        "a schedule or a scaling policy does it",
        default=True,
    )
    target_load_rate: float = share(
        "without an objective: the share of time that workers should be busy",
        "waits are too long (lower) or workers idle (higher)",
        default=0.7,
    )
    window_s: int = seconds(
        "how far back the load is measured",
        "requests take minutes (longer)",
        least=60,
        most=3600,
        default=300,
    )
    # Requests arrive in bursts; releasing capacity within the time of a cold start costs twice.
    scale_in_after_s: int = seconds(
        "without an objective: shrink only to the highest need within this time",
        "starts are slow or traffic bursts (longer)",
        default=900,
    )
    # Forged load is noticed before it has bought much; a real crowd is served within minutes.
    growth_per_turn: float = setting(
        "a turn adds at most this share of the spot instances, or 10 if that is more",
        "load rises within a minute (higher)",
        unit="share",
        above=0,
        most=100,
        default=1.0,
    )
    # Workers ship logs every few seconds; two missed turns mean that shipping has stopped.
    stale_after_s: int = seconds(
        "hold the size while the newest log is older than this",
        "requests are rare (longer)",
        least=30,
        most=3600,
        default=180,
    )
    # Shrinking sooner costs more in cold starts than it saves in idle time.
    quiet_after_s: int = seconds(
        "shrink to `bounds.spot_min` after this time without a request and with an empty "
        "request queue",
        "starts are slow (longer), idle instances are expensive (shorter)",
        least=300,
        default=600,
    )
