"""One turn of sizing to an objective: 500 workers, a 15-minute window, two weeks of history.

Reading is shown apart: what it costs to unpack and add up the digests, when every worker ships its
logs every 30 s.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random

from bench._figures import Figure, show
from spotkeeper.adapters.dynamodb.load_items import pack, unpack
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.health.memory import HealthMemory, Needed
from spotkeeper.domain.load.arrivals import ArrivalWindow, arrival_window
from spotkeeper.domain.load.digest import SearchLog, Status, digest
from spotkeeper.domain.load.history import DAY_STEPS, KEPT_STEPS, LoadHistory, load_summary
from spotkeeper.domain.load.load import Cluster, Load, LoadDigest
from spotkeeper.domain.load.slots import by_slot
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.domain.settings.sizing import Bounds, Objective
from spotkeeper.domain.sizing.promise import OBJECTIVE_WINDOW_S, ObjectiveInput
from spotkeeper.domain.sizing.size import Sizing, size

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
WORKERS = 500
SHIP_EVERY_S = 30
SERVICE_S = 2.0
BUSY = 0.75
LIMIT_MS = 20.0
ROUNDS = 5
FLEET = Fleet(
    name="big",
    spot_group="spot",
    on_demand_group="on-demand",
    bounds=Bounds(spot_min=0, spot_max=2000, on_demand_max=2000),
    objective=Objective(wait_s=10, share=0.95),
)
MEMORY = HealthMemory(needed=(Needed(at=NOW - timedelta(minutes=1), workers=1),))


def digests() -> list[LoadDigest]:
    """A window of messages of all workers."""
    random = Random(0)
    sent = [
        (worker, age_s)
        for worker in range(WORKERS)
        for age_s in range(worker % SHIP_EVERY_S, OBJECTIVE_WINDOW_S, SHIP_EVERY_S)
    ]
    return [message(worker, NOW - timedelta(seconds=age_s), random) for worker, age_s in sent]


def message(worker: int, sent_at: datetime, random: Random) -> LoadDigest:
    """What a worker served since its last message."""
    count = round(SHIP_EVERY_S * BUSY / SERVICE_S)
    starts = [sent_at - timedelta(seconds=random.uniform(3, 33)) for _ in range(count)]
    logs = [
        SearchLog(
            request_id=f"{worker}-{start.isoformat()}",
            worker_id=f"gpu-{worker}",
            cluster=Cluster.AWS,
            instance_id=f"i-{worker:017x}",
            enqueued_at=start - timedelta(seconds=random.expovariate(2)),
            started_at=start,
            finished_at=start + timedelta(seconds=min(3, random.expovariate(1 / SERVICE_S))),
            status=Status.OK,
        )
        for start in starts
    ]
    return digest(logs, sent_at, FLEET.name)[0]


def history() -> LoadHistory:
    """Two weeks of a load that varies, and comes in bursts."""
    random = Random(0)
    mean = round(WORKERS * BUSY * 300_000)
    return LoadHistory(
        next_step=int(NOW.timestamp()) // 300,
        work_ms=tuple(round(mean * random.uniform(0.7, 1.2)) for _ in range(KEPT_STEPS)),
        requests=(50_000,) * DAY_STEPS,
        late=(500,) * DAY_STEPS,
        roughness=(10**12,) * DAY_STEPS,
        minute_work_ms=tuple(round(mean / 5 * random.choice((0.5, 2))) for _ in range(1440)),
    )


def turn(load: Load, seen: ArrivalWindow, past: LoadHistory) -> Sizing:
    """What a turn works out once the logs are added up."""
    outlook = ObjectiveInput(summary=load_summary(seen, past, load.newest, NOW), serving=WORKERS)
    spot = Group(name="spot", desired=WORKERS, minimum=0, maximum=2000)
    return size(load, FLEET, spot, 0, MEMORY, NOW, outlook)


def _from_sums(sums: tuple[LoadDigest, ...], past: LoadHistory) -> Sizing:
    load = summarise(sums, NOW, FLEET.sizing.window_s)
    return turn(load, arrival_window(sums, NOW, OBJECTIVE_WINDOW_S), past)


def milliseconds(work: Callable[[], object]) -> float:
    """Processor time of some work, the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return 1000 * best


def main() -> None:
    """Print the figures of a turn and of what comes before it."""
    sent, past = digests(), history()
    items = [pack(one) for one in sent]
    load, seen = (
        summarise(sent, NOW, FLEET.sizing.window_s),
        arrival_window(sent, NOW, OBJECTIVE_WINDOW_S),
    )
    size_kb = sum(len(item["digest"]["B"]) + 100 for item in items) / 1024
    sized, sums = turn(load, seen, past), by_slot(sent)
    show(
        f"Sizing {WORKERS} workers to an objective ({sized.workers} needed)",
        [
            Figure(
                name="sizing, the logs added up",
                value=milliseconds(lambda: turn(load, seen, past)),
                unit="ms",
                limit=LIMIT_MS,
            ),
            Figure(
                name="sizing, the logs added up by slot, as a warm function has them",
                value=milliseconds(lambda: _from_sums(sums, past)),
                unit="ms",
                limit=LIMIT_MS,
            ),
            Figure(
                name=f"reading: unpack {len(items):,} digests",
                value=milliseconds(lambda: [unpack(FLEET.name, item) for item in items]),
                unit="ms",
            ),
            Figure(
                name="reading: add up by slot",
                value=milliseconds(lambda: by_slot(sent)),
                unit="ms",
            ),
            Figure(
                name="reading: add up arrivals, 15 minutes",
                value=milliseconds(lambda: arrival_window(sent, NOW, OBJECTIVE_WINDOW_S)),
                unit="ms",
            ),
            Figure(
                name="reading: add up workers, 5 minutes",
                value=milliseconds(lambda: summarise(sent, NOW, FLEET.sizing.window_s)),
                unit="ms",
            ),
            Figure(name="reading: from the table", value=size_kb, unit="KB"),
        ],
    )


if __name__ == "__main__":
    main()
