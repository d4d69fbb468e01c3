"""Messages that have turns happen: wake-ups with a delay, and a minute's turns of some fleets."""

import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import batched
from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import SendMessageBatchRequestEntryTypeDef

# The longest delay that SQS knows, and the most messages of one call.
LONGEST_S = 900
MESSAGES_A_CALL = 10


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


def delay_s(at: datetime, now: datetime) -> int:
    """Round a delay up to whole seconds: a turn too early would have to ask again."""
    return min(LONGEST_S, max(0, math.ceil((at - now).total_seconds())))
