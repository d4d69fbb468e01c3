"""Wake-ups: delayed messages of a queue whose messages call check_availability."""

import json
import math
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import aws_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_sqs import SQSClient

# The longest delay that SQS knows.
LONGEST_S = 900


class WakeUpQueue:
    """The wake-up port on an SQS queue; each message is a turn of every fleet."""

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


def delay_s(at: datetime, now: datetime) -> int:
    """Round a delay up to whole seconds: a turn too early would have to ask again."""
    return min(LONGEST_S, max(0, math.ceil((at - now).total_seconds())))
