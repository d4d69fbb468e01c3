"""How fast each instance type serves, and a load as workers of one speed would have served it.

Types are compared by the service times of the same minutes. The unit is the mean worker of the
fleet when it first had two types. A type has speed 1 until it has served beside another one, and
is drawn towards 1 until it has `TRUSTED` logs. A fleet of one type is sized as if there were no
speeds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import fmean

from spotkeeper.domain.fleet import Group, Phase
from spotkeeper.domain.load.load import LoadDigest, WorkerDigest, milliseconds

TRUSTED = 300
# The newest logs of each type count, up to this many: drivers and models change.
REMEMBERED = 3_000
# Smaller differences of the fastest and the slowest are chance, and make the size restless.
EQUAL = 1.25
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a type served beside others: `expected_s` is what a worker of speed 1 would take."""

    logs: float = 0.0
    expected_s: float = 0.0
    spent_s: float = 0.0

    @property
    def speed(self) -> float:
        """How many times as fast as a worker of speed 1."""
        return self.expected_s / self.spent_s if self.spent_s else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What is known of a fleet's types: `kinds` has the type of each instance with logs or alive.

    Minutes before `until`, counted from the Unix epoch, are in it.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, Served] = field(default_factory=dict)
    until: int = 0

    @property
    def differing(self) -> dict[str, float]:
        """The speeds of the types; nothing where they hardly differ."""
        means = {
            kind: served.speed ** min(1.0, served.logs / TRUSTED)
            for kind, served in self.types.items()
        }
        each = means.values()
        return means if each and max(each) > EQUAL * min(each) else {}

    def mean_of(self, groups: Iterable[Group]) -> float:
        """The mean speed of the instances that serve or launch."""
        speeds = self.differing
        each = [speeds.get(kind, 1.0) for kind in _present(groups).values()]
        return fmean(each) if each else 1.0


def learn(
    before: Speeds, groups: Sequence[Group], digests: Sequence[LoadDigest], now: datetime
) -> Speeds:
    """Add the minutes that have passed since, up to one minute ago."""
    kinds = {**before.kinds, **_present(groups)}
    if len(set(kinds.values())) < 2:  # noqa: PLR2004 - nothing to compare
        return replace(before, kinds={})
    until = milliseconds(now) // _MINUTE_MS - 1
    minutes: defaultdict[int, dict[str, list[float]]] = defaultdict(dict)
    logged = set[str]()
    for digest in digests:
        minute = milliseconds(digest.sent_at) // _MINUTE_MS
        logged.update(worker.instance_id for worker in digest.workers)
        for worker in digest.workers if before.until <= minute < until else ():
            if worker.instance_id in kinds and worker.ok and not worker.failed:
                sums = minutes[minute].setdefault(kinds[worker.instance_id], [0.0, 0.0])
                sums[0] += worker.ok
                sums[1] += _busy_s(worker)
    types = dict(before.types)
    for minute in sorted(minutes):
        if len(minutes[minute]) > 1:
            _compare(types, minutes[minute])
    logged.update(_present(groups))
    kept = {name: kind for name, kind in kinds.items() if name in logged}
    return Speeds(kinds=kept, types=types, until=max(before.until, until))


def _compare(types: dict[str, Served], minute: Mapping[str, Sequence[float]]) -> None:
    """Add a minute in which several types served, assuming that their requests were alike."""
    known = {kind: types.get(kind, Served()) for kind in minute}
    work_s = sum(spent_s * known[kind].speed for kind, (_, spent_s) in minute.items())
    mean_s = work_s / sum(logs for logs, _ in minute.values())
    for kind, (logs, spent_s) in minute.items():
        was = known[kind]
        fade = min(1.0, REMEMBERED / (was.logs + logs))
        types[kind] = Served(
            logs=fade * (was.logs + logs),
            expected_s=fade * (was.expected_s + logs * mean_s),
            spent_s=fade * (was.spent_s + spent_s),
        )


def at_speed_1(speeds: Speeds, digests: Sequence[LoadDigest]) -> Sequence[LoadDigest]:
    """Convert service times to those that requests would have had on workers of speed 1."""
    by_kind = speeds.differing
    if not by_kind:
        return digests
    by_instance = {name: by_kind.get(kind, 1.0) for name, kind in speeds.kinds.items()}
    return [_at_speed_1(by_instance, digest) for digest in digests]


def _at_speed_1(speeds: Mapping[str, float], digest: LoadDigest) -> LoadDigest:
    spent_s = sum(map(_busy_s, digest.workers))
    work_s = sum(_busy_s(one) * speeds.get(one.instance_id, 1.0) for one in digest.workers)
    if work_s == spent_s:
        return digest
    times = work_s / spent_s
    service = digest.service
    return replace(
        digest,
        work_ms={slot: round(ms * times) for slot, ms in digest.work_ms.items()},
        service=replace(
            service,
            total_ms=round(service.total_ms * times),
            squares=round(service.squares * times**2),
        ),
    )


def _busy_s(worker: WorkerDigest) -> float:
    return sum(worker.busy_ms.values()) / 1000


def _present(groups: Iterable[Group]) -> dict[str, str]:
    return {
        i.instance_id: i.pool.rpartition("/")[2]
        for group in groups
        for i in group.instances
        if i.phase is not Phase.LEAVING and i.healthy
    }
