"""The length of a request queue: SQS by its own attributes, Amazon MQ by CloudWatch, a broker of
one's own by the looks that an agent takes and sends with its search logs.

    pk queue#rabbitmq://VHOST/QUEUE or queue#redis://DATABASE/QUEUE
    sk SEEN_ISO  ready, unacknowledged, expires_at <epoch s>

CloudWatch is not used for SQS: its metrics arrive minutes late, and later for an idle queue.
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueAttributes.html
says that the counts may take a minute to settle after the last message was sent.
"""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.adapters.table import LAST, Items, encoded, epoch, key
from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.domain.load.request_queue import RABBITMQ, REDIS, QueueLength
from spotkeeper.ports import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import MetricDataQueryTypeDef
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

WAITING: "QueueAttributeNameType" = "ApproximateNumberOfMessages"
DELAYED: "QueueAttributeNameType" = "ApproximateNumberOfMessagesDelayed"
IN_FLIGHT: "QueueAttributeNameType" = "ApproximateNumberOfMessagesNotVisible"
AMAZON_MQ = "amazon-mq://"
# What is ready alone is wrong: a worker that serves holds its message unacknowledged.
# https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-logging-monitoring.html
READY = "MessageReadyCount"
UNACKNOWLEDGED = "MessageUnacknowledgedCount"
_FRESH = timedelta(minutes=5)
# Agents look every 15 s; what they saw is some seconds on its way.
_LOOK_FRESH = timedelta(minutes=2)
_LOOK_KEPT = timedelta(hours=2)


class EveryRequestQueue(Items):
    """The queues port, which goes by the queue's URL, and the keeper of agents' looks."""

    def __init__(
        self,
        sqs: "Callable[[], SQSClient]",
        cloudwatch: "Callable[[], CloudWatchClient]",
        dynamodb: "DynamoDBClient",
        table: str,
        now: "Callable[[], datetime]",
    ) -> None:
        """Take what makes the clients that few fleets need, the table, and the clock."""
        super().__init__(dynamodb, table)
        self._sqs = sqs
        self._cloudwatch = cloudwatch
        self._now = now

    def length(self, url: str) -> QueueLength:
        """Count a queue's messages; raises `Unavailable` without a recent count."""
        if url.startswith((RABBITMQ, REDIS)):
            return self._looked_at(url)
        with aws_errors(f"reading the queue {url}"):
            return self._of_amazon_mq(url) if url.startswith(AMAZON_MQ) else self._of_sqs(url)

    def _of_sqs(self, url: str) -> QueueLength:
        answer = self._sqs().get_queue_attributes(
            QueueUrl=url, AttributeNames=[WAITING, DELAYED, IN_FLIGHT]
        )
        counts = {name: int(count) for name, count in answer["Attributes"].items()}
        return QueueLength(
            waiting=counts[WAITING], in_flight=counts[IN_FLIGHT], delayed=counts[DELAYED]
        )

    def _of_amazon_mq(self, url: str) -> QueueLength:
        """Read the newest figures of `amazon-mq://BROKER/VHOST/QUEUE`, whose vhost / is %2F.

        The broker tells CloudWatch once a minute. Both figures are of one minute.
        """
        now = self._now()
        answer = self._cloudwatch().get_metric_data(
            MetricDataQueries=[
                _metric("ready", READY, url), _metric("unacked", UNACKNOWLEDGED, url),
            ],
            StartTime=now - _FRESH,
            EndTime=now,
            ScanBy="TimestampDescending",
        )  # fmt: skip
        figures = {
            metric["Id"]: dict(zip(metric["Timestamps"], metric["Values"], strict=True))
            for metric in answer["MetricDataResults"]
        }
        ready, unacked = figures.get("ready", {}), figures.get("unacked", {})
        # Of two minutes, a message that a worker took in between would be in neither.
        newest = max(ready.keys() & unacked.keys(), default=None)
        if newest is None:
            raise Unavailable(f"{url}: CloudWatch has no figures of the last five minutes")
        return QueueLength(waiting=int(ready[newest]), in_flight=int(unacked[newest]))

    def _looked_at(self, url: str) -> QueueLength:
        """Read the newest length that an agent reported."""
        newest = {"ScanIndexForward": False, "PaginationConfig": {"MaxItems": 1, "PageSize": 1}}
        items = self._query(f"reading the queue {url}", _pk(url), "0", LAST, **newest)
        item = next(items, None)
        if item is None:
            raise Unavailable(f"{url}: no agent has reported it (SPOTKEEPER_REQUEST_QUEUE)")
        seen_at = datetime.fromisoformat(item["sk"]["S"])
        age = self._now() - seen_at
        if age > _LOOK_FRESH:
            why = f"no agent has reported its length for {age.total_seconds():.0f} s"
            raise Unavailable(f"{url}: {why}; is one running?")
        ready, unacknowledged = (int(item[name]["N"]) for name in ("ready", "unacknowledged"))
        return QueueLength(waiting=ready, in_flight=unacknowledged, seen_at=seen_at)

    def keep(self, looks: "Mapping[str, QueueLength]") -> None:
        """Keep looks; what DynamoDB leaves unprocessed is made up for by the next look."""
        items = []
        for url, length in looks.items():
            seen_at = length.seen_at
            assert seen_at is not None
            counts = {"ready": length.waiting, "unacknowledged": length.in_flight}
            expires_at = epoch(seen_at + _LOOK_KEPT)
            item = key(_pk(url), sent_iso(seen_at))
            items.append(item | encoded({**counts, "expires_at": expires_at}))
        puts = [{"PutRequest": {"Item": item}} for item in items]
        self._write_some("keeping looks at request queues", puts)


def _metric(name: str, metric: str, url: str) -> "MetricDataQueryTypeDef":
    parts = map(unquote, url.removeprefix(AMAZON_MQ).split("/"))
    named = zip(("Broker", "VirtualHost", "Queue"), parts, strict=True)
    return {
        "Id": name,
        "MetricStat": {
            "Metric": {
                "Namespace": "AWS/AmazonMQ",
                "MetricName": metric,
                "Dimensions": [{"Name": dimension, "Value": value} for dimension, value in named],
            },
            "Period": 60,
            "Stat": "Maximum",
        },
    }


def _pk(url: str) -> str:
    """Name a queue in one way, however its vhost and its name are quoted."""
    scheme = REDIS if url.startswith(REDIS) else RABBITMQ
    vhost, queue = (quote(unquote(part), safe="") for part in url.removeprefix(scheme).split("/"))
    return f"queue#{scheme}{vhost}/{queue}"
