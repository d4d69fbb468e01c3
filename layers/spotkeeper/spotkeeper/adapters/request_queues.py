"""The length of a request queue: SQS by its own attributes, Amazon MQ by CloudWatch.

SQS not by its CloudWatch metrics: those come minutes late, and an idle queue's later still.
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueAttributes.html
says that the counts may take a minute to settle after the last message was sent.
"""

from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote

from spotkeeper.adapters.errors import translated
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.ports import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import DimensionTypeDef, MetricDataQueryTypeDef
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.literals import QueueAttributeNameType

WAITING: "QueueAttributeNameType" = "ApproximateNumberOfMessages"
DELAYED: "QueueAttributeNameType" = "ApproximateNumberOfMessagesDelayed"
IN_FLIGHT: "QueueAttributeNameType" = "ApproximateNumberOfMessagesNotVisible"


class SqsRequestQueues:
    """The queues port on SQS."""

    def __init__(self, sqs: "Callable[[], SQSClient]") -> None:
        """Take what makes the client; it is made with the first fleet that has a queue."""
        self._sqs = sqs

    def length(self, url: str) -> QueueLength:
        """Count what waits, delayed or not, and what is in flight."""
        with translated(f"reading the request queue {url}"):
            answer = self._sqs().get_queue_attributes(
                QueueUrl=url, AttributeNames=[WAITING, DELAYED, IN_FLIGHT]
            )
        counts = answer["Attributes"]
        return QueueLength(
            waiting=int(counts[WAITING]) + int(counts[DELAYED]), in_flight=int(counts[IN_FLIGHT])
        )


AMAZON_MQ = "amazon-mq://"
# What is ready alone is wrong: a worker that serves holds its message unacknowledged.
# https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-logging-monitoring.html
READY = "MessageReadyCount"
UNACKNOWLEDGED = "MessageUnacknowledgedCount"
_FRESH = timedelta(minutes=5)


class AmazonMqRequestQueues:
    """The queues port on a RabbitMQ broker of Amazon MQ, which tells CloudWatch once a minute."""

    def __init__(
        self, cloudwatch: "Callable[[], CloudWatchClient]", now: "Callable[[], datetime]"
    ) -> None:
        """Take what makes the client, and the clock: figures are asked for by their time."""
        self._cloudwatch = cloudwatch
        self._now = now

    def length(self, url: str) -> QueueLength:
        """Read the newest figures of `amazon-mq://BROKER/VHOST/QUEUE`, whose vhost / is %2F.

        Raises Unavailable where there are none of the last five minutes.
        """
        now = self._now()
        with translated(f"reading the request queue {url}"):
            answer = self._cloudwatch().get_metric_data(
                MetricDataQueries=[
                    _query("ready", READY, url),
                    _query("unacked", UNACKNOWLEDGED, url),
                ],
                StartTime=now - _FRESH,
                EndTime=now,
                ScanBy="TimestampDescending",
            )
        results = answer["MetricDataResults"]
        newest = {found["Id"]: found["Values"][0] for found in results if found["Values"]}
        if newest.keys() != {"ready", "unacked"}:
            raise Unavailable(f"{url}: CloudWatch has no figures of the last five minutes")
        return QueueLength(waiting=int(newest["ready"]), in_flight=int(newest["unacked"]))


def _query(name: str, metric: str, url: str) -> "MetricDataQueryTypeDef":
    broker, vhost, queue = map(unquote, url.removeprefix(AMAZON_MQ).split("/"))
    named = {"Broker": broker, "VirtualHost": vhost, "Queue": queue}
    dimensions: list[DimensionTypeDef] = [
        {"Name": dimension, "Value": value} for dimension, value in named.items()
    ]
    return {
        "Id": name,
        "MetricStat": {
            "Metric": {"Namespace": "AWS/AmazonMQ", "MetricName": metric, "Dimensions": dimensions},
            "Period": 60,
            "Stat": "Maximum",
        },
    }


class EveryRequestQueue:
    """The queues port: SQS, or Amazon MQ where the URL says so."""

    def __init__(self, sqs: SqsRequestQueues, amazon_mq: AmazonMqRequestQueues) -> None:
        self._sqs = sqs
        self._amazon_mq = amazon_mq

    def length(self, url: str) -> QueueLength:
        """Count a queue's messages."""
        kind = self._amazon_mq if url.startswith(AMAZON_MQ) else self._sqs
        return kind.length(url)
