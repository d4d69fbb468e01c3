"""The length of a request queue, by SQS's own attributes.

Not by its CloudWatch metrics: those come minutes late, and an idle queue's later still.
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_GetQueueAttributes.html
says that the counts may take a minute to settle after the last message was sent.
"""

from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import translated
from spotkeeper.domain.load.request_queue import QueueLength

if TYPE_CHECKING:
    from collections.abc import Callable

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
