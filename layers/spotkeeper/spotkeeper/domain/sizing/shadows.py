"""A family of textbook rules, a shadow fleet for each, and the choice among them.

Every rule of the family is Erlang C on the load of a recent window, with a margin in square roots
of that load, and a time for which a need is kept. Each has a shadow: the fleet that it would have
run on this fleet's own requests, with the same start-up time and the same bounds. The fleet
follows the cheapest rule whose shadow kept the promise in the last days (`choose`). Nothing is
forecast, and nothing is fitted to anybody else's traffic.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from heapq import heapify, heapreplace
from itertools import accumulate, islice, product, repeat
from statistics import NormalDist
from typing import NamedTuple

from spotkeeper.domain.load.history import (
    DAY_SLOTS,
    DAY_STEPS,
    MINUTE_SLOTS,
    SLOT_S,
    STEP_SLOTS,
    ArrivalLog,
    Scores,
)
from spotkeeper.domain.load.load import LONGEST_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePolicy:
    """The promise, the bounds in workers, and the times that the fleet was measured to need.

    `onprem` workers are always there, within `max_workers` and beside `min_workers` of the cloud,
    which start `per_instance` at a time. A worker that serves `slots` requests at once counts as
    that many, here and wherever workers are found for this policy.
    """

    wait_s: float
    share: float
    min_workers: int
    max_workers: int
    start_up_s: float
    onprem: int = 0
    per_instance: int = 1
    slots: int = 1


# Beyond this many erlangs, chance adds only a few hundredths to the load.
LARGEST_LOAD = 5_000.0


def erlang_workers(load: float, service_mean_s: float, wait_s: float, share: float) -> int:
    """Return the fewest c >= 1 with P(wait > wait_s) <= 1 - share in M/M/c (Erlang 1917).

    Load and service time count to two or three digits.
    """
    return _fewest(_rounded(load), _rounded(service_mean_s), wait_s, share)


def _rounded(value: float) -> float:
    return round(value, 2 if value < 10 else 1 if value < 100 else 0)  # noqa: PLR2004


@lru_cache(100_000)
def _fewest(load: float, service_mean_s: float, wait_s: float, share: float) -> int:
    if load > LARGEST_LOAD:
        return math.ceil(load + 4 * math.sqrt(load))
    blocked, count = 1.0, 0
    while True:
        count += 1
        blocked = load * blocked / (count + load * blocked)
        if count <= load:
            continue
        delayed = blocked / (1.0 - load / count * (1.0 - blocked))
        late = delayed * math.exp(-(count - load) * wait_s / max(service_mean_s, 0.01))
        if late <= 1.0 - share:
            return count


MINUTE_S, STEP_S = 60.0, 300.0
NORMAL = NormalDist()


class Member(NamedTuple):
    """A rule of the family: a window's load plus `roots` of its square root, kept for `keep_s`.

    The window ends now, or, of `yesterday`, around the instant a day ago for which workers that
    launch now are ready. With `bursts`, it also keeps the need of each minute that was a burst.
    """

    window_s: int
    roots: float
    keep_s: int
    yesterday: bool = False
    bursts: bool = False

    def __str__(self) -> str:
        """Tell the rule in words."""
        window = {86_400: "day"}.get(self.window_s, f"{self.window_s // 60} min")
        window = f"{window} at this hour yesterday" if self.yesterday else f"the last {window}"
        margin = f" {self.roots:+g} roots" if self.roots else ""
        return f"Erlang C on {window}{margin}, kept {self.keep_s // 60} min"


# The windows that the load is measured in. A day makes a nearly constant fleet.
WINDOWS_S = (60, 120, 300, 600, 1_800, 3_600)
# Chance is about a square root of the load. Real traffic is smoother, or burstier, than that.
MARGINS = (-0.4, 0.0, 0.5, 1.0, 2.0)
# For how long a need is kept after it has gone. Bursts of a minute are kept for two hours, too.
KEEPS_S = (300, 900, 1_800)
BURST_S, BURST_KEPT_S = 60, 7_200
DAY_S = 86_400
YESTERDAY_S = (120, 1_800)
# The windows, their margins, how long needs are kept (the longest last), and whether of yesterday.
GROUPS = (
    *((window_s, MARGINS, KEEPS_S, False) for window_s in WINDOWS_S),
    (BURST_S, (0.0,), (BURST_KEPT_S,), False),
    (DAY_S, MARGINS, KEEPS_S[:1], False),
    *((window_s, MARGINS, KEEPS_S[:1], True) for window_s in YESTERDAY_S),
)
FAMILY = tuple(
    Member(*each)
    for window_s, margins, keeps_s, yesterday in GROUPS
    for each in product((window_s,), margins, keeps_s, (yesterday,))
)
# A fleet whose own log says little follows this one.
PRUDENT = Member(300, 0.0, 900, bursts=True)
# A minute is a burst if its load is this many standard deviations above that of its five minutes.
BURST_ERRORS = 4.0
BURST = Member(BURST_S, 0.0, BURST_KEPT_S)
# By chance, the load of five minutes is up to this many standard deviations above its mean.
LEAST_ERRORS = 2.0
# The name of this family; scores of another one are not read.
NAME = "3"
LONGEST_KEEP = BURST_KEPT_S // 60

# Most requests that take longer on average end within twice this average.
LONG_S = 120.0
# What waits is cleared within this of the first new worker's start.
DRAIN_S = 300.0
# A shadow starts this long, or two mean service times, before the minutes that it is judged by.
WARM_MINUTES = 10
# Up to this many requests a day, shadows serve each one; above, they serve a flow of 10 s slots.
EXACT_A_DAY = 20_000
# The first steps of a history say nothing: shadows do not know the load yet.
FIRST_STEPS = 3
# PRUDENT is followed until this many steps count.
YOUNG_STEPS = 6
# One turn judges at most this many steps: a lost memory is rebuilt in hours, and no turn is late.
STEPS_A_TURN = 4
# While nothing of a day is known, this many standard errors are added to the late requests.
UNKNOWN_ERRORS = 2.0
# Every share begins with this many requests, as many of them late as the promise allows.
PRIOR = 100.0
# The fleet changes to another rule only if that is cheaper by this share.
CHEAPER = 0.03
# What a step counts of the next one: two days in all.
MEMORY_FADE = math.exp(-1 / (2 * DAY_STEPS))
# The fleet's late requests divided by those expected of its rules correct all shadows, up to this.
LARGEST_CORRECTION, LEAST_CORRECTION = 3.0, 0.7
# A fleet is in balance if it spent this share of its budget of late requests.
SPENT = 0.8
# A fleet in balance pays at most this much for a correction, as a share of the hours without it.
SURCHARGE = 0.2
# The budget is that of this part of a day at least: one surprise spends all of a shorter time's.
# While less is known, doubt about the rest of the day costs no more than a correction.
FIRST_HOURS = DAY_STEPS // 4


@dataclass(frozen=True, slots=True)
class Choice:
    """The rule to follow, by index, and the scores that say so; `cheaper` is the next cheaper rule.

    Index -1 is PRUDENT, of a young fleet; for the `first` quarter of an hour after it, the fleet
    keeps its size. A fleet that `overspent` had more late requests than its balance allows.
    """

    index: int = -1
    scores: Scores = field(default_factory=Scores)
    cheaper: int = -1
    first: bool = False
    overspent: bool = False

    @property
    def member(self) -> Member:
        """The rule itself."""
        return FAMILY[self.index] if self.index >= 0 else PRUDENT

    def kept(self, one: int) -> tuple[float, float]:
        """Return the share that a shadow started in time, and its worker-hours a day."""
        scores = self.scores
        share = 1.0 - scores.late[one] / scores.requests if scores.requests else 1.0
        return share, scores.hours[one] * DAY_STEPS / max(1.0, scores.steps)

    @property
    def least_hours_a_day(self) -> float:
        """The hours of the cheapest shadow that kept the promise, at most those of the rule."""
        each = map(self.kept, range(len(FAMILY)))
        kept = (hours for share, hours in each if share >= self.scores.share)
        return min([self.kept(self.index)[1], *kept])

    def __str__(self) -> str:
        """Say why this one is followed."""
        if self.index < 0:
            return f"{self.member}, and on bursts of a minute, while the fleet's log is young"
        kept, known_h = "{:.1%} in time for {:.1f} worker-hours a day", 24 * _days(self.scores)
        text = f"{self.member}: {kept.format(*self.kept(self.index))} in the last days"
        if known_h < DAY_S / 3600:
            text += f" ({known_h:.1f} h known)"
        if self.cheaper >= 0:
            next_one = kept.format(*self.kept(self.cheaper))
            text += f"; the next cheaper, {FAMILY[self.cheaper]}: {next_one}"
        return text


def lag_slots(service_mean_s: float) -> int:
    """Return the age, in slots, at which most requests that arrived have been logged."""
    long_s = max(0.0, service_mean_s - LONG_S)
    return math.ceil(min(LONGEST_S, max(30.0, 10.0 + service_mean_s + long_s)) / SLOT_S)


def window_slots(window_s: float, service_mean_s: float) -> int:
    """Return the slots to measure the load in: of long requests, at least as long as one is."""
    return round(max(window_s, service_mean_s if service_mean_s > LONG_S else 0.0) / SLOT_S)


def drain_s(service_mean_s: float) -> float:
    """Return within how long what waits is cleared: no request needs more than one worker."""
    return max(DRAIN_S, service_mean_s)


def needed(member: Member, log: ArrivalLog, end: int, mean_s: float, want: ObjectivePolicy) -> int:
    """Return the workers that a member finds at an index of the log.

    Fewer workers than the load are never enough, so the load of a long window is at least that of
    the last five minutes, minus what chance adds to it.
    """
    least = least_load(log.load(end, STEP_SLOTS), mean_s)
    slots = window_slots(member.window_s, mean_s)
    load = log.load(_window_end(end, slots, mean_s, want) if member.yesterday else end, slots)
    margin = member.roots * math.sqrt(load)
    return erlang_workers(max(least, load + margin), mean_s, want.wait_s, want.share)


def _window_end(end: int, slots: int, mean_s: float, want: ObjectivePolicy) -> int:
    """Return the end of a window a day ago, around a minute after workers of now are ready."""
    ahead = lag_slots(mean_s) + round(want.start_up_s / SLOT_S) + MINUTE_SLOTS
    return end + ahead + slots // 2 - DAY_SLOTS


def is_burst(log: ArrivalLog, end: int, mean_s: float) -> bool:
    """Tell whether the load of the minute that ends at an index is more than chance explains."""
    load = log.load(end, STEP_SLOTS)
    above = log.load(end, MINUTE_SLOTS) - load
    return end >= STEP_SLOTS and above > BURST_ERRORS * chance(load, mean_s, MINUTE_S)


def least_load(lately: float, mean_s: float) -> float:
    """Return the least load that a member counts: of five minutes, less what chance adds."""
    return max(0.0, lately - LEAST_ERRORS * chance(lately, mean_s, STEP_S))


def chance(load: float, mean_s: float, window_s: float) -> float:
    """Return the standard deviation of a window's load, if requests arrive independently."""
    return math.sqrt(load * mean_s / window_s)


def in_bounds(workers: int, policy: ObjectivePolicy) -> int:
    """Round workers up to whole instances, within the bounds."""
    cloud = -(-max(0, workers - policy.onprem) // policy.per_instance) * policy.per_instance
    least = policy.onprem + policy.min_workers
    return max(least, min(policy.max_workers, policy.onprem + cloud), 1)


@dataclass(frozen=True, slots=True)
class _World:
    """What all members share in the minutes that one step is judged in; the first are `warm`."""

    policy: ObjectivePolicy
    loads: Sequence[float]
    mean_s: float
    warm: int

    def overloaded(
        self, wants: Sequence[int], at: int, waited_s: float, waiting_s: float, live: int, have: int
    ) -> int:
        """Return what a rule wants in a minute in which requests wait, and a late backlog needs.

        The rule sees an earlier minute: what waits longer than promised has no logs yet.
        """
        promised_s = self.policy.wait_s
        seen = max(0, at - math.ceil(max(0.0, waited_s - promised_s) / MINUTE_S))
        if waiting_s <= max(1, live) * promised_s:
            return wants[seen]
        clearing = math.ceil(self.loads[seen] + waiting_s / drain_s(self.mean_s))
        return max(wants[seen], in_bounds(max(have, clearing), self.policy))


def _exact(
    wants: Sequence[int], world: _World, requests: Sequence[tuple[float, float]]
) -> tuple[float, int]:
    """Serve each request in the order of arrival; return late requests and worker-minutes."""
    policy, count, late, cost, at = world.policy, len(requests), 0, 0, 0
    have, booting, counted_s = wants[0], [math.inf][:0], world.warm * MINUTE_S
    free = [-1.0] * have
    for minute, wanted in enumerate(wants):
        now, want = minute * MINUTE_S, wanted
        booting = [ready for ready in booting if ready > now]
        if at < count and requests[at][0] < now:
            waiting = islice(requests, at, bisect_left(requests, (now,)))
            waiting_s = sum(service_s for _, service_s in waiting)
            waited_s, live = now - requests[at][0], have - len(booting)
            want = world.overloaded(wants, minute, waited_s, waiting_s, live, have)
        if want > have:
            launched = [now + policy.start_up_s] * (want - have)
            booting += launched
            free += launched
            heapify(free)
        elif want < have:
            _release(free, booting, have - want)
        have = want
        end = now + MINUTE_S if minute + 1 < len(wants) else math.inf
        cost += have if minute >= world.warm else 0
        while at < count:
            arrived, service_s = requests[at]
            start = free[0] if free[0] > arrived else arrived
            if start >= end:
                break
            heapreplace(free, start + service_s)
            late += arrived >= counted_s and start - arrived > policy.wait_s
            at += 1
    return late, cost


def _release(free: list[float], booting: list[float], count: int) -> None:
    """Release workers that boot, then those that are idle soonest."""
    launched = min(count, len(booting))
    for _ in range(launched):
        free.remove(booting.pop())
    free.sort()
    del free[: count - launched]


def _flow(
    wants: Sequence[int], world: _World, slots: Sequence[tuple[int, float]]
) -> tuple[float, int]:
    """Serve slots as a flow: exact enough where requests are many."""
    policy, mean_s, late, cost = world.policy, world.mean_s, 0.0, 0
    decay, have = math.exp(-SLOT_S / mean_s), wants[0]
    live, booting, inside = have, [math.inf][:0], world.loads[0]
    for minute, wanted in enumerate(wants):
        now, want = minute * MINUTE_S, wanted
        if inside > live:
            waiting_s = (inside - live) * mean_s
            waited_s = waiting_s / max(1, live)
            want = world.overloaded(wants, minute, waited_s, waiting_s, live, have)
        booting = [ready for ready in booting if ready > now]
        del booting[max(0, len(booting) - max(0, have - want)) :]
        booting += [now + policy.start_up_s] * (want - have)
        have = want
        cost += have if minute >= world.warm else 0
        for slot in range(MINUTE_SLOTS):
            live = have - len(booting) + bisect_right(booting, now + slot * SLOT_S)
            requests, work_s = slots[minute * MINUTE_SLOTS + slot]
            serving, before, offered = max(live, 1e-9), inside, work_s / SLOT_S
            settled = offered + (min(inside, serving) - offered) * decay
            if max(inside, offered) > serving:
                served = min(serving, max(inside, offered)) * SLOT_S / mean_s
                left = inside + work_s / mean_s - served
                inside = left if left > serving else max(left, settled)
            else:
                inside = settled
            if requests and minute >= world.warm:
                late += requests * _late(before, inside, serving, mean_s, policy.wait_s)
    return late, cost


def _late(before: float, after: float, serving: float, mean_s: float, wait_s: float) -> float:
    """Return the share of a slot's requests that wait too long; the queue changes linearly."""
    shorter, longer = sorted((n - serving) * mean_s / serving for n in (before, after))
    if shorter > wait_s:
        return 1.0
    return max(0.0, longer - wait_s) / max(longer - shorter, 1e-9)


def _drawn(seed: int) -> Iterator[float]:
    """Yield numbers between 0 and 1 as by chance, the same for a seed (Park and Miller 1988)."""
    state = (seed + 1) * 1_566_083_941 % 2_147_483_647 or 1
    while True:
        state = state * 48_271 % 2_147_483_647
        yield state / 2_147_483_647


def _requests(log: ArrivalLog, begin: int, end: int, variation: float) -> list[tuple[float, float]]:
    """Draw single requests: of each slot, only their number and the sum of their work are known."""
    spread, requests = math.sqrt(math.log1p(variation)), []
    for slot, (count, work_s) in enumerate(zip(*log.slots(begin, end), strict=True)):
        start = slot * SLOT_S
        if not count:
            continue
        if count == 1:
            requests.append((start + SLOT_S / 2, work_s))
            continue
        draw = _drawn(log.first + begin + slot)
        times = sorted(islice(draw, count))
        sizes = [math.exp(spread * NORMAL.inv_cdf(at)) for at in islice(draw, count)]
        each_s = work_s / sum(sizes)
        each = zip(times, sizes, strict=True)
        requests += [(start + SLOT_S * at, each_s * size) for at, size in each]
    return requests


@lru_cache(8)
def _by_margin(policy: ObjectivePolicy) -> Callable[[float, float, float], tuple[int, ...]]:
    """Return what finds each margin's workers within the bounds, on a window's load."""

    # A look of one step is a look of the next: the needs of the last hours are remembered.
    @lru_cache(20_000)
    def found(load: float, least: float, mean_s: float) -> tuple[int, ...]:
        if not mean_s:
            return (in_bounds(0, policy),) * len(MARGINS)
        loads = (max(least, load + roots * math.sqrt(load)) for roots in MARGINS)
        counts = (_fewest(_rounded(one), mean_s, policy.wait_s, policy.share) for one in loads)
        return tuple(in_bounds(one, policy) for one in counts)

    return found


# Where the load is low, most members need the same.
@lru_cache(2_000)
def _highest(base: tuple[int, ...], keep: int, count: int) -> tuple[int, ...]:
    """Return the highest of each `keep` minutes that end in the last `count` minutes."""
    first = len(base) - count
    if keep < count:
        return tuple([max(base[at - keep + 1 : at + 1]) for at in range(first, len(base))])
    before = [*accumulate(base[first : first - keep : -1], max)]
    return tuple(map(max, reversed(before), accumulate(base[first:], max)))


def judged(
    log: ArrivalLog, end: int, policy: ObjectivePolicy, variation: float
) -> tuple[list[float], list[int]]:
    """Return late requests and worker-minutes of each shadow in the step that ends at an index."""
    mean_s = log.service_mean_s(end)
    warm = max(WARM_MINUTES, math.ceil(2 * min(mean_s, LONGEST_S) / MINUTE_S))
    warm = min(warm, (end - STEP_SLOTS) // MINUTE_SLOTS)
    begin = end - STEP_SLOTS - warm * MINUTE_SLOTS
    turns = range(begin, end, MINUTE_SLOTS)
    looks = range(begin - LONGEST_KEEP * MINUTE_SLOTS, end, MINUTE_SLOTS)
    means = [log.service_mean_s(look) for look in looks]
    ends = [at - lag_slots(mean_s) for at, mean_s in zip(looks, means, strict=True)]
    lately, by = [log.load(at, STEP_SLOTS) for at in ends], [*map(_rounded, means)]
    least = [round(least_load(load, mean_s), 6) for load, mean_s in zip(lately, means, strict=True)]
    world = _World(policy, lately[LONGEST_KEEP:], mean_s, warm)
    a_day = log.count(end - DAY_SLOTS, end) * DAY_SLOTS / min(end, DAY_SLOTS)
    served = (
        partial(_exact, requests=_requests(log, begin, end, variation))
        if a_day <= EXACT_A_DAY
        else partial(_flow, slots=list(zip(*log.slots(begin, end), strict=True)))
    )
    late, cost, found = [], [], _by_margin(policy)
    known: dict[tuple[int, ...], tuple[float, int]] = {}
    for window_s, margins, keeps_s, yesterday in GROUPS:
        slots, first = window_slots(window_s, mean_s), LONGEST_KEEP - keeps_s[-1] // 60
        until = ends[first:]
        if yesterday:
            until = [*map(_window_end, until, repeat(slots), by[first:], repeat(policy))]
        each = (round(log.load(at, slots), 6) for at in until)
        bases = zip(*map(found, each, least[first:], by[first:]), strict=True)
        for roots, base in zip(MARGINS, bases, strict=True):
            for keep_s in keeps_s if roots in margins else ():
                wants = _highest(base, keep_s // 60, len(turns))
                if wants not in known:
                    known[wants] = served(wants, world)
                late.append(known[wants][0])
                cost.append(known[wants][1])
    return late, cost


def unjudged(wait_s: float, share: float, next_step: int) -> Scores:
    """Return the scores of a promise of which no step before one is judged."""
    none = (0.0,) * len(FAMILY)
    begun = Scores(family=NAME, wait_s=wait_s, share=share, next_step=next_step)
    return replace(begun, late=none, squares=none, hours=none)


def advanced(
    scores: Scores,
    log: ArrivalLog,
    stop: int,
    policy: ObjectivePolicy,
    variation: float,
    own: Mapping[int, tuple[int, int]],
) -> Scores:
    """Judge the steps before `stop` that are not judged yet, a few a turn, the oldest first.

    Scores of another family or promise start again, from the steps that the log still has.
    """
    first = -(-log.first // STEP_SLOTS) + FIRST_STEPS
    judged_by = scores.family, scores.wait_s, scores.share, len(scores.late)
    if judged_by != (NAME, policy.wait_s, policy.share, len(FAMILY)):
        scores = unjudged(policy.wait_s, policy.share, first)
    # In a silence the log may end before the steps that are known.
    stop = min(stop, (log.first + len(log)) // STEP_SLOTS)
    for step in range(max(first, scores.next_step), stop)[:STEPS_A_TURN]:
        end = (step + 1) * STEP_SLOTS - log.first
        late, minutes = judged(log, end, policy, variation)
        requests = log.count(end - STEP_SLOTS, end)
        present = policy.onprem * STEP_SLOTS // MINUTE_SLOTS
        hours = [(each - present) / 60 / policy.slots for each in minutes]
        # A choice expects the share that its shadow has had. The fleet's own share is worse where
        # days differ, where the cheapest was lucky, or where instances were lost.
        follows = scores.followed >= 0 and scores.requests > 0
        expected = scores.late[scores.followed] / scores.requests if follows else 0.0
        started, started_late = own.get(step, (0, 0)) if follows else (0, 0)
        scores = replace(
            scores,
            next_step=step + 1,
            steps=_faded(scores.steps, 1.0),
            requests=_faded(scores.requests, requests),
            own_requests=_faded(scores.own_requests, started),
            own_late=_faded(scores.own_late, started_late),
            own_expected=_faded(scores.own_expected, expected * started),
            late=tuple(map(_faded, scores.late, late)),
            squares=tuple(map(_faded, scores.squares, (each * each for each in late))),
            hours=tuple(map(_faded, scores.hours, hours)),
        )
    followed = choose(scores).index
    return replace(scores, followed=followed, start_up_s=policy.start_up_s, onprem=policy.onprem)


def _faded(before: float, now: float) -> float:
    return float(f"{before * MEMORY_FADE + now:.4g}") if before or now else 0.0


# Four of five turns judge no step, and choose again what they chose.
@lru_cache(64)
def choose(scores: Scores) -> Choice:
    """Choose the cheapest member whose shadow keeps the promise in the last days.

    Late requests are corrected by how the fleet itself did with its choices. A correction never
    buys hours without end: lateness that no member avoids would buy the dearest. While less than a
    day is known, standard errors are added to late requests. In the first hours they have the price
    of a correction, and no window of a day is followed: it remembers a load that has gone.
    """
    if scores.steps < YOUNG_STEPS - 0.5 or len(scores.late) != len(FAMILY):
        return Choice()
    correction, balance = _correction(scores)
    surcharge, days, hours = SURCHARGE * math.exp(2 * balance), _days(scores), scores.hours
    young, unknown = days * DAY_STEPS < FIRST_HOURS, UNKNOWN_ERRORS * (1.0 - min(1.0, days))
    members = [one for one, rule in enumerate(FAMILY) if rule.window_s < DAY_S or not young]
    late, kept = _keeping(scores, members, correction, unknown)
    # In the first hours, doubt may cost as much as a correction in balance.
    surcharge = max(SURCHARGE, surcharge) if young else surcharge
    if correction > 1 or young:
        _, uncorrected = _keeping(scores, members, 1.0, 0.0 if young else unknown)
        dearest = (1 + surcharge) * min(hours[one] for one in uncorrected)
        within = [one for one in members if hours[one] <= dearest]
        near = 1.02 * min(late[one] for one in within)
        kept = [one for one in within if one in kept] or [
            one for one in within if late[one] <= near
        ]
    best = min(kept, key=lambda one: (hours[one], late[one], one))
    now = scores.followed
    if now in kept and hours[now] <= hours[best] * (1 + CHEAPER):
        best = now
    cheaper = [one for one in range(len(FAMILY)) if hours[one] < hours[best] and one not in kept]
    return Choice(
        index=best,
        scores=scores,
        cheaper=max(cheaper, key=lambda one: (hours[one], -scores.late[one]), default=-1),
        first=scores.steps < YOUNG_STEPS + FIRST_STEPS - 0.5,
        overspent=balance > 0,
    )


def _correction(scores: Scores) -> tuple[float, float]:
    """Return what corrects late requests, and the fleet's balance: above 0 where it overspent.

    A fleet that spent little of its own budget pays little for a correction, and may spend more, as
    far as a day is known. One that overspent pays more.
    """
    budget = 1.0 - scores.share
    requests = max(scores.own_requests, FIRST_HOURS * scores.requests / scores.steps)
    prior, allowed = PRIOR * budget, SPENT * budget * requests
    lucky = (scores.own_late + prior) / (scores.own_expected + prior)
    balance = max(-1.0, min(1.0, (scores.own_late - allowed) / (allowed + prior)))
    correction = min(LARGEST_CORRECTION, max(1.0, lucky)) * math.exp(balance)
    least = 1.0 - (1.0 - LEAST_CORRECTION) * min(1.0, _days(scores))
    return min(LARGEST_CORRECTION, max(least, correction)), balance


def _keeping(
    scores: Scores, members: Sequence[int], correction: float, unknown: float
) -> tuple[list[float], list[int]]:
    """Return all members' share of late requests, and the members that keep the promise.

    The `unknown` standard errors are added if any keeps it with them. If none keeps it at all,
    those near the best count.
    """
    budget = 1.0 - scores.share
    prior, total = PRIOR * budget, scores.requests + PRIOR
    late: list[float] = []
    for errors in (unknown, 0.0):
        late = [
            ((one + errors * math.sqrt(square)) * correction + prior) / total
            for one, square in zip(scores.late, scores.squares, strict=True)
        ]
        if kept := [one for one in members if late[one] <= budget + 1e-9]:
            return late, kept
    near = 1.1 * min(late[one] for one in members) + 1e-9
    return late, [one for one in members if late[one] <= near]


def _days(scores: Scores) -> float:
    """Return how many days the scores cover."""
    new = 1 - MEMORY_FADE
    return -math.log(max(1e-9, 1 - scores.steps * new)) / new / DAY_STEPS
