"""Messages that have turns happen: wake-ups with a delay, and a minute's turns of some fleets.

And the search logs of a region, to the home of its fleets.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.border.events import Message
from spotkeeper.ports import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

# The longest delay that SQS knows, and the most messages of one call.
LONGEST_S = 900
MESSAGES_A_CALL = 10
# The most bytes of one call, and those of a message's attributes.
BYTES_A_CALL, OF_ATTRIBUTES = 262_144, 100


class TurnQueue:
    """The wake-up port on an SQS queue whose messages call the controller's function."""

    def __init__(self, sqs: "Callable[[], SQSClient]", url: str) -> None:
        """Take what makes a typed client, as most turns need none, and the queue's URL."""
        self._sqs = sqs
        self._url = url

    def at(self, fleet: str, at: datetime, now: datetime, woken: int) -> None:
        """Send a message that is delivered at an instant; fleet and time are for humans."""
        with aws_errors(f"asking for a turn of {fleet}"):
            self._sqs().send_message(
                QueueUrl=self._url,
                MessageBody=json.dumps(
                    {"fleet": fleet, "look_again_at": at.isoformat(), "woken": woken}
                ),
                DelaySeconds=delay_s(at, now),
            )

    def hand_on(self, shares: Sequence[Sequence[str]], now: datetime) -> None:
        """Send a message for each share of a minute's fleets, which become an invocation each."""
        bodies = [json.dumps({"fleets": names, "minute": now.isoformat()}) for names in shares]
        for some in batched(enumerate(bodies), MESSAGES_A_CALL, strict=False):
            entries: list[SendMessageBatchRequestEntryTypeDef] = [
                {"Id": str(number), "MessageBody": body} for number, body in some
            ]
            with aws_errors("handing fleets on to other invocations"):
                answer = self._sqs().send_message_batch(QueueUrl=self._url, Entries=entries)
            if failed := answer.get("Failed"):
                names = "; ".join(f"{f['Code']}: {f.get('Message', '')}" for f in failed)
                raise Unavailable(f"handing fleets on to other invocations: {names}")


class HomeQueue:
    """Forwards a region's messages to the queue of its fleets' home."""

    def __init__(self, sqs: "SQSClient", url: str, region: str) -> None:
        """Take a typed client of the home's region, its queue, and the region of this stack."""
        self._sqs, self._url, self._region = sqs, url, region

    def forward(self, messages: Sequence[Message]) -> Sequence[str]:
        """Send messages with when they were sent first; returns the ids of those not taken."""
        left = list[str]()
        for some in _batches(messages):
            entries: list[SendMessageBatchRequestEntryTypeDef] = [
                {
                    "Id": str(number),
                    "MessageBody": message.body,
                    "MessageAttributes": {
                        "region": {"DataType": "String", "StringValue": self._region},
                        "sent_ms": {
                            "DataType": "Number",
                            "StringValue": str(round(1000 * message.sent_at.timestamp())),
                        },
                    },
                }
                for number, message in enumerate(some)
            ]
            with aws_errors("forwarding search logs to the home"):
                answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
            left += [some[int(each["Id"])].message_id for each in answer.get("Failed", [])]
        return left


def _batches(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Cut messages into calls, each within the number and the size that SQS takes at once."""
    some, size = list[Message](), 0
    for message in messages:
        more = len(message.body.encode()) + OF_ATTRIBUTES
        if some and (len(some) == MESSAGES_A_CALL or size + more > BYTES_A_CALL):
            yield some
            some, size = [], 0
        some.append(message)
        size += more
    if some:
        yield some


def delay_s(at: datetime, now: datetime) -> int:
    """Round a delay up to whole seconds: a turn too early would have to ask again."""
    return min(LONGEST_S, max(0, math.ceil((at - now).total_seconds())))
