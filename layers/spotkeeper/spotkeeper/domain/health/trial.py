"""A new version of the launch template beside the one of before: does it serve as well?

The instances of the version that began last are compared with the others, of the same types where
there are some, by the search logs of the same minutes: how many requests fail, how long they take,
and how many each serves.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from itertools import chain

from spotkeeper.domain.decision import NewVersion, Served, Verdict
from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.load.load import LoadDigest, WorkerDigest, milliseconds

_MINUTE_MS = 60_000
# A difference is believed where chance explains it once in about a hundred times; one of durations,
# which vary with the requests, where it explains it once in thousands of looks.
EVIDENCE, OF_DURATIONS = 4.5, 8.0
# More failures than this prove nothing yet, but a version is not called no worse: chance explains
# them once in about sixty times.
DOUBT = EVIDENCE / 2
# A version is worse when its requests take this many times as long. What must be noticed is 1.5.
SLOWER = 1.25
# Instances hang when they serve less than one in this many of their share of the requests, once
# they were in service for this many launch deadlines. Nothing is expected in the first half of one:
# an instance that starts at the deadline reaches a third.
FEWER, STARTED = 3, 1.25
# A canary is covered for this many launch deadlines.
DEADLINES = 1.5
# This many requests, times their squared variation, tell whether a version is worse; fewer than a
# tenth of them do not tell how long they take.
ENOUGH = 100
# What a lost instance has shown is remembered for this many minutes.
KEPT = 15


def watch_versions(
    before: NewVersion,
    groups: Sequence[Group],
    since: Mapping[str, datetime],
    starting: Collection[str],
    digests: Iterable[LoadDigest],
    now: datetime,
) -> NewVersion:
    """Add the minutes that have passed, up to one minute ago; `since` has when each was first seen.

    Nothing is compared while all instances have one version, and nothing is expected of `starting`
    ones.
    """
    seen = [
        [i for i in g.instances if i.phase is Phase.IN_SERVICE and i.instance_id in since]
        for g in groups
    ]
    compared = _compared([{i.template for i in each} for each in seen])
    there = [i for each in seen for i in each if i.template in compared]
    begun: dict[str, datetime] = {}
    for one in there:
        first = since[one.instance_id]
        begun[one.template] = min(first, begun.get(one.template, first))
    begun.pop("", None)
    # Where memory was lost, all were first seen at once: the highest number began last.
    order = sorted((first, _number(version), version) for version, first in begun.items())
    newest = order[-1][-1] if order else ""
    until = _minute(now) - 1
    newer = newest not in ("", before.version, *before.older)
    kept = not newer and before.version not in begun and until - before.until < KEPT
    if kept or len(order) < 2 or order[0][:2] == order[-1][:2]:  # noqa: PLR2004 - nothing to compare
        return replace(before, instances=0) if kept else NewVersion()
    if newer or before.version not in begun:
        before = NewVersion(version=newest, since=begun[newest])
    # What a group launches again of these is not new.
    older = {*before.older, *begun} - {before.version}
    before = replace(before, older=tuple(sorted(older)))
    if not before.instances:
        before = replace(before, until=max(before.until, _minute(begun[before.version])))
    new = {i.instance_id: i.pool.rpartition("/")[2] for i in there if i.template == before.version}
    rest = {i.instance_id: i.pool.rpartition("/")[2] for i in there if i.instance_id not in new}
    alike = {i for i, kind in rest.items() if kind in new.values()} or rest.keys()
    read = [d for d in digests if before.until <= _minute(d.sent_at) < until]
    ours = _added(before.new, (w for d in read for w in d.workers if w.instance_id in new))
    theirs, expected = Served(), before.expected
    for digest in read:
        sent = _added(Served(), (w for w in digest.workers if w.instance_id in alike))
        # Logs may arrive late, from minutes before an instance was there.
        there_then = [i for i in new if i not in starting and since[i] <= digest.sent_at]
        theirs, expected = theirs + sent, expected + len(there_then) / len(alike) * sent.requests
    began = max(before.until, _minute(min(since[i] for i in new))) if new else until
    return replace(
        before,
        instances=len(new),
        new=ours,
        # While it starts, it is not compared with those that serve.
        others=before.others + theirs if ours.requests else before.others,
        expected=expected,
        minutes=before.minutes + max(0, until - began),
        until=max(before.until, until),
    )


def _compared(groups: Sequence[Set[str]]) -> set[str]:
    """Return the versions with another beside them, of the same launch template or in one group.

    Each group may have a launch template of its own: then neither is the new one.
    """
    every = {*chain.from_iterable(groups)}
    templates = {version.rpartition("/")[0] for version in every}
    of_one = [{v for v in every if v.rpartition("/")[0] == one} for one in templates]
    return {*chain.from_iterable(one for one in (*groups, *of_one) if len(one) > 1)}


def _minute(at: datetime) -> int:
    return milliseconds(at) // _MINUTE_MS


def _number(version: str) -> int:
    number = version.rpartition("/")[2]
    return int(number) if number.isdigit() else 0


def _added(sums: Served, workers: Iterable[WorkerDigest]) -> Served:
    for each in workers:
        served_s = sum(each.busy_ms.values()) / 1000
        sums += Served(ok=each.ok, failed=each.failed, served_s=served_s)
    return sums


def judged(trial: NewVersion, variation: float, deadline_s: float) -> NewVersion | None:
    """Judge the new version by what is known, or return None where there is none.

    `variation` is the squared one of service times, `deadline_s` that of a launch.
    """
    if not trial.instances:
        return None
    new, others = trial.new, trial.others
    verdict = Verdict.UNKNOWN
    if new.requests and others.requests:
        failing = surprise([(new.ok + others.ok, new.failed + others.failed)])
        failing -= surprise([(new.ok, new.failed)]) + surprise([(others.ok, others.failed)])
        more = new.failed * others.requests > others.failed * new.requests
        slower = new.mean_s / others.mean_s if others.mean_s else 1.0
        error = math.sqrt(max(variation, 0.01) * (1 / new.requests + 1 / others.requests))
        slow = ((slower - 1) / error) ** 2 / 2
        fewer = min(new.requests, others.requests)
        enough = ENOUGH * max(1.0, variation)
        slow = slow if 10 * fewer >= enough else 0.0
        if (more and failing >= EVIDENCE) or (slower >= SLOWER and slow >= OF_DURATIONS):
            verdict = Verdict.WORSE
        elif fewer >= enough and slower < SLOWER and (failing < DOUBT or not more):
            verdict = Verdict.NO_WORSE
    few = trial.expected - new.requests
    few += new.requests * math.log(max(1, new.requests) / max(1.0, trial.expected))
    started = 60 * trial.minutes >= STARTED * deadline_s
    if started and FEWER * new.requests < trial.expected and few >= EVIDENCE:
        verdict = Verdict.WORSE
    return replace(trial, verdict=verdict)


def canary(trial: NewVersion, groups: Iterable[Group]) -> set[str]:
    """Return the instance that alone tries a new version, beside one of the other group at most.

    The on-demand instance that stands in for it may have that version, too.
    """
    for group in groups:
        mine = [i for i in group.instances if i.template == trial.version]
        if trial.instances and any(i.phase is Phase.IN_SERVICE for i in mine):
            few = len(mine) == 1 and trial.instances <= 2  # noqa: PLR2004 - one in each group
            return {i.instance_id for i in mine} if few or trial.instances == 1 else set()
    return set()


def surprise(ended: Sequence[tuple[int, int]]) -> float:
    """Return how unlikely outcomes are where all have one chance to fail: -log of it."""
    counts = [sum(n[k] for n in ended) for k in (0, 1)]
    return -sum(n * math.log(n / sum(counts)) for n in counts if n)
