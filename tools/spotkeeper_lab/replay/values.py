"""The settings of a replay and its results."""

from collections.abc import Sequence
from dataclasses import dataclass

from spotkeeper.domain.sizing.shadows import Choice
from spotkeeper_lab.traces.requests import Floats


class ReplayError(ValueError):
    """A replay cannot run with these settings; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """The promise and the world of a replay; times in seconds.

    The fleet starts with `initial_workers`, or, when None, with what the first `warmup_s` of the
    trace need at a load rate of 0.7. Requests that arrive before `warmup_s` do not count in waits.
    A worker serves `slots` requests at once, which take longer the more there are. Logs are sent
    every `log_batch_s` and readable `log_delay_s` later. Of the rules that read logs Spotkeeper
    alone may look at the queue's length too (`queue_known`), and so have no workers.
    """

    wait_s: float = 10.0
    share: float = 0.95
    cold_start_s: float = 240.0
    workers_per_instance: int = 1
    slots: int = 1
    onprem: int = 0
    queue_known: bool = False
    min_workers: int = 1
    initial_workers: int | None = None
    max_workers: int = 1_000
    warmup_s: float = 900.0
    log_batch_s: float = 5.0
    log_delay_s: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of a trace's requests; waits in seconds, of requests after the warm-up.

    `worker_hours` are billed from launch to release, on-premises workers not counted.
    `lost` are requests that were cut off, or still waited hours after the trace's end.
    """

    trace: str
    rule: str
    objective_met: bool
    share_in_time: float
    wait_p50: float
    wait_p95: float
    wait_p99: float
    worker_hours: float
    scale_outs: int
    scale_ins: int
    lost: int
    requests: int
    settings: ReplaySettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Served):
    """One rule on one trace.

    `at_most`: the rule reached `max_workers`, and may have needed more.
    """

    at_most: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A row with what happened behind it; `wait_s` is infinite for a request that was lost.

    The picture has an entry per minute: workers `wanted` and `serving` at `time_s`, and the reason.
    `choices` are the rules that Spotkeeper followed, each with the second from which on.
    """

    row: Row
    wait_s: Floats
    time_s: Floats
    wanted: Floats
    serving: Floats
    reasons: tuple[str, ...]
    choices: Sequence[tuple[float, Choice]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketRow(Served):
    """Both checkers on one trace and market, and the cost.

    `worker_hours` are those of instances from launch to end, spot and on-demand ones together.
    `cost` is that of a fixed on-demand fleet for the peak, `sizing_factor * spot_factor`.
    """

    market: str
    hours: float
    workers_per_instance: int
    served_share: float
    losses: int
    spot_hours: float
    on_demand_hours: float
    cost: float
    sizing_factor: float
    spot_factor: float
