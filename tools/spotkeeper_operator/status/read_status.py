"""Reads what a status needs: stack, documents, groups, records, search logs, queues, alarms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.dynamodb.load_table import LoadDigestTable
from spotkeeper.adapters.ec2.auto_scaling import AutoScalingReader
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.request_queues import (
    AgentRequestQueues,
    AmazonMqRequestQueues,
    EveryRequestQueue,
    SqsRequestQueues,
)
from spotkeeper.ports import FleetError
from spotkeeper_operator.aws import CONFIG, Aws, chosen
from spotkeeper_operator.status.status import LOGS_READ_S, Looked, StackStatus, fleet_status

if TYPE_CHECKING:
    from spotkeeper.adapters.stacks import Stack
    from spotkeeper.domain.fleet import Fleet, Group
    from spotkeeper.domain.load.request_queue import QueueLength

# The last change is looked for in this many turns: about two and a half hours of both controllers.
RECORDS_READ = 300
# CloudWatch has the age of the oldest message a minute or two late.
AGE_KNOWN = timedelta(minutes=3)
# The alarms of template.yaml.
ALARMS = frozenset({
    "both-short", "checker-not-running", "configuration-failure", "doctor", "errors",
    "events-unsent", "failed-invocations", "nobody-serves", "oldest-message", "on-demand-too-long",
    "onprem-workers", "paused-too-long", "request-queue-unread", "search-log-dead-letters",
    "search-logs-lost", "shortfall-unfilled", "stale-search-logs", "throttles",
})  # fmt: skip
# Of checkers that have no turn at all there is no data.
NOT_HEARD_OF = ("checker-not-running", "INSUFFICIENT_DATA")


def read_status(aws: Aws, stack_name: str, fleet: str | None, now: datetime) -> StackStatus:
    """Read a stack's status; what could not be read is among its troubles.

    Raises `Gone` for an unknown stack and `OperatorError` for an unknown fleet.
    """
    stack = aws.stack(stack_name)
    documents = aws.documents(stack)
    fleets = chosen(documents, fleet)
    reading = Reading(aws, stack, now, [str(error) for error in documents.errors])
    statuses = tuple(fleet_status(each, looked, now) for each, looked in reading.fleets(fleets))
    return StackStatus(
        stack=stack.name,
        region=aws.region,
        at=now,
        fleets=statuses,
        ringing=reading.attempt("alarms are not known", reading.ringing) or (),
        troubles=tuple(reading.troubles),
    )


class Reading:
    """The reads of one status; each may fail alone, and `troubles` then says so."""

    def __init__(self, aws: Aws, stack: "Stack", now: datetime, troubles: list[str]) -> None:
        self._aws, self._stack, self._now, self.troubles = aws, stack, now, troubles
        self._load = LoadDigestTable(aws.dynamodb, stack.table)
        self._queues = EveryRequestQueue(
            SqsRequestQueues(lambda: aws.session.client("sqs", config=CONFIG)),
            AmazonMqRequestQueues(lambda: aws.cloudwatch, lambda: now),
            AgentRequestQueues(aws.dynamodb, stack.table, lambda: now),
        )

    def attempt[Found](self, label: str, read: Callable[[], Found]) -> Found | None:
        """Read, or note why that failed."""
        try:
            return read()
        except FleetError as error:
            self.troubles.append(f"{label}: {error}")
            return None

    def fleets(self, fleets: Sequence["Fleet"]) -> Iterator[tuple["Fleet", Looked]]:
        """Read fleets, their groups together."""
        names = [n for f in fleets for n in (f.spot_group, f.on_demand_group)]
        reader = AutoScalingReader(self._aws.autoscaling, self._aws.ec2)
        groups = self.attempt("groups are not known", lambda: reader.describe(names))
        for fleet in fleets:
            mine = (fleet.spot_group, fleet.on_demand_group)
            theirs = None if groups is None else {n: groups[n] for n in mine if n in groups}
            yield fleet, self._fleet(fleet, theirs)

    def _fleet(self, fleet: "Fleet", groups: "Mapping[str, Group] | None") -> Looked:
        name, stack = fleet.name, self._stack
        records = self.attempt(
            f"{name}: decisions are not known",
            lambda: self._aws.records(stack).newest(name, RECORDS_READ),
        )
        if records and records.unreadable:
            told = f"{records.unreadable} records of another release left out"
            self.troubles.append(f"{name}: {told}")
        since = self._now - timedelta(seconds=LOGS_READ_S)
        queue = self._queue(fleet)
        return Looked(
            groups=groups,
            records=records.records if records else None,
            digests=self.attempt(
                f"{name}: load is not known", lambda: self._load.since(name, since)
            ),
            queue=queue,
            oldest=None if isinstance(queue, str) or not queue.waiting else self._oldest(fleet),
            control=self.attempt(
                f"{name}: mode is not known",
                lambda: ControlTable(self._aws.dynamodb, stack.table).of(name),
            ),
        )

    def _queue(self, fleet: "Fleet") -> "QueueLength | str":
        """Count what waits; a queue that cannot be read is no trouble of the fleet's alone."""
        url = fleet.request_queue_url
        if url is None:
            return "no request queue is named"
        try:
            return self._queues.length(url)
        except FleetError as error:
            self.troubles.append(f"{fleet.name}: {error}")
            return str(error)

    def _oldest(self, fleet: "Fleet") -> tuple[datetime, float] | None:
        """Read the age of the oldest message of an SQS queue, as CloudWatch last measured it."""
        url = fleet.request_queue_url or ""
        if not url.startswith("https://"):
            return None
        with_age = self.attempt(f"{fleet.name}: oldest request", lambda: self._ages(url))
        return max(with_age, default=None) if with_age else None

    def _ages(self, url: str) -> list[tuple[datetime, float]]:
        with aws_errors("cloudwatch:GetMetricData"):
            answer = self._aws.cloudwatch.get_metric_data(
                MetricDataQueries=[
                    {
                        "Id": "oldest",
                        "MetricStat": {
                            "Metric": {
                                "Namespace": "AWS/SQS",
                                "MetricName": "ApproximateAgeOfOldestMessage",
                                "Dimensions": [
                                    {"Name": "QueueName", "Value": url.rpartition("/")[2]}
                                ],
                            },
                            "Period": 60,
                            "Stat": "Maximum",
                        },
                    }
                ],
                StartTime=self._now - AGE_KNOWN,
                EndTime=self._now,
            )
        (found,) = answer["MetricDataResults"]
        return list(zip(found["Timestamps"], found["Values"], strict=True))

    def ringing(self) -> tuple[str, ...]:
        """List the stack's alarms that ring.

        The name of another stack, and so those of its alarms, may begin as this one's does.
        """
        prefix = f"{self._stack.name}-"
        client = self._aws.cloudwatch
        pages = client.get_paginator("describe_alarms").paginate(AlarmNamePrefix=prefix)
        with aws_errors("cloudwatch:DescribeAlarms"):
            found = [alarm for page in pages for alarm in page["MetricAlarms"]]
        states = {one["AlarmName"].removeprefix(prefix): one["StateValue"] for one in found}
        return tuple(name for name, state in states.items() if _rings(name, state))


def _rings(name: str, state: str) -> bool:
    return name in ALARMS and (state == "ALARM" or (name, state) == NOT_HEARD_OF)
