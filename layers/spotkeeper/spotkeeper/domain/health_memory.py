"""What the health controller remembers of a fleet from turn to turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotkeeper.domain.decision import NewVersion
from spotkeeper.domain.load.flow import HOUR, LogFlow
from spotkeeper.domain.load.request_queue import QueueMemory
from spotkeeper.domain.load.speeds import Speeds
from spotkeeper.domain.spread import Place, Share

# Silences are compared with those at the same time of the last two weeks, within an hour.
ALIKE, DAYS, SILENCES = timedelta(hours=1), 14, 40
WEEK, WEEKEND = 7, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The number of workers that were needed at an instant; `held` when logs were missing then."""

    at: datetime
    workers: int
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A time without requests: the first one after it did not have to wait."""

    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPremCount:
    """The number of workers on premises that ran at an instant."""

    at: datetime
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMemory:
    """The state of one fleet's health controller; an empty one is a fresh start.

    `suspects` maps an instance to when it was first seen silent or failing, `in_service_since`
    those in service to when that was first seen, `out_of_service` so those that left it and are in
    their group still, `replaced` lists the replacements of the last day, `silent` the instances
    that count as not serving. `starting` maps an instance whose workers never reported to when it
    was first seen, `start_ups` are the seconds that the last launches took to be in service.
    `service_mean_s` is the last known service time, for waking after the logs have gone, and
    `queue` the request queue of a fleet that has one, at `queue_url`.
    `onprem_suspects` maps a worker on premises to when it was first seen failing or slow.
    `flow` is what is known of the search logs. `expected` maps an instance in service to its share
    of the requests since its last log: of 40 requests among 8 workers, 5 each. `last_logs` maps it
    to when it last finished one. `unreported` maps instances in service whose workers never
    reported, although they would have, to when they were first seen: they count as launching.
    `unproven` are instances that never reported and may serve or not, including those that launch,
    and one that alone tries a new version of the launch template, at first.
    `counts` has the slot up to which each turn of the last hours counted requests, and how many.
    `full` is how many requests shared a worker when requests waited, where that was less than the
    `full_of` slots of the document then; 0 if it is not known.
    `failures` maps an instance to its failed requests since its last success, and while there are
    such, the others to their successes since, below 0; "" are the workers on premises.
    `onprem` has how many workers ran on premises lately, as far as no later count is less, and
    `onprem_at` is when one of them last finished a request.
    `worker_known_at` is the last turn at which an instance in service had logged a request before.
    With `size_limited`, the load needed more than was requested of the spot group; None before the
    load has sized the group. `silences` are the times without requests of the last two weeks.
    `speeds` are those of the fleet's instance types, `trial` compares two versions of the launch
    template. Of a fleet in several regions, `share` is this one's; at home, `places` are all,
    `divided` is the need that they cover together, and `elsewhere` how many instances serve in the
    others.
    """

    needed: tuple[Needed, ...] = ()
    size_limited: bool | None = None
    suspects: Mapping[str, datetime] = field(default_factory=dict)
    in_service_since: Mapping[str, datetime] = field(default_factory=dict)
    out_of_service: Mapping[str, datetime] = field(default_factory=dict)
    replaced: tuple[datetime, ...] = ()
    silent: tuple[str, ...] = ()
    starting: Mapping[str, datetime] = field(default_factory=dict)
    start_ups: tuple[int, ...] = ()
    service_mean_s: float = 0.0
    queue: QueueMemory | None = None
    queue_url: str | None = None
    onprem_suspects: Mapping[str, datetime] = field(default_factory=dict)
    flow: LogFlow = field(default_factory=LogFlow)
    expected: Mapping[str, float] = field(default_factory=dict)
    last_logs: Mapping[str, datetime] = field(default_factory=dict)
    unreported: Mapping[str, datetime] = field(default_factory=dict)
    unproven: tuple[str, ...] = ()
    counts: Mapping[int, int] = field(default_factory=dict)
    full: float = 0.0
    full_of: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    onprem: tuple[OnPremCount, ...] = ()
    onprem_at: datetime | None = None
    worker_known_at: datetime | None = None
    silences: tuple[Silence, ...] = ()
    speeds: Speeds = field(default_factory=Speeds)
    trial: NewVersion = field(default_factory=NewVersion)
    share: Share | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    divided: int | None = None
    elsewhere: int = 0

    @property
    def onprem_served(self) -> bool:
        """Whether workers on premises served within an hour of the newest log."""
        newest = self.flow.newest
        return bool(newest and self.onprem_at and newest - self.onprem_at <= HOUR)

    def was_quiet_before(self, now: datetime) -> bool:
        """Tell whether this time was quiet on this day of the week, or on some of the last seven.

        A quiet weekend does not excuse a silence on a working day.
        """

        def quiet(days: int) -> bool:
            at = now - timedelta(days=days)
            return any(one.since - ALIKE <= at <= one.until + ALIKE for one in self.silences)

        if quiet(WEEK) or quiet(DAYS):
            return True
        began = [one.since - ALIKE for one in self.silences]
        if len(began) < SILENCES:
            # Otherwise earlier silences may be forgotten.
            began.append(self.flow.watched_since or now)
        known = [days for days in range(1, WEEK + 1) if now - timedelta(days=days) >= min(began)]
        return WEEK * sum(map(quiet, known)) > WEEKEND * len(known)
