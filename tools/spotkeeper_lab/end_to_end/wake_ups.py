"""The queue of wake-ups: what a turn sends is delivered to the function after its delay.

A wake-up whose turn fails is not delivered again here: the minute's turn comes long before.
"""

import boto3
from moto.sqs.models import Message, sqs_backends

from spotkeeper_lab.local_aws.answers import ACCOUNT, REGION

NAME = "demo-WakeUpQueue"

type Event = dict[str, object]


def create_queue() -> str:
    """Create the queue; answers its URL."""
    return boto3.client("sqs").create_queue(QueueName=NAME)["QueueUrl"]


def take_new() -> list[tuple[int, Event]]:
    """Move new messages out of the queue: each one's delay in seconds, and the function's event."""
    queue = sqs_backends[ACCOUNT][REGION].queues[NAME]
    new, queue._messages = queue._messages, []
    return [(_delay_s(message), {"Records": [_record(message)]}) for message in new]


def _delay_s(message: Message) -> int:
    sent_ms = message.sent_timestamp or 0
    return round(max(0.0, message.delayed_until - sent_ms) / 1000.0)


def _record(message: Message) -> Event:
    return {
        "messageId": message.id,
        "receiptHandle": message.id,
        "body": message.body,
        "attributes": {
            "ApproximateReceiveCount": "1",
            "SentTimestamp": str(message.sent_timestamp),
            "SenderId": "AROAIENQZJOLO23YVJ4VO:demo",
            "ApproximateFirstReceiveTimestamp": str(message.sent_timestamp),
        },
        "messageAttributes": {},
        "md5OfBody": message.body_md5,
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{NAME}",
        "awsRegion": REGION,
    }
