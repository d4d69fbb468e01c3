"""The length of a request queue: SQS by its own attributes, Amazon MQ by CloudWatch, a broker of
one's own by the looks that an agent takes and sends with its search logs.

CloudWatch is not used for SQS: its metrics arrive minutes late, and later for an idle queue.
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueAttributes.html
says that the counts may take a minute to settle after the last message was sent.
"""

from datetime import datetime, timedelta
from itertools import batched
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.load.digest import sent_iso
from spotkeeper.domain.load.request_queue import RABBITMQ, REDIS, QueueLength, QueueLook
from spotkeeper.ports import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mypy_boto3_cloudwatch import CloudWatchClient
    from mypy_boto3_cloudwatch.type_defs import DimensionTypeDef, MetricDataQueryTypeDef
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef, WriteRequestTypeDef
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
        """Count what waits, what is in flight, and what is delayed."""
        with aws_errors(f"reading the request queue {url}"):
            answer = self._sqs().get_queue_attributes(
                QueueUrl=url, AttributeNames=[WAITING, DELAYED, IN_FLIGHT]
            )
        counts = answer["Attributes"]
        return QueueLength(
            waiting=int(counts[WAITING]),
            in_flight=int(counts[IN_FLIGHT]),
            delayed=int(counts[DELAYED]),
        )


AMAZON_MQ = "amazon-mq://"
# What is ready alone is wrong: a worker that serves holds its message unacknowledged.
# https://docs.aws.amazon.com/amazon-mq/latest/developer-guide/rabbitmq-logging-monitoring.html
READY = "MessageReadyCount"
UNACKNOWLEDGED = "MessageUnacknowledgedCount"
_FRESH = timedelta(minutes=5)
# Agents look every 15 s; what they saw is some seconds on its way.
_LOOK_FRESH = timedelta(minutes=2)
_LOOK_KEPT = timedelta(hours=2)
# DynamoDB's limit of items in one batch.
_ITEMS_A_CALL = 25


class AmazonMqRequestQueues:
    """The queues port on a RabbitMQ broker of Amazon MQ, which tells CloudWatch once a minute."""

    def __init__(
        self, cloudwatch: "Callable[[], CloudWatchClient]", now: "Callable[[], datetime]"
    ) -> None:
        """Take a maker of the client, and the clock: metrics are read by time."""
        self._cloudwatch = cloudwatch
        self._now = now

    def length(self, url: str) -> QueueLength:
        """Read the newest figures of `amazon-mq://BROKER/VHOST/QUEUE`, whose vhost / is %2F.

        Both are of one minute. Raises Unavailable where there are none of the last five minutes.
        """
        now = self._now()
        with aws_errors(f"reading the request queue {url}"):
            answer = self._cloudwatch().get_metric_data(
                MetricDataQueries=[
                    _query("ready", READY, url),
                    _query("unacked", UNACKNOWLEDGED, url),
                ],
                StartTime=now - _FRESH,
                EndTime=now,
                ScanBy="TimestampDescending",
            )
        figures = {
            found["Id"]: dict(zip(found["Timestamps"], found["Values"], strict=True))
            for found in answer["MetricDataResults"]
        }
        ready, unacked = figures.get("ready", {}), figures.get("unacked", {})
        # Of two minutes, a message that a worker took in between would be in neither.
        newest = max(ready.keys() & unacked.keys(), default=None)
        if newest is None:
            raise Unavailable(f"{url}: CloudWatch has no figures of the last five minutes")
        return QueueLength(waiting=int(ready[newest]), in_flight=int(unacked[newest]))


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


class AgentRequestQueues:
    """The queues port on brokers of one's own: the newest look that an agent took.

    pk queue#rabbitmq://VHOST/QUEUE  sk SEEN_ISO  ready, unacknowledged, expires_at <epoch s>
    or queue#redis://DATABASE/QUEUE
    """

    def __init__(
        self, dynamodb: "DynamoDBClient", table: str, now: "Callable[[], datetime]"
    ) -> None:
        """Take a typed client, the table's name and the clock; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table
        self._now = now

    def keep(self, looks: "Sequence[QueueLook]") -> None:
        """Keep looks; what DynamoDB leaves unprocessed is made up for by the next look."""
        items: list[WriteRequestTypeDef] = [{"PutRequest": {"Item": _item(look)}} for look in looks]
        with aws_errors("keeping looks at request queues"):
            for batch in batched(items, _ITEMS_A_CALL, strict=False):
                self._dynamodb.batch_write_item(RequestItems={self._table: list(batch)})

    def length(self, url: str) -> QueueLength:
        """Read the newest look; raises Unavailable where there is none of the last two minutes."""
        with aws_errors(f"reading the request queue {url}"):
            answer = self._dynamodb.query(
                TableName=self._table,
                KeyConditionExpression="pk = :pk",
                ExpressionAttributeValues={":pk": {"S": _pk(url)}},
                ScanIndexForward=False,
                Limit=1,
            )
        if not answer["Items"]:
            raise Unavailable(f"{url}: no agent has reported it (SPOTKEEPER_REQUEST_QUEUE)")
        [item] = answer["Items"]
        seen_at = datetime.fromisoformat(item["sk"]["S"])
        age_s = (self._now() - seen_at).total_seconds()
        if age_s > _LOOK_FRESH.total_seconds():
            raise Unavailable(
                f"{url}: no agent has reported its length for {age_s:.0f} s; is one running?"
            )
        return QueueLength(
            waiting=int(item["ready"]["N"]),
            in_flight=int(item["unacknowledged"]["N"]),
            seen_at=seen_at,
        )


def _item(look: QueueLook) -> dict[str, "AttributeValueTypeDef"]:
    seen_at = look.length.seen_at
    assert seen_at is not None
    return {
        "pk": {"S": _pk(look.url)},
        "sk": {"S": sent_iso(seen_at)},
        "ready": {"N": str(look.length.waiting)},
        "unacknowledged": {"N": str(look.length.in_flight)},
        "expires_at": {"N": str(int((seen_at + _LOOK_KEPT).timestamp()))},
    }


def _pk(url: str) -> str:
    """Name a queue in one way, however its vhost and its name are quoted."""
    scheme = REDIS if url.startswith(REDIS) else RABBITMQ
    vhost, queue = (quote(unquote(part), safe="") for part in url.removeprefix(scheme).split("/"))
    return f"queue#{scheme}{vhost}/{queue}"


class EveryRequestQueue:
    """The queues port: SQS, or Amazon MQ or an agent where the URL says so."""

    def __init__(
        self, sqs: SqsRequestQueues, amazon_mq: AmazonMqRequestQueues, agents: AgentRequestQueues
    ) -> None:
        self._sqs = sqs
        self._amazon_mq = amazon_mq
        self._agents = agents

    def length(self, url: str) -> QueueLength:
        """Count a queue's messages."""
        if url.startswith((RABBITMQ, REDIS)):
            return self._agents.length(url)
        kind = self._amazon_mq if url.startswith(AMAZON_MQ) else self._sqs
        return kind.length(url)
