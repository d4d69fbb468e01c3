"""A new version beside the others, minute by minute: what it takes to call it worse, or not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spotkeeper.domain.decision import NewVersion, Verdict
from spotkeeper.domain.fleet import Instance
from spotkeeper.domain.health.trial import judged, watch_versions
from spotkeeper.domain.load.load import LoadDigest, WorkerDigest
from tests.builders import at, group, ids, instances
from tests.search_logs import shipped

OLD, NEW = ids("a", 5), "b-0"
WORSE, NO_WORSE, UNKNOWN = Verdict.WORSE, Verdict.NO_WORSE, Verdict.UNKNOWN
# How many requests of how many seconds a canary serves in a minute, and how many fail.
type Minute = tuple[int, float, int]
HEALTHY, SILENT, TENTH, SLOWER = (6, 5.0, 0), (0, 0.0, 0), (6, 5.0, 1), (6, 7.5, 0)
CANARY: Sequence[Instance] = [replace(i, template="8") for i in instances([NEW])]


def sent(minute: int, served: dict[str, Minute]) -> LoadDigest:
    ended = at(60 * minute)
    one = shipped(ended, sum(n for n, _, _ in served.values()), dict.fromkeys(served, ended))
    workers: list[WorkerDigest] = [
        replace(w, ok=n - failed, failed=failed, busy_ms={0: round(1000 * n * mean_s)})
        for w, (n, mean_s, failed) in zip(one.workers, served.values(), strict=True)
    ]
    return replace(one, workers=tuple(workers))


def after(*minutes: Minute | None, logs: bool = True, seen_s: float = -3600) -> NewVersion | None:
    """What is known after minutes in which a canary served, or was not there (None)."""
    trial, since = NewVersion(), dict.fromkeys(OLD, at(seen_s))
    there = [replace(one, template="7") for one in instances(OLD)]
    for number, served in enumerate([*minutes, minutes[-1], minutes[-1]]):
        since.setdefault(NEW, at(60 * number))
        if not served:
            del since[NEW]
        starting = [NEW] if not any(m and m[0] for m in minutes[:number]) and number < 5 else []
        all_of = {**dict.fromkeys(OLD, HEALTHY), **({NEW: served} if served else {})}
        members = (*there, *(CANARY if served else []))
        digests = [sent(n, all_of) for n in (number - 2,) if n >= 0 and logs]
        of = [group("spot", 6, members)]
        trial = watch_versions(trial, of, since, starting, digests, at(60 * number))
    return judged(trial, 0.25, 600)


@pytest.mark.parametrize(
    ("minutes", "verdict"),
    [
        pytest.param([HEALTHY] * 10, UNKNOWN, id="sixty requests are too few"),
        pytest.param([HEALTHY] * 18, NO_WORSE, id="a hundred are enough"),
        pytest.param([TENTH] * 10, WORSE, id="some fail"),
        pytest.param([HEALTHY] * 17 + [(6, 5.0, 2), HEALTHY], UNKNOWN, id="two of a hundred fail"),
        pytest.param([SLOWER] * 10, WORSE, id="slower"),
        pytest.param([(6, 7.0, 0)] * 3, UNKNOWN, id="a few long requests are chance"),
        pytest.param([SILENT] * 12, UNKNOWN, id="silent: it may be starting"),
        pytest.param([SILENT] * 14, WORSE, id="silent for longer than any start"),
        pytest.param([SILENT] * 9 + [HEALTHY] * 4, UNKNOWN, id="slow to start"),
        pytest.param([HEALTHY] * 4 + [SILENT] * 12, WORSE, id="hangs for long"),
        pytest.param([SILENT] * 5 + [None] * 4 + [SILENT] * 8, UNKNOWN, id="two that start"),
        pytest.param([HEALTHY] * 9 + [None] * 5 + [HEALTHY] * 10, NO_WORSE, id="another follows"),
        pytest.param([HEALTHY] * 9 + [None] * 20 + [HEALTHY] * 9, UNKNOWN, id="much later"),
    ],
)
def test_a_canary_is_judged_by_what_it_and_those_before_it_served(
    minutes: list[Minute | None], verdict: Verdict
) -> None:
    known = after(*minutes)
    assert known is not None
    assert known.verdict is verdict, known.text


def test_where_memory_was_lost_the_highest_number_began_last() -> None:
    known = after(*[HEALTHY] * 18, seen_s=0)
    assert known is not None
    assert (known.version, known.verdict) == ("8", NO_WORSE)


@pytest.mark.parametrize(
    ("spot", "on_demand", "new"),
    [
        (("a/7", "a/7"), "b/2", ""),
        (("a/7", "a/8"), "b/2", "a/8"),
        (("a/7", "a/7"), "a/8", "a/8"),
        (("a/7", "c/1"), "b/2", "c/1"),
    ],
)
def test_a_launch_template_of_the_other_group_is_no_new_version(
    spot: tuple[str, str], on_demand: str, new: str
) -> None:
    since = {"a-0": at(-3600), "a-1": at(-1800), "b-0": at(-900 if new == on_demand else -1900)}
    first, second, other = (
        replace(one, template=version)
        for one, version in zip(instances([*since]), (*spot, on_demand), strict=True)
    )
    of = [group("spot", 2, (first, second)), group("on-demand", 1, (other,))]
    assert watch_versions(NewVersion(), of, since, [], [], at(0)).version == new


def test_what_the_others_served_before_a_canary_was_there_is_not_expected_of_it() -> None:
    """No turn ended while one was lost and another followed, and the logs arrived late."""
    old = [replace(one, template="7") for one in instances(OLD)]
    trial, since = NewVersion(), dict.fromkeys(OLD, at(-3600))
    digests = [sent(n, dict.fromkeys(OLD, HEALTHY)) for n in range(17)]
    for minute, name, logs in [(0, "b-0", []), (15, "b-1", []), (20, "b-1", digests)]:
        since.setdefault(name, at(60 * minute))
        of = [group("spot", 6, (*old, replace(CANARY[0], instance_id=name)))]
        trial = watch_versions(trial, of, since, [], logs, at(60 * minute))
    assert (trial.expected, trial.minutes) == (12, 4)


def test_nothing_is_held_against_it_without_logs_or_instances() -> None:
    blind = after(*[SILENT] * 40, logs=False)
    assert blind is not None and blind.verdict is UNKNOWN
    assert after(*[SILENT] * 30, None) is None


def test_a_newer_version_is_compared_instead_and_one_that_was_there_before_is_not_newer() -> None:
    trial, two = NewVersion(), {"7-a": -60, "8-a": 0}
    looks = [two, {**two, "9-a": 1}, two, {**two, "9-b": 3}, {"7-b": 4, "8-a": 0, "9-b": 3}]
    for number, (begun, newest) in enumerate(zip(looks, "89999", strict=True)):
        there = tuple(replace(i, template=i.instance_id[0]) for i in instances([*begun]))
        since = {one: at(60 * minute) for one, minute in begun.items()}
        of = [group("spot", len(there), there)]
        trial = watch_versions(trial, of, since, [], [], at(60 * number))
        assert (trial.version, trial.instances) == (newest, int(number != 2))
