"""What a health turn may see: workers' loads, groups and memories for the tests of this folder."""

from dataclasses import replace

from spotkeeper.domain.fleet import Group
from spotkeeper.domain.health.diagnosis import Diagnosis, diagnose
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.health.reports import in_service_since, watch_reports
from spotkeeper.domain.load.flow import LogFlow
from spotkeeper.domain.load.histogram import Histogram
from spotkeeper.domain.load.load import Cluster, Load, LoadDigest, WorkerDigest, WorkerLoad
from spotkeeper.domain.load.request_queue import QueueLength, QueueMemory
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy
from tests.builders import at, fleet, group, ids, instances

SPOT = ids("a", 6)


OLD = HealthMemory(in_service_since={i: at(-3600) for i in SPOT})


def worker(
    instance_id: str,
    finished: int = 20,
    failed: int = 0,
    *,
    last: float = 0,
    name: str = "",
    cluster: Cluster = Cluster.AWS,
) -> WorkerLoad:
    return WorkerLoad(
        worker_id=name or f"worker-of-{instance_id}",
        cluster=cluster,
        instance_id=instance_id,
        finished=finished,
        failed=failed,
        last_finished=at(last),
    )


def onprem(count: int, *, last: float = 0) -> list[WorkerLoad]:
    return [worker("", name=f"rack-{n}", cluster=Cluster.ONPREM, last=last) for n in range(count)]


def load(*workers: WorkerLoad, seconds: float = 0) -> Load:
    finished = sum(each.finished for each in workers)
    return Load(at=at(seconds), window_s=300, workers=workers, finished=finished)


def busy(*instance_ids: str, seconds: float = 0) -> list[WorkerLoad]:
    return [worker(i, last=seconds) for i in instance_ids]


def diagnosed(
    seen: Load,
    *,
    memory: HealthMemory = OLD,
    groups: tuple[Group, ...] | None = None,
    policy: WorkerHealthPolicy | None = None,
    onprem_workers: int = 0,
) -> Diagnosis:
    of = replace(fleet(worker_health=policy), onprem_workers=onprem_workers)
    members = groups or (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    serving = in_service_since(members, memory, seen.at)
    memory = replace(memory, in_service_since=serving)
    return diagnose(seen, members, of, memory, seen.at)


def passed(*instance_ids: str, by: float = 20.0, of: HealthMemory = OLD) -> HealthMemory:
    """So many requests were the share of instances that have no log since."""
    return replace(of, expected=dict.fromkeys(instance_ids, by))


HUNG = passed(SPOT[0])


def watched(memory: HealthMemory, seconds: float, *served: str, requests: int = 60) -> HealthMemory:
    """A turn at an instant, for which so many requests came in, and who shipped logs."""
    workers = [worker(i, last=seconds - 60) for i in served]
    members = (group("spot", 6, instances(SPOT)), group("on-demand", 0))
    sent = counted(requests, seconds - 60, *served)
    return watch_reports(
        memory, members, load(*workers, seconds=seconds), sent, fleet(), at(seconds)
    )


def counted(requests: int, seconds: float, *served: str) -> list[LoadDigest]:
    """A digest of so many requests of instances that was sent at an instant."""
    empty = Histogram()
    shipped = tuple(
        WorkerDigest(
            worker_id="gpu",
            cluster=Cluster.AWS,
            instance_id=i,
            ok=1,
            error=0,
            timeout=0,
            last_finished=at(seconds),
            busy_ms={},
        )
        for i in served
    )
    return [
        LoadDigest(
            fleet="ocr",
            key="",
            sent_at=at(seconds),
            count=requests,
            late=0,
            skewed=0,
            workers=shipped,
            arrivals={},
            waits=empty,
            service=empty,
        )
    ]


def starting(since: float, *instance_ids: str, by: float = 20.0) -> HealthMemory:
    """Instances that have not reported since they were first seen."""
    who = instance_ids or SPOT[:1]
    return passed(*who, by=by, of=replace(OLD, starting=dict.fromkeys(who, at(since))))


def untouched(seconds: float, in_flight: int = 0) -> QueueMemory:
    """Requests that wait for so long, as ten looks say."""
    length = QueueLength(waiting=7, in_flight=in_flight)
    return QueueMemory(length=length, untouched_since=at(-seconds), untouched_looks=10)


def nobody_reports(queue: QueueMemory | None, silence_s: float = 900) -> HealthMemory:
    """A fleet of six of which none reported since an hour, its last log so long ago."""
    flow = LogFlow(known_since=at(-9000), newest=at(-silence_s), rate=1.0)
    seen = replace(starting(-3600, *SPOT, by=0.0), flow=flow)
    suspects = dict.fromkeys(SPOT, at(-60))
    return replace(seen, suspects=suspects, queue=queue)


def paced(instance_id: str, mean_s: float, finished: int = 20) -> WorkerLoad:
    return replace(worker(instance_id, finished), served_s=mean_s * finished)
