"""The replay's rule sees what the deployed rule sees: the same summary from the same requests."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from spotkeeper.domain.load.digest import SearchLog, Status, digest
from spotkeeper.domain.load.history import (
    LoadHistory,
    LoadSummary,
    arrival_log,
    arrival_window,
    as_if_full,
    extended,
    load_summary,
    own_starts,
)
from spotkeeper.domain.load.load import Cluster
from spotkeeper_lab.replay.seen import SeenLogs

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
WAIT_S, MINUTES = 10.0, 50


def instant(seconds: float) -> datetime:
    """The instant of a time of the lab, to the millisecond."""
    return START + timedelta(milliseconds=round(seconds * 1000))


def requests() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arrival, start and service times in whole milliseconds; a burst waits.

    Requests after it take twice as long, so that twice as many share their worker.
    """
    random = np.random.default_rng(0)
    arrival_s = np.sort(random.uniform(0, 60 * MINUTES, 6_000))
    arrival_s[3_000:3_200] = arrival_s[3_000] + np.arange(200) / 100
    wait_s = np.zeros(6_000)
    wait_s[3_000:3_200] = np.arange(200) / 10
    service_s = random.exponential(1.0, 6_000)
    service_s[3_200:] *= 2
    arrival_s, wait_s, service_s = (np.round(x, 3) for x in (np.sort(arrival_s), wait_s, service_s))
    return arrival_s, arrival_s + wait_s, service_s


def deployed(slots: int) -> LoadSummary:
    """What the turns of every minute find at the last one; a message every five seconds."""
    sent: dict[int, list[SearchLog]] = {}
    for number, (came, began, served) in enumerate(zip(*requests(), strict=True)):
        log = SearchLog(
            request_id=f"r-{number}",
            worker_id="gpu-0",
            cluster=Cluster.ONPREM,
            enqueued_at=instant(came),
            started_at=instant(began),
            finished_at=instant(began + served),
            status=Status.OK,
        )
        sent.setdefault(int((log.finished_at - START) / timedelta(seconds=5)) + 1, []).append(log)
    digests = [digest(sent[at], instant(5.0 * at), "ocr")[0] for at in sorted(sent)]
    history, now = LoadHistory(), START
    seen = arrival_window([], now, 900)
    for minute in range(1, MINUTES + 1):
        now = instant(60.0 * minute)
        known = [one for one in digests if now - timedelta(minutes=15) <= one.sent_at <= now]
        own = own_starts(known, WAIT_S)
        history, seen = as_if_full(history, arrival_window(known, now, 900, slots), slots, own)
        history = extended(history, seen)
    return load_summary(arrival_log(history, seen), seen, now)


def replayed(slots: int) -> LoadSummary:
    arrival_s, start_s, service_s = requests()
    sent_in = ((start_s + service_s) // 60.0).astype(int)
    logs = SeenLogs(60.0 * MINUTES, WAIT_S)
    for minute in range(MINUTES):
        done = sent_in == minute
        logs.add(arrival_s[done], start_s[done], service_s[done])
        logs.share(start_s[done], service_s[done], [0] * int(done.sum()))
        logs.as_if_full(60.0 * (minute + 1), slots)
    return logs.summary(60.0 * MINUTES)


@pytest.mark.parametrize("worker_slots", [1, 8])
def test_the_summaries_agree(worker_slots: int) -> None:
    one, other = deployed(worker_slots), replayed(worker_slots)
    slots = len(one.log)
    assert slots == len(other.log) == 6 * MINUTES
    for window in (12, 30, 60, 180, slots):
        for end in (slots - 3, slots - 63):
            assert one.log.load(end, window) == pytest.approx(other.log.load(end, window), rel=0.02)
    assert one.newest_start_age_s == pytest.approx(other.newest_start_age_s)
    assert one.newest_wait_s == pytest.approx(other.newest_wait_s)
    # By the time that logs arrived, not requests; up to the settled step, and to the bucket.
    known_s = other.service_mean_s if worker_slots == 1 else other.log.service_mean_s(slots)
    assert one.service_mean_s == pytest.approx(known_s, rel=0.01)


@pytest.mark.parametrize(
    ("every_s", "silent_s", "missing"),
    [(1.0, 170.0, False), (1.0, 200.0, True), (60.0, 600.0, False), (60.0, 1_000.0, True)],
)
def test_logs_are_missing_after_more_than_chance_explains(
    every_s: float, silent_s: float, missing: bool
) -> None:
    logs = SeenLogs(20_000.0, WAIT_S)
    arrival_s = np.arange(0.0, 9_000.0, every_s)
    logs.add(arrival_s, arrival_s, np.full(len(arrival_s), 0.1))
    assert logs.are_missing(float(arrival_s[-1]) + silent_s) is missing
