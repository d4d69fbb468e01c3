"""A decision is what is wanted and why; an outcome is what AWS answered.

`reason`, `why` and `text` are for people alone: nothing reads them back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from spotkeeper.domain.failure import LaunchFailure
from spotkeeper.domain.permission import Permission
from spotkeeper.domain.spread import Place

FAILED = "failed"
"""The rule in the record of a turn that failed; `error` says why."""


class Controller(StrEnum):
    """The controllers; each has one writer per fleet, or per job."""

    AVAILABILITY = "availability"
    HEALTH = "health"
    JOBS = "jobs"


OF_FLEETS = (Controller.AVAILABILITY, Controller.HEALTH)


class Action(StrEnum):
    """What a turn does to the fleet's size; `STEP` is what it does for a job."""

    HOLD = "hold"
    BACKFILL = "backfill"
    RELEASE = "release"
    RESIZE = "resize"
    STEP = "step"


class Answer(StrEnum):
    """The outcome of an action: only what AWS accepted has happened.

    A `LOST` action may have had its effect although the answer was lost. A `SKIPPED` one was not
    requested: an earlier action that it needs was not done, or the fleet's time was spent. An
    `OBSERVED` one was not requested, because the turn may only observe.
    """

    DONE = "done"
    REFUSED = "refused"
    LOST = "lost"
    SKIPPED = "skipped"
    OBSERVED = "observed"


class RequestKind(StrEnum):
    """What a turn requests; `EARLIER` is a request whose kind an earlier release did not record."""

    LOOK_AGAIN = "look_again"
    BACKFILL = "backfill"
    CANCEL_BACKFILL = "cancel_backfill"
    RESTORE_SPOT = "restore_spot"
    RESIZE_SPOT = "resize_spot"
    END = "end"
    DRAIN = "drain"
    STOP_DRAINING = "stop_draining"
    REPLACE_EARLY = "replace_early"
    REPLACE_WORKER = "replace_worker"
    TERMINATE = "terminate"
    SUSPEND_AZ_REBALANCE = "suspend_az_rebalance"
    RESUME_LAUNCH = "resume_launch"
    CLAIM = "claim"
    CHANGE_GROUPS = "change_groups"
    READ_MEMORY = "read_memory"
    READ_HISTORY = "read_history"
    KEEP_HISTORY = "keep_history"
    JOB_STEP = "job_step"
    EARLIER = "earlier"


# Where the words of a kind are others than its name.
_WORDS = {
    RequestKind.CLAIM: "tag spotkeeper:owner",
    RequestKind.REPLACE_EARLY: "replace",
    RequestKind.REPLACE_WORKER: "replace",
    RequestKind.SUSPEND_AZ_REBALANCE: "suspend AZRebalance",
    RequestKind.RESUME_LAUNCH: "resume Launch",
    RequestKind.READ_MEMORY: "read what was kept",
    RequestKind.READ_HISTORY: "read the load history",
    RequestKind.KEEP_HISTORY: "keep the load history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: of a group, with its `desired` capacity and by how many, or of its instances.

    `at` is when another turn is to look, or when AWS takes the instances; `step` the kind of a
    job's step.
    """

    kind: RequestKind
    group: str = ""
    instances: tuple[str, ...] = ()
    desired: int | None = None
    count: int | None = None
    at: datetime | None = None
    step: str = ""
    why: str = ""

    def text(self, instances: str = "") -> str:
        """Say what is requested, with its instances or with other words for them."""
        words = _WORDS.get(self.kind, self.kind.replace("_", " "))
        if self.desired is not None:
            words = f"desired {self.desired}"
        if self.group and not self.instances:
            return f"{self.group}: {words}"
        if self.step or self.kind is RequestKind.EARLIER:
            return f"{self.step}: {self.why}" if self.step else self.why
        if self.at and not self.instances:
            return f"{words} at {self.at:%H:%M:%S}"
        words = f"{words} {instances or ', '.join(self.instances)}".strip()
        return f"{words}: {self.why}" if self.why else words


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What failed: the class of its error, empty where it has none, and its text."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.kind else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request and its answer; `error` is None unless it failed."""

    request: Request
    answer: Answer = Answer.DONE
    error: Failure | None = None

    @property
    def text(self) -> str:
        """What was requested, and why it failed."""
        return f"{self.request.text()}: {self.error}" if self.error else self.request.text()


class Alarm(StrEnum):
    """What a person is to look at; those of launches are named like their failure's class."""

    ADOPTING = "adopting"
    BOOTSTRAP = "bootstrap"
    BOTH_SHORT = "both-short"
    CONFIGURATION = "configuration"
    GROUP_LEFT = "group-left"
    GROUP_MISSING = "group-missing"
    JOB_STUCK = "job-stuck"
    NEW_VERSION_WORSE = "new-version-worse"
    NOBODY_SERVES = "nobody-serves"
    OBJECTIVE_MISSED = "objective-missed"
    ONPREM_WORKERS = "onprem-workers"
    PERMISSION = "permission"
    QUOTA = "quota"
    REGION_GONE = "region-gone"
    REPLACEMENT_BUDGET_SPENT = "replacement-budget-spent"
    REQUEST_QUEUE_UNREAD = "request-queue-unread"
    SEARCH_LOGS_MISSING = "search-logs-missing"
    SHARE_EXPIRED = "share-expired"
    STALE_SEARCH_LOGS = "stale-search-logs"
    TWO_HOMES = "two-homes"
    UNPROVEN_MARKS = "unproven-marks"


class Suspicion(StrEnum):
    """What is held against an instance, or against a worker on premises."""

    SILENT = "silent"
    TAKES_NO_REQUEST = "takes_no_request"
    FAILING = "failing"
    SLOW = "slow"
    NEVER_REPORTED = "never_reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One instance that may not work, since when it is a suspect, and when it was replaced.

    With `on_premises` it is a worker on premises, by its name.
    """

    instance_id: str
    kind: Suspicion
    since: datetime
    why: str
    on_premises: bool = False
    replaced_at: datetime | None = None

    @property
    def text(self) -> str:
        """The suspect and what is held against it."""
        return f"{'on-premises ' if self.on_premises else ''}{self.instance_id} {self.why}"


class Verdict(StrEnum):
    """Whether a new version of the launch template serves worse than the others."""

    UNKNOWN = "unknown"
    WORSE = "worse"
    NO_WORSE = "no worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The requests that instances of a launch template version served; seconds."""

    ok: int = 0
    failed: int = 0
    served_s: float = 0.0

    def __add__(self, more: "Served") -> "Served":
        served_s = self.served_s + more.served_s
        return Served(ok=self.ok + more.ok, failed=self.failed + more.failed, served_s=served_s)

    @property
    def requests(self) -> int:
        return self.ok + self.failed

    @property
    def mean_s(self) -> float:
        return self.served_s / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """The launch template version that began last, beside the others: their requests so far.

    Logs are those of the minutes in which it had instances, before `until`, counted from the Unix
    epoch. In these `minutes` it was `expected` to serve as many as each other instance. A version
    without instances was lost lately. An empty version: all instances have one. The `older` ones
    are those seen beside it.
    """

    version: str = ""
    since: datetime | None = None
    older: tuple[str, ...] = ()
    instances: int = 0
    new: Served = field(default_factory=Served)
    others: Served = field(default_factory=Served)
    expected: float = 0.0
    minutes: int = 0
    until: int = 0
    verdict: Verdict = Verdict.UNKNOWN

    @property
    def text(self) -> str:
        """What is known of it, in a sentence."""
        many = "1 instance" if self.instances == 1 else f"{self.instances} instances"
        text = f"version {self.version.rpartition('/')[2]} on {many}"
        if self.verdict is Verdict.UNKNOWN:
            text = f"whether {text} is worse is unknown"
        else:
            text += f" is {self.verdict}"
        new, others = self.new, self.others
        text += f": {new.failed} of {new.requests} requests failed, "
        text += f"{others.failed} of {others.requests} elsewhere"
        if 2 * new.requests < round(self.expected):
            text += f"; {self.expected:.0f} were expected of it"
        if new.requests and others.requests:
            text += f"; they took {new.mean_s:.2f} s, {others.mean_s:.2f} s elsewhere"
        return text


class Awaiting(StrEnum):
    """What a turn waits for."""

    LAUNCH = "launch"
    NEXT_ATTEMPT = "next_attempt"
    BACKFILL_DUE = "backfill_due"
    REQUESTS_DONE = "requests_done"
    SPOT_SETTLED = "spot_settled"
    SPOT_GROWN = "spot_grown"
    SEARCH_LOGS = "search_logs"
    REPLACEMENT = "replacement"
    HEALTH_TURN = "health_turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """What a turn waits for, and until when: None where nobody knows."""

    what: Awaiting
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailabilityFigures:
    """What an availability turn counted, and what AWS accepted of it; in instances.

    `interruptions` are new since the turn before. `on_demand_h` is for how many hours on-demand
    has run, None for less than one. `launch_failures` are the recent ones, `events_unsent` the
    announcements that the event bus does not have yet.
    """

    spot_desired: int = 0
    spot_serving: int = 0
    spot_launching: int = 0
    spot_at_risk: int = 0
    shortfall: int = 0
    shortfall_unfilled: int = 0
    on_demand_desired: int = 0
    on_demand_serving: int = 0
    on_demand_h: float | None = None
    backfilled: int = 0
    released: int = 0
    interruptions: int = 0
    early_replacements: int = 0
    launch_failures: int = 0
    unknown_failures: int = 0
    events_unsent: int = 0

    @property
    def spot_held(self) -> int:
        """The instances that the spot group has."""
        return self.spot_serving + self.spot_launching + self.spot_at_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFigures:
    """What a health turn computed of load and workers; times are in seconds.

    `offered_load` is in erlangs, `load_rate` in percent, `arrival_rate` per second. The requests
    that failed, and those that waited longer than promised, are per minute. `hours_followed` and
    `hours_least` are the worker-hours a day of the followed rule, and of the cheapest that kept its
    promise. None is what is not known, or what the fleet has not: a queue, an objective, a log.
    """

    offered_load: float | None = None
    load_rate: float | None = None
    workers_needed: int | None = None
    workers_live: int | None = None
    on_prem_workers_live: int | None = None
    workers_suspect: int = 0
    workers_replaced: int = 0
    on_prem_workers_silent: int = 0
    on_prem_workers_suspect: int = 0
    workers_missing: int = 0
    arrival_rate: float | None = None
    service_mean_s: float | None = None
    service_p95_s: float | None = None
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    requests_queued: int | None = None
    requests_in_flight: int | None = None
    search_log_age_s: float | None = None
    dispersion_10s: float | None = None
    dispersion_60s: float | None = None
    dispersion_300s: float | None = None
    requests_failed: float | None = None
    requests_late: float | None = None
    hours_followed: float | None = None
    hours_least: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """What one turn saw, its rule and reason, its requests and AWS's answers.

    The figures are those of the turn's controller; a turn that failed, or of a job, has none. Of a
    job's turn, `fleet` is the job. `awaited` is what a turn waits for. `unread` says what could not
    be read although it went on, and why. `error` is what stopped it; None for a turn that worked.
    `paused_since` is set while the fleet is paused. `nobody_serves` says why no worker seems to
    serve. `regions` are those among which the turn of a home divided the need. `new_version` is
    compared while instances have two versions of the launch template.
    """

    fleet: str
    controller: Controller
    at: datetime
    action: Action
    rule: str
    reason: str
    availability: AvailabilityFigures | None = None
    health: HealthFigures | None = None
    suspects: tuple[Suspect, ...] = ()
    nobody_serves: str = ""
    outcomes: tuple[Outcome, ...] = ()
    awaited: tuple[Awaited, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    failures: tuple[LaunchFailure, ...] = ()
    permission: Permission = Permission.ACT
    paused_since: datetime | None = None
    unread: tuple[str, ...] = ()
    error: Failure | None = None
    regions: Mapping[str, Place] = field(default_factory=dict)
    new_version: NewVersion | None = None

    @property
    def refused(self) -> tuple[Outcome, ...]:
        """The requests that failed."""
        return tuple([one for one in self.outcomes if one.error])

    @property
    def done(self) -> tuple[Request, ...]:
        """The requests that AWS accepted."""
        return tuple([one.request for one in self.outcomes if one.answer is Answer.DONE])

    @property
    def observed(self) -> tuple[Request, ...]:
        """The requests that were not sent, because the turn may only observe."""
        return tuple([one.request for one in self.outcomes if one.answer is Answer.OBSERVED])

    @property
    def failed(self) -> bool:
        """Whether the turn failed, or AWS refused it something."""
        return self.error is not None or self.rule == FAILED or bool(self.refused)

    @property
    def failure(self) -> str:
        """Say what failed: the whole turn, or what AWS refused it; empty where nothing did."""
        if self.rule == FAILED:
            return self.reason
        failed = [*[one.text for one in self.refused], *([str(self.error)] if self.error else [])]
        return "; ".join(failed)

    @property
    def changed(self) -> bool:
        """Whether the turn changed something; one that holds the size may replace instances."""
        return self.rule != FAILED and bool(self.done)

    @property
    def change(self) -> str:
        """Say what was changed: a reason names what was wanted, whether AWS accepted it or not."""
        if self.action is Action.HOLD or self.failed:
            return "; ".join(one.text() for one in self.done)
        return self.reason

    @property
    def stale(self) -> bool:
        """Whether search logs were missing that should have been there."""
        return not {Alarm.STALE_SEARCH_LOGS, Alarm.SEARCH_LOGS_MISSING}.isdisjoint(self.alarms)
