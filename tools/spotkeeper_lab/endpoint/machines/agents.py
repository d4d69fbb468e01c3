"""The agents on a lab's machines: they complete the hooks that hold their instance."""

from collections.abc import Collection

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.hooks import Held
from spotkeeper_lab.cloud.values import Result
from spotkeeper_lab.cloud.words import PENDING_WAIT, TERMINATING


def complete_hooks(cloud: Cloud, busy: Collection[str]) -> None:
    """Let go who can serve, or is done with its last request."""
    for held in cloud.held():
        if _is_done(held, cloud.now_s, busy):
            name = held.instance.instance_id
            cloud.complete(held.group, held.hook, name, Result.CONTINUE)


def _is_done(held: Held, now_s: float, busy: Collection[str]) -> bool:
    instance = held.instance
    match instance.state:
        case state if state == PENDING_WAIT:
            return instance.serves_s is not None and instance.serves_s <= now_s
        case state if state == TERMINATING:
            return instance.instance_id not in busy
        case _:
            return True
