"""Which workers report, and which should, judged by the requests that passed them by.

Each request goes to any of the workers in service. A worker that works gets none of its share of n
requests with the probability exp(-n); at 14 that is one in a million (`load.flow.CERTAIN`). The
share is counted turn by turn, so that neither a quiet night nor a slow hour makes a worker look
silent.
"""

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.health_memory import DAYS, SILENCES, HealthMemory, Silence
from spotkeeper.domain.load.flow import (
    CERTAIN,
    HOUR,
    HOUR_S,
    SLOT_S,
    STOPPED_AFTER,
    UNHEARD,
    LogFlow,
    requests_since,
)
from spotkeeper.domain.load.load import Load, LoadDigest, merged, slot_begins, slot_of
from spotkeeper.domain.load.request_queue import known_length, known_waiting, quiet_s, untouched_s
from spotkeeper.domain.load.summarise import onprem_at_once

# A worker ships its logs once a minute at least.
SHIPS_WITHIN_SLOTS = 6
# Turns run within two minutes of each other. A single failed turn does not mean that they stopped.
TURNS_STOPPED = timedelta(seconds=300)
# The load before a silence is read off this many requests, in the hour before it at most.
BASELINE, HOUR_SLOTS = 100, round(HOUR_S / SLOT_S)
# A lone worker that ends no request for this many mean service times hangs: twice as long as by the
# exponential law one request in a million takes.
HELD = 2 * CERTAIN
# Load rate above which no worker has time left.
BUSY_ALL_THE_TIME = 0.9
# At this load rate and this wait, workers serve one request after the other.
BUSY, WAITED_S = 0.8, 10.0
# The least evidence against each of several instances that are certainly not all silent by chance.
TOGETHER = CERTAIN / 3
# One of several silent instances is replaced if their logs are still missing after this time.
TRIED_AFTER = timedelta(minutes=30)
TRIED_AFTER_SLOTS = round(TRIED_AFTER.total_seconds() / SLOT_S)
# A new worker takes a request that waits at once, and its log is known after this.
FIRST_REQUEST = timedelta(minutes=2)


# The start-up time is the median of the last launches, at most this many.
LAUNCHES = 9


def watch_starts(
    memory: HealthMemory, spot: Group, on_demand: Group, load: Load, now: datetime
) -> HealthMemory:
    """Remember instances that started and have no log yet, and how long spot launches took."""
    known = memory.in_service_since.keys() - memory.starting.keys()
    known |= {worker.instance_id for worker in load.workers}
    starting = {
        i.instance_id: memory.starting.get(i.instance_id, now)
        for i in (*spot.instances, *on_demand.instances)
        if i.phase is not Phase.LEAVING and i.healthy and i.instance_id not in known
    }
    begun = memory.starting.keys() - memory.in_service_since.keys()
    took = (
        round((now - memory.starting[i.instance_id]).total_seconds())
        for i in spot.instances
        if i.phase is Phase.IN_SERVICE and i.instance_id in begun
    )
    return replace(memory, starting=starting, start_ups=(*memory.start_ups, *took)[-LAUNCHES:])


def in_service_since(
    groups: Iterable[Group], memory: HealthMemory, now: datetime
) -> dict[str, datetime]:
    """Return when each healthy instance in service was first seen in service.

    One that returns from standby is no later launch.
    """
    known = {**memory.out_of_service, **memory.in_service_since}
    return {
        i.instance_id: known.get(i.instance_id, now)
        for group in groups
        for i in group.instances
        if i.phase is Phase.IN_SERVICE and i.healthy
    }


def watch_reports(
    memory: HealthMemory,
    groups: Iterable[Group],
    load: Load,
    digests: Sequence[LoadDigest],
    fleet: Fleet,
    now: datetime,
    read_from: datetime,
) -> HealthMemory:
    """Update which instances are in service, and their shares of requests since their last logs."""
    since = in_service_since(groups, memory, now)
    members = {i.instance_id for group in groups for i in group.instances}
    known = {**memory.out_of_service, **memory.in_service_since}
    heard = _heard(digests)
    flow, requests = requests_since(memory.flow, digests, now, read_from)
    counted = range(memory.flow.counted, flow.counted)
    oldest_first = sorted(load.workers, key=lambda worker: worker.last_finished)
    logged = {worker.instance_id: worker.last_finished for worker in oldest_first}
    own = (one.last_finished for sent in digests for one in sent.workers if not one.instance_id)
    last = {i: at for i, at in {**memory.last_logs, **logged}.items() if i in since}
    workers = workers_in_service(len(since) + memory.elsewhere, load, fleet)
    passed = max(requests / workers, _beside_waits(requests, workers, load, digests, memory, now))
    share = passed * fleet.workers_per_instance
    expected: dict[str, float] = {}
    later: dict[int, int] = {}
    for i in since:
        if heard.get(i, -1) < memory.flow.counted:
            expected[i] = memory.expected.get(i, 0.0) + share
        else:
            # Between two turns that are far apart, it may have gone silent since its log.
            after = heard[i] + SHIPS_WITHIN_SLOTS
            if after not in later:
                slots = counted[max(0, after - counted.start) :]
                later[after] = sum(one.count for one in digests if slot_of(one.sent_at) in slots)
            expected[i] = share * later[after] / max(1, requests)
    if any(memory.expected.get(i, 0.0) >= CERTAIN > passed_by for i, passed_by in expected.items()):
        # A silent instance reports again: perhaps it served, and its logs were missing.
        flow = replace(flow, partly_until=now)
    return replace(
        memory,
        in_service_since=since,
        out_of_service={i: at for i, at in known.items() if i in members - since.keys()},
        flow=flow,
        expected=expected,
        last_logs=last,
        onprem_at=max(own, default=memory.onprem_at),
        counts=_counts(memory, flow.counted, requests),
        failures=_failures(memory, since, digests, counted),
        worker_known_at=now if since.keys() - memory.starting.keys() else memory.worker_known_at,
    )


def _beside_waits(
    requests: int,
    workers: int,
    load: Load,
    digests: Iterable[LoadDigest],
    memory: HealthMemory,
    now: datetime,
) -> float:
    """Return the evidence against a worker that is idle while requests wait; 0 where none wait.

    A free worker takes a waiting request, and finishes as many as each busy peer. A time without
    one is as likely as one service of that length: 1 in 20 takes longer than p95.
    """
    p95_s = load.service.quantile_s(0.95)
    since = now - timedelta(seconds=60 + p95_s)
    live = [worker.load_rate for worker in load.workers if worker.last_finished >= since]
    sent = (one.waits for one in digests if slot_of(one.sent_at) >= memory.flow.counted)
    if not live or sum(live) < BUSY * len(live) or merged(sent).quantile_s(0.5) < WAITED_S:
        return 0.0
    steady = math.log(20) * load.service.mean_s / p95_s if p95_s else 1.0
    return requests / len(live) * steady if len(live) < workers else 0.0


def _counts(memory: HealthMemory, counted: int, requests: int) -> dict[int, int]:
    """Add the requests of a turn, and forget those of more than two hours ago."""
    kept = {at: n for at, n in memory.counts.items() if counted - 2 * HOUR_SLOTS <= at < counted}
    return {**kept, counted: requests}


def _failures(
    memory: HealthMemory, there: Container[str], digests: Iterable[LoadDigest], counted: range
) -> dict[str, int]:
    """Count each instance's failed requests since its last success, with those of a turn.

    While any has some, the successes of the others since count below 0.
    """
    failures = {i: count for i, count in memory.failures.items() if not i or i in there}
    for one in sorted(digests, key=lambda digest: digest.sent_at):
        if slot_of(one.sent_at) not in counted:
            continue
        for worker in one.workers:
            i, failed = worker.instance_id, worker.failed
            before = failures.get(i, 0)
            if worker.ok:
                failures[i] = 0 if failed else min(0, before) - worker.ok
            elif failed and (not i or i in there):
                failures[i] = max(0, before) + failed
    return failures if any(count > 0 for count in failures.values()) else {}


def _heard(digests: Iterable[LoadDigest]) -> dict[str, int]:
    """Return the slot of each instance's last message."""
    heard: dict[str, int] = {}
    for one in digests:
        slot = slot_of(one.sent_at)
        for worker in one.workers:
            heard[worker.instance_id] = max(slot, heard.get(worker.instance_id, slot))
    return heard


def workers_in_service(instances: int, load: Load, fleet: Fleet) -> int:
    """Count the workers that requests go to, at least one."""
    return max(1, instances * fleet.workers_per_instance + onprem_at_once(load))


def silent(memory: HealthMemory, fleet: Fleet, now: datetime) -> dict[str, str]:
    """Return the reason against each instance that worked, and got none of its share since.

    A suspect stays one until it logs: evidence that sufficed against several stays as strong when
    some of them are replaced. One that two turns suspected stays one whatever its share since:
    where it took no waiting request, others take them now. Ask `logs_rather_missing` before any of
    them is replaced.
    """
    quiet: dict[str, timedelta] = {}
    for i, since in memory.in_service_since.items():
        silence = now - max(since, memory.last_logs.get(i, since))
        long = silence >= timedelta(seconds=fleet.worker_health.silent_after_s)
        if i not in memory.starting and long:
            quiet[i] = silence
    passed = {i: memory.expected.get(i, 0.0) for i in quiet}
    enough = _enough(passed.values(), len(memory.in_service_since))
    suffices = {i: min(enough, TOGETHER) for i in memory.suspects} | dict.fromkeys(memory.silent, 0)
    return {
        i: f"finished no request for {silence.total_seconds():.0f} s, "
        f"although its share was {passed[i]:.0f}"
        for i, silence in quiet.items()
        if passed[i] >= suffices.get(i, enough)
    }


def _enough(passed: Iterable[float], total: int) -> float:
    """Return the evidence that suffices: `CERTAIN` against one alone, less against each of several.

    The chance that any `count` of `total` are silent is the sum over all choices of `count`.
    """
    most = sorted(passed, reverse=True)
    for count in range(len(most), 1, -1):
        together = sum(most[:count]) - math.log(math.comb(total, count))
        if most[count - 1] >= TOGETHER and together >= CERTAIN:
            return min(CERTAIN, most[count - 1])
    return CERTAIN


def idle_beside_requests(memory: HealthMemory, fleet: Fleet, now: datetime) -> dict[str, str]:
    """Return the reason against each instance that worked, and takes no waiting request.

    The request queue shows it when no peer works either: nothing is in flight, the queue does not
    shrink, and no log arrives. Each idle instance would have taken a request. A lone instance may
    hang while it holds requests: a working one would have ended many meanwhile.
    """
    silent_s = float(fleet.worker_health.silent_after_s)
    untouched = untouched_s(memory.queue, now)
    why = f"requests have waited for {untouched:.0f} s and it takes none"
    if not untouched and len(memory.in_service_since) == 1:
        silent_s = max(silent_s, HELD * memory.service_mean_s)
        untouched = untouched_s(memory.queue, now, held=True)
        why = f"requests have waited for {untouched:.0f} s and it ends none of those that it holds"
    if untouched < silent_s:
        return {}
    return {
        i: why
        for i, since in memory.in_service_since.items()
        if i not in memory.starting
        and now - max(since, memory.last_logs.get(i, since)) >= timedelta(seconds=silent_s)
    }


def logs_rather_missing(
    silent: Mapping[str, str], memory: HealthMemory, load: Load, fleet: Fleet
) -> bool:
    """Tell whether logs are missing: over a third are silent at once, and the others not busier.

    If the silent ones had died, the others would serve their requests: half of the workers would
    each serve twice as many as before, or be busy all the time. Those that were found dead before
    stay so, and leave the comparison.
    """
    # When the evidence against the first is certain, that against the others may still be half.
    half = {i for i in memory.in_service_since if memory.expected.get(i, 0.0) >= CERTAIN / 2}
    dead = silent.keys() & memory.silent
    alike = (half | silent.keys()) - dead
    total = len(memory.in_service_since) - len(dead)
    if silent.keys() <= dead or len(alike) < 2 or 3 * len(alike) <= total:  # noqa: PLR2004
        return False
    if load.load_rate >= BUSY_ALL_THE_TIME:
        return False
    workers = workers_in_service(total + memory.elsewhere, load, fleet)
    left = max(1, workers - len(alike) * fleet.workers_per_instance)
    return not _all_are_served(memory, alike, left / workers)


def _all_are_served(memory: HealthMemory, alike: Iterable[str], left: float) -> bool:
    """Tell whether logs show all requests since some instances are silent, or those of the others.

    The others are the share `left` of the workers. The rate is that before the first silence. It is
    compared with all requests of half an hour since the last silence: of two rates, the one that
    makes this number of requests likelier. Later, the load may be another.
    """
    quiet_since = [memory.last_logs.get(i, memory.in_service_since[i]) for i in alike]
    first, last = slot_of(min(quiet_since)), slot_of(max(quiet_since))
    before = before_slots = since = since_slots = 0
    for start, slot in reversed([*pairwise(sorted(memory.counts))]):
        n, slots = memory.counts[slot], slot - start
        if slot <= first and first - slot < HOUR_SLOTS and before < BASELINE:
            before, before_slots = before + n, before_slots + slots
        elif last < slot <= last + TRIED_AFTER_SLOTS:
            since, since_slots = since + n, since_slots + slots
    if not before or left == 1.0:
        return False
    whole = before / before_slots * since_slots
    return since * math.log(1 / left) > whole * (1 - left)


def unreported(load: Load, memory: HealthMemory, fleet: Fleet, now: datetime) -> dict[str, str]:
    """Return the reason against each instance in service whose workers never reported.

    It counts as launching if a working one would certainly report by the launch deadline. Where
    requests are too few to show it, or have stopped, every instance in service counts as serving.
    """
    deadline = timedelta(seconds=fleet.availability.launch_deadline_s)
    pace, logged = 0.0, is_logged(load, memory, now)
    if logged:
        there = len(memory.in_service_since) + memory.elsewhere
        workers = workers_in_service(there, load, fleet)
        pace = load.arrival_rate / workers * fleet.workers_per_instance
    alone = not logged and _nobody_ever_reported(memory) and _nobody_serves(memory, now)
    reasons: dict[str, str] = {}
    for i, since in memory.starting.items():
        left = max(timedelta(0), deadline - (now - since)).total_seconds()
        passed = memory.expected.get(i, 0.0)
        if i in memory.in_service_since and (alone or passed + pace * left >= CERTAIN):
            waited = (now - since).total_seconds()
            reasons[i] = f"never reported in {waited:.0f} s: its workers do not start"
    return reasons


def is_logged(load: Load, memory: HealthMemory, now: datetime) -> bool:
    """Tell whether logs show the load of now; in a silence they show that of an earlier window."""
    return bool(load.workers) and not memory.flow.is_missing(now)


def unproven_of(memory: HealthMemory, now: datetime) -> tuple[str, ...]:
    """Return the instances that may serve or not: they never reported, or still launch.

    They are unproven until one of their requests is logged. Every instance in service counts as
    serving where the requests of an hour are too few to show it. Where requests had stopped, it
    counts once it would have taken one that waited, and after an hour of silence at once. In a
    silence, an instance counts after an hour unless requests wait, and at once where the request
    queue shows that none arrives.
    """
    missing = memory.flow.is_missing(now)
    if _nothing_to_prove(memory, now):
        return ()
    if requests_had_stopped(memory, CERTAIN, now):
        there = memory.in_service_since
        return tuple(i for i in memory.starting if now - there.get(i, now) < FIRST_REQUEST)
    stopped = missing and not known_waiting(memory.queue)
    return tuple(
        i
        for i, since in memory.starting.items()
        if not (stopped and (now - since).total_seconds() >= HOUR_S)
    )


def not_met(memory: HealthMemory, in_service: Iterable[str], now: datetime) -> tuple[str, ...]:
    """Return the instances that are in service since the last turn: unproven, too.

    Where turns have stopped, every instance in service counts as serving.
    """
    turns_stopped = now - slot_begins(memory.flow.counted) > TURNS_STOPPED
    if turns_stopped or _nothing_to_prove(memory, now):
        return ()
    return tuple(i for i in in_service if i not in memory.in_service_since)


def _nothing_to_prove(memory: HealthMemory, now: datetime) -> bool:
    """Tell whether requests are rare, or there are none: by the queue, or for an hour."""
    quiet = memory.flow.is_missing(now) and quiet_s(memory.queue, now)
    long = memory.flow.newest is not None and now - memory.flow.newest >= HOUR
    return (
        _too_rare(memory, now)
        or bool(quiet)
        or (long and requests_had_stopped(memory, CERTAIN, now))
    )


def _too_rare(memory: HealthMemory, now: datetime) -> bool:
    """Say whether the requests of an hour are too few to show which workers serve.

    It takes an hour to know that, unless no request was ever logged.
    """
    flow = memory.flow
    if flow.newest is None:
        return True
    if flow.watched_since is None or now - flow.watched_since < HOUR:
        return False
    share = flow.lately / max(1, len(memory.in_service_since))
    return share * HOUR_S < UNHEARD


def _nobody_ever_reported(memory: HealthMemory) -> bool:
    """Tell whether no instance in service has ever logged; otherwise logs are rather missing."""
    return memory.in_service_since.keys() <= memory.starting.keys()


def _nobody_serves(memory: HealthMemory, now: datetime) -> bool:
    """Say whether requests arrive and no worker takes one, by the queue or by logs that stopped.

    If requests are in flight, or the queue shrinks, they are served and logs are missing. Logs that
    had stopped before the last working instance left are no evidence against its successors.
    """
    if known_length(memory.queue):
        return untouched_s(memory.queue, now) > 0
    return memory.flow.is_missing(now) and not requests_had_stopped(memory, UNHEARD, now)


def nobody_serves(memory: HealthMemory, now: datetime, *, declared: int = 0) -> str:
    """Say why no worker seems to serve any request; empty where one does.

    A queue proves it. Without one, missing logs do, except at a time of day that was quiet before.
    Where no instance is in service, the capacity is missing, which other alarms say, unless workers
    on premises are `declared`, or served last.
    """
    if not (memory.in_service_since or declared or memory.onprem_served):
        return ""
    waiting, newest = known_waiting(memory.queue), memory.flow.newest
    untouched = untouched_s(memory.queue, now)
    if untouched:
        return f"nobody serves: {waiting} requests wait, and none was taken for {untouched:.0f} s"
    if newest is None or not memory.flow.is_missing(now):
        return ""
    silence = now - (_could_log_since(memory, newest) if waiting else newest)
    if silence < STOPPED_AFTER or (known_length(memory.queue) and not waiting):
        return ""
    why = f"no request was logged for {silence.total_seconds():.0f} s"
    if waiting:
        return f"nobody serves: {waiting} requests wait, and {why}"
    if memory.was_quiet_before(now):
        return ""
    maybe = "nobody serves, requests have stopped, or their logs do not arrive"
    return f"{why}, where many are expected: {maybe}"


def _could_log_since(memory: HealthMemory, newest: datetime) -> datetime:
    """Return since when a waiting request could have been served and logged.

    After a quiet night, the log of the first request is still to follow, and so is a worker where
    the fleet was asleep.
    """
    waiting_since = (memory.queue.waiting_since if memory.queue else None) or newest
    return max(newest, waiting_since, min(memory.in_service_since.values(), default=newest))


def with_silence(memory: HealthMemory, before: LogFlow, load: Load, now: datetime) -> HealthMemory:
    """Remember a silence that has ended, if requests had stopped: none of them had to wait."""
    since, until = before.newest, memory.flow.known_since
    oldest = now - timedelta(days=DAYS)
    kept = [one for one in memory.silences if one.until >= oldest]
    ended = since and until and until != before.known_since and until - since >= STOPPED_AFTER
    if since and until and ended and load.waits.quantile_s(0.5) < WAITED_S:
        kept.append(Silence(since=since, until=until))
    silences = tuple(kept[-SILENCES:])
    return memory if silences == memory.silences else replace(memory, silences=silences)


def requests_had_stopped(memory: HealthMemory, expected: float, now: datetime) -> bool:
    """Tell whether requests had stopped while an instance that works was still in service.

    Instances that were launched since cannot be judged, unless the queue shows requests.
    """
    if known_length(memory.queue) and not quiet_s(memory.queue, now):
        return False
    known_at = memory.worker_known_at
    return known_at is not None and memory.flow.stopped_by(known_at, expected)


def late(
    silent: Mapping[str, str], memory: HealthMemory, fleet: Fleet, now: datetime
) -> tuple[str, ...]:
    """Return those that should have reported by now: their start has failed.

    Other logs must have arrived for `silent_after_s` since it started: logs may stop before its
    first one.
    """
    deadline = timedelta(seconds=fleet.availability.launch_deadline_s)
    due = tuple(i for i in silent if now - memory.starting[i] >= deadline)
    if _nobody_ever_reported(memory):
        return due
    heard = memory.flow.newest or now
    beside = timedelta(seconds=fleet.worker_health.silent_after_s)
    return tuple(i for i in due if heard - memory.starting[i] >= beside)


def one_at_a_time(
    due: tuple[str, ...], silence: timedelta, memory: HealthMemory, fleet: Fleet, now: datetime
) -> tuple[str, ...]:
    """Replace one instance where it is not known whether any works; its successor may report.

    The next follows after the launch deadline, and after half of the silence so far: a fleet that
    has no requests any more must not replace its instances all night.
    """
    pause = max(timedelta(seconds=fleet.availability.launch_deadline_s), silence / 2)
    last = max(memory.replaced, default=None)
    return () if last is not None and now - last < pause else due[:1]


def on_trial(
    quiet: Collection[str], budget: int, memory: HealthMemory, fleet: Fleet, now: datetime
) -> tuple[str, ...]:
    """Return the silent instances to replace if logs may be missing: one, after half an hour.

    An instance that went into service since, and reports, shows that logs arrive: then the others
    follow as fast as the budget allows.
    """
    # The last of them was known to work until then.
    since = memory.in_service_since
    silent_since = max(max(since[i], memory.last_logs.get(i, since[i])) for i in quiet)
    if not budget or now - silent_since < TRIED_AFTER:
        return ()
    first = min((at for at in memory.replaced if at >= silent_since + TRIED_AFTER), default=now)
    if any(at > first and i not in quiet and i not in memory.starting for i, at in since.items()):
        return tuple(quiet)[:budget]
    return one_at_a_time(tuple(quiet), now - silent_since, memory, fleet, now)
