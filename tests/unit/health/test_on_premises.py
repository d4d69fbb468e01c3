"""Workers on premises: nobody can replace them, so they are alarmed about."""

from dataclasses import replace

from spotkeeper.domain.load.load import Cluster, WorkerLoad
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy
from tests.builders import at
from tests.unit.health.seen import (
    SPOT,
    busy,
    diagnosed,
    load,
    onprem,
    paced,
    worker,
)


def test_workers_on_premises_are_only_alarmed_about() -> None:
    seen = load(*busy(*SPOT), *onprem(2))
    assert diagnosed(seen, onprem_workers=2).onprem_silent == 0
    missing = diagnosed(seen, onprem_workers=3)
    assert (missing.onprem_silent, missing.reasons, missing.replace) == (1, {}, ())
    hung = load(*busy(*SPOT), *onprem(3, last=-300))
    assert diagnosed(hung, onprem_workers=3).onprem_silent == 3


def rack(*means_s: float, last: float = 0) -> list[WorkerLoad]:
    """Workers on premises that take so long for a request."""
    return [
        replace(it, served_s=mean_s * it.finished)
        for it, mean_s in zip(onprem(len(means_s), last=last), means_s, strict=True)
    ]


def test_a_slow_worker_on_premises_is_compared_with_its_like_and_seen_twice() -> None:
    cloud = [paced(i, 1.0) for i in SPOT]
    first = diagnosed(load(*cloud, *rack(6.0, 6.0, 6.0)))
    assert first.onprem == {}
    first = diagnosed(load(*cloud, *rack(6.0, 6.0, 18.0)))
    slow = {"rack-2": "serves 3.0 times slower than its peers"}
    assert (first.onprem, first.onprem_due, first.onprem_suspect) == (slow, (), 0)
    later = [replace(it, last_finished=at(60)) for it in (*cloud, *rack(6.0, 6.0, 18.0))]
    second = diagnosed(load(*later, seconds=60), memory=first.memory)
    assert (second.onprem, second.onprem_due, second.onprem_suspect) == (slow, ("rack-2",), 1)
    assert (second.reasons, second.replace) == ({}, ())
    well = [replace(it, last_finished=at(120)) for it in (*cloud, *rack(6.0, 6.0, 6.0))]
    third = diagnosed(load(*well, seconds=120), memory=second.memory)
    assert (third.onprem, third.memory.onprem_suspects) == ({}, {})


def test_a_failing_worker_on_premises_is_suspect_unless_most_fail() -> None:
    ill = worker("", 10, 10, name="rack-0", cluster=Cluster.ONPREM)
    assert diagnosed(load(*busy(*SPOT), ill)).onprem == {"rack-0": "10 of 10 requests failed"}
    failing = [worker(i, 10, 10) for i in SPOT]
    assert diagnosed(load(*failing, ill)).onprem == {}
    off = WorkerHealthPolicy(enabled=False)
    assert diagnosed(load(*busy(*SPOT), ill), policy=off).onprem == {}


def test_a_silent_worker_on_premises_is_missing_and_not_suspect_twice() -> None:
    seen = load(*busy(*SPOT), *rack(6.0, 6.0, 6.0), *rack(6.0, 6.0, 6.0, 60.0, last=-300)[3:])
    diagnosis = diagnosed(seen, onprem_workers=4)
    assert (diagnosis.onprem, diagnosis.onprem_suspect) == ({}, 1)


def test_workers_on_premises_may_idle() -> None:
    assert diagnosed(load(), onprem_workers=3).onprem_silent == 0
    assert diagnosed(load(worker(SPOT[0], 4)), onprem_workers=3).onprem_silent == 0
