"""What is read of a stack's fleets: each read may fail alone, and the others go on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.decision_records import DecisionRecords, Records
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader, pages
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.request_queues import EveryRequestQueue
from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.fleet import Fleet, Group, Phase
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.permission import Control
from spotkeeper.ports import FleetError, Gone, TimedOut
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.rollout import Refresh, failed_launch, read_refresh
from spotkeeper_operator.text import age_from, spoken

LOGS_READ_S = 300
# When no log of this time was counted, the queues of search logs are read.
NEW_LOGS_S = 120
LOG_QUEUES = ("SearchLogQueueUrl", "SearchLogDeadLettersUrl")
# The last change is looked for in this many turns: about two and a half hours of both controllers.
RECORDS_READ = 300
# CloudWatch has the age of the oldest message a minute or two late.
AGE_KNOWN = timedelta(minutes=3)
# A turn of a time that is this much later than now: the clock of this machine is behind.
CLOCKS_DIFFER_S = 30.0
# The alarms of template.yaml.
ALARMS = frozenset({
    "both-short", "checker-not-running", "configuration-failure", "doctor", "errors",
    "events-unsent", "failed-invocations", "job-stuck", "new-version-worse", "nobody-serves",
    "oldest-message", "on-demand-too-long", "onprem-workers", "paused-too-long",
    "request-queue-unread", "search-log-dead-letters", "search-logs-lost", "shortfall-unfilled",
    "stale-search-logs", "throttles",
})  # fmt: skip
# Of checkers that have no turn at all there is no data.
NOT_HEARD_OF = ("checker-not-running", "INSUFFICIENT_DATA")
# The reason of an alarm that CloudWatch has not evaluated yet.
NEW = "Unchecked: Initial alarm creation"
# Of this many fleets, each group's instance refresh is read.
FEW = 3
# The services that each fleet is read from.
TABLE, CLOUDWATCH, EC2 = "the table", "CloudWatch", "EC2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was read of one fleet, None where a read failed; `records` are newest first.

    `queue` is the request queue's length, or why it is not known. `oldest` is the age of its
    oldest message and when it was measured. `refreshes` are the active ones, by group. Where no
    new log was counted, `uncounted` messages of them wait, None where their queue does not exist,
    and `dead` could not be counted.
    """

    groups: Mapping[str, Group] | None
    records: Sequence[DecisionRecord] | None
    digests: Sequence[LoadDigest] | None
    queue: QueueLength | str
    oldest: tuple[datetime, float] | None = None
    control: Control | None = field(default_factory=Control)
    refreshes: Mapping[str, Refresh] = field(default_factory=dict)
    uncounted: int | None = 0
    dead: int | None = 0

    @property
    def serving(self) -> frozenset[str]:
        """The instances that are in service and healthy."""
        members = (i for group in (self.groups or {}).values() for i in group.instances)
        return frozenset(
            i.instance_id for i in members if i.healthy and i.phase is Phase.IN_SERVICE
        )

    def log_age(self, health: DecisionRecord | None, now: datetime) -> float | None:
        """The age of the newest search log, by the table or what the last turn saw there."""
        logs = (w.last_finished for d in self.digests or () for w in d.workers)
        known = [age_from(at, now) for at in logs]
        if health and health.health and (age_s := health.health.search_log_age_s) is not None:
            known.append(max(0.0, age_s + (now - health.at).total_seconds()))
        return min(known, default=None)


class Reading:
    """The reads of one status; each may fail alone, and `troubles` then says so.

    A service that does not answer in time is not called again: each fleet would wait for it.
    """

    def __init__(self, aws: Aws, stack: str, fleet: str | None, now: datetime) -> None:
        """Look the stack and its fleets, or the one, up; raises `Gone` and `OperatorError`."""
        self._aws, self._now, self.stack = aws, now, aws.stack(stack)
        documents = aws.documents(self.stack)
        self.fleets = chosen(documents, fleet)
        self.troubles = [str(error) for error in documents.errors]
        self._hung: set[str] = set()

    def attempt[Found](self, of: str, label: str, read: Callable[[], Found]) -> Found | None:
        """Read something of a service, or note why that failed."""
        answer = self._read(of, label, read)
        return None if isinstance(answer, FleetError) else answer

    def _read[Found](self, of: str, label: str, read: Callable[[], Found]) -> Found | FleetError:
        try:
            if of in self._hung:
                raise FleetError(f"not read, because {of} did not answer before")
            return read()
        except FleetError as error:
            if isinstance(error, TimedOut):
                self._hung.add(of)
            self.troubles.append(f"{label}: {error}")
            return error

    def looked(self) -> Iterator[tuple[Fleet, Looked]]:
        """Read the fleets, their groups together."""
        aws, now, table = self._aws, self._now, self.stack.table
        names = [n for f in self.fleets for n in (f.spot_group, f.on_demand_group)]
        reader = AutoScalingReader(aws.autoscaling, aws.ec2)
        load, controls = LoadDigestTable(aws.dynamodb, table), ControlTable(aws.dynamodb, table)
        clients = partial(aws.client, "sqs"), lambda: aws.cloudwatch
        queues = EveryRequestQueue(*clients, aws.dynamodb, table, lambda: now)
        groups = self.attempt(
            "Auto Scaling", "groups are not known", lambda: reader.describe(names)
        )
        for fleet in self.fleets:
            name, url = fleet.name, fleet.request_queue_url
            mine = (fleet.spot_group, fleet.on_demand_group)
            queue: QueueLength | str = "no request queue is named"
            if url is not None:
                length = self._read("the request queue", name, partial(queues.length, url))
                queue = str(length) if isinstance(length, FleetError) else length
            records = self.records(
                name, partial(DecisionRecords.newest, fleet=name, limit=RECORDS_READ)
            )
            ahead_s = max(((r.at - now).total_seconds() for r in records or ()), default=0.0)
            if ahead_s > CLOCKS_DIFFER_S:
                behind = f"this machine's clock is at least {spoken(ahead_s)} behind"
                self.troubles.append(f"{name}: {behind}: the ages shown are too small")
            since = now - timedelta(seconds=LOGS_READ_S)
            digests = self.attempt(
                TABLE, f"{name}: load is not known", partial(load.since, name, since)
            )
            oldest = None
            # CloudWatch measures the age of the oldest message of an SQS queue.
            if isinstance(queue, QueueLength) and queue.waiting and str(url).startswith("https://"):
                label = f"{name}: oldest request"
                ages = self.attempt(CLOUDWATCH, label, partial(self._ages, str(url)))
                oldest = max(ages or (), default=None)
            uncounted: int | None = 0
            dead: int | None = 0
            lately = now - timedelta(seconds=NEW_LOGS_S)
            if not any(w.last_finished > lately for d in digests or () for w in d.workers):
                uncounted, dead = (self._messages(queues, of) for of in LOG_QUEUES)
            yield (
                fleet,
                Looked(
                    uncounted=uncounted,
                    dead=dead,
                    groups=None if groups is None else {n: groups[n] for n in mine if n in groups},
                    records=records,
                    digests=digests,
                    queue=queue,
                    oldest=oldest,
                    control=self.attempt(
                        TABLE, f"{name}: mode is not known", partial(controls.of, name)
                    ),
                    refreshes=dict(self._refreshes(groups or {}, mine)),
                ),
            )

    def _messages(self, queues: EveryRequestQueue, output: str) -> int | None:
        """Count a queue's messages: 0 where that is not known, None where there is no queue."""
        if not (url := self.stack.outputs.get(output)):
            return 0
        length = self._read("the request queue", output, partial(queues.length, url))
        if isinstance(length, QueueLength):
            return length.waiting + length.in_flight
        return None if isinstance(length, Gone) else 0

    def _refreshes(
        self, groups: Mapping[str, Group], mine: Sequence[str]
    ) -> Iterator[tuple[str, Refresh]]:
        """Read the active instance refresh of groups that one may have: some are on their way.

        Of few fleets, all are read: one whose launches fail moves nothing.
        """
        few = len(self.fleets) <= FEW
        for group in (groups[name] for name in mine if name in groups):
            moves = few or any(i.phase is not Phase.IN_SERVICE for i in group.instances)
            if moves or len({i.template for i in group.instances}) > 1:
                read = partial(read_refresh, self._aws.autoscaling, group.name)
                refresh = self.attempt(
                    "Auto Scaling", f"{group.name}: instance refresh is not known", read
                )
                if refresh and refresh.active:
                    lately = partial(
                        failed_launch, self._aws.autoscaling, group.name, refresh.started
                    )
                    label = f"{group.name}: its activities are not known"
                    failure = self.attempt("Auto Scaling", label, lately)
                    yield group.name, replace(refresh, failure=failure)

    def records(
        self, fleet: str, read: Callable[[DecisionRecords], Records]
    ) -> Sequence[DecisionRecord] | None:
        """Read decision records of a fleet; those of another release are a trouble."""
        table = self._aws.records(self.stack)
        records = self.attempt(TABLE, f"{fleet}: decisions are not known", lambda: read(table))
        if records and records.unreadable:
            unreadable = f"{records.unreadable} records of another release left out"
            self.troubles.append(f"{fleet}: {unreadable}")
        return records.records if records else None

    def _ages(self, url: str) -> list[tuple[datetime, float]]:
        metric: Any = {
            "Namespace": "AWS/SQS",
            "MetricName": "ApproximateAgeOfOldestMessage",
            "Dimensions": [{"Name": "QueueName", "Value": url.rpartition("/")[2]}],
        }
        stat: Any = {"Metric": metric, "Period": 60, "Stat": "Maximum"}
        with aws_errors("cloudwatch:GetMetricData"):
            answer = self._aws.cloudwatch.get_metric_data(
                MetricDataQueries=[{"Id": "oldest", "MetricStat": stat}],
                StartTime=self._now - AGE_KNOWN,
                EndTime=self._now,
            )
        return [
            measure
            for series in answer["MetricDataResults"]
            for measure in zip(series["Timestamps"], series["Values"], strict=True)
        ]

    def ringing(self) -> Mapping[str, tuple[str, ...]] | None:
        """Return the stack's alarms that ring, with the fleets; None where they could not be read.

        The name of another stack, and so those of its alarms, may begin as this one's does.
        """
        prefix = f"{self.stack.name}-"

        def read() -> dict[str, tuple[str, bool]]:
            of, named = ("describe_alarms", "MetricAlarms"), {"AlarmNamePrefix": prefix}
            with aws_errors("cloudwatch:DescribeAlarms"):
                alarms = [*pages(self._aws.cloudwatch, *of, **named)]
            return {
                one["AlarmName"].removeprefix(prefix): (
                    "" if one.get("StateReason", "").startswith(NEW) else one["StateValue"],
                    any(
                        "GROUP BY" in part.get("Expression", "") for part in one.get("Metrics", ())
                    ),
                )
                for one in alarms
            }

        states = self.attempt(CLOUDWATCH, "alarms are not known", read)
        if states is None:
            return None
        return {
            name: self._fleets_of(f"{prefix}{name}") if of_fleets else ()
            for name, (state, of_fleets) in states.items()
            if name in ALARMS and (state == "ALARM" or (name, state) == NOT_HEARD_OF)
        }

    def _fleets_of(self, alarm: str) -> tuple[str, ...]:
        """Name the fleets for which an alarm rings; none where that is not known."""
        client = self._aws.cloudwatch
        with suppress(FleetError), aws_errors("cloudwatch:DescribeAlarmContributors"):
            several = client.describe_alarm_contributors(AlarmName=alarm)["AlarmContributors"]
            return tuple([one["ContributorAttributes"].get("fleet", "") for one in several])
        return ()
