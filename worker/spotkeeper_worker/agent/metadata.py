"""The instance metadata service, version 2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
There is no fallback to version 1. A path that is not there answers None; whatever else goes wrong
is a `MetadataError`, and never means that the machine is to drain.
"""

from __future__ import annotations

import contextlib
import json
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Callable, NamedTuple

from spotkeeper_worker.agent import web
from spotkeeper_worker.states import TARGETS, Seen
from spotkeeper_worker.times import read_time

ENDPOINT = "http://169.254.169.254"
TOKEN_TTL_S = 21_600
TAG = "spotkeeper:draining"
ELSEWHERE = "on a machine that is not EC2's, set SPOTKEEPER_CLUSTER=onprem"
_LONGEST = 16_384
_LONGEST_TOKEN = 512
# The answer's date has whole seconds, and the answer takes some time.
_CLOCK_TOLERANCE_S = 2.0


class MetadataError(Exception):
    """The metadata service did not answer, or not as it should."""


class NoAnswer(MetadataError):
    """Nobody answered: the next question would only take as long."""


class Metadata:
    """A client that keeps its token and one connection."""

    def __init__(self, endpoint: str = ENDPOINT, timeout_s: float = 1.0) -> None:
        self._connection = web.connection_to(endpoint, timeout_s)
        self._token = ""
        self._renew_at = 0.0
        self.clock_offset_s = 0.0
        """How far the service's clock is ahead of this machine's; 0 within two seconds."""

    def get(self, path: str) -> str | None:
        """Read a path under /latest/; None where it is not there. Raises MetadataError."""
        for renewed in (False, True):
            if renewed or time.monotonic() >= self._renew_at:
                header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
                status, token = self._ask("PUT", "api/token", header)
                wrong = not token or "<" in token or len(token) > _LONGEST_TOKEN
                if status != HTTPStatus.OK or wrong:
                    raise MetadataError(f"api/token: answered {status} and no token")
                self._token = token.strip()
                self._renew_at = time.monotonic() + 0.8 * TOKEN_TTL_S
            status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status != HTTPStatus.UNAUTHORIZED:
                break
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise MetadataError(f"{path}: answered {status}")
        return body

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        try:
            self._connection.request(method, f"/latest/{path}", headers=headers)
            answer = self._connection.getresponse()
            body = answer.read(_LONGEST + 1)
        except web.ERRORS as error:
            self.close()
            raise NoAnswer(f"{path}: {type(error).__name__} {error}".rstrip()) from None
        if len(body) > _LONGEST:
            self.close()
            raise MetadataError(f"{path}: answered more than {_LONGEST} bytes")
        with contextlib.suppress(TypeError, ValueError):
            date = parsedate_to_datetime(answer.getheader("Date") or "")
            ahead = date.timestamp() - time.time()
            self.clock_offset_s = ahead if abs(ahead) > _CLOCK_TOLERANCE_S else 0.0
        return answer.status, body.decode("utf-8", "replace")

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        self._connection.close()


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html: what is not one
# of these does not end what the instance serves.
_ENDS_IT = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot",
    "system-maintenance")  # fmt: skip


def _target(body: str, _: float) -> str:
    TARGETS[body.strip()]
    return body.strip()


def _maintenance(body: str, offset_s: float) -> tuple[float, str] | None:
    # Canceled and completed events stay listed.
    events = [
        (parsedate_to_datetime(event["NotBefore"]).timestamp() - offset_s, event["Code"])
        for event in json.loads(body)
        if event["State"] == "active" and event["Code"] in _ENDS_IT
    ]
    return min(events, default=None)


# The notices by their fields: what each should be, and how it is read by this machine's clock.
_NOTICES: dict[str, tuple[str, str, Callable[[str, float], Any]]] = {
    "target": ("autoscaling/target-lifecycle-state", "a known state", _target),
    "taken_at": ("spot/instance-action", "an action with a time",
        lambda body, offset_s: read_time(json.loads(body)["time"]) - offset_s),
    "rebalance": ("events/recommendations/rebalance", "a recommendation",
        lambda body, _: bool(json.loads(body)["noticeTime"])),
    "tagged_until": (f"tags/instance/{TAG}", "an RFC 3339 time with a zone",
        lambda body, offset_s: read_time(body.strip()) - offset_s),
    "maintenance": ("events/maintenance/scheduled", "a list of events", _maintenance),
}  # fmt: skip


def look(
    metadata: Metadata, before: Seen, *, urgent_only: bool = False
) -> tuple[Seen, tuple[str, ...]]:
    """Read the notices, and say what could not be read; that stays as it was `before`.

    Maintenance is announced days before: `urgent_only` leaves it out.
    """
    notices, troubles = before, []
    for field, (path, should_be, read) in _NOTICES.items():
        if urgent_only and field == "maintenance":
            continue
        try:
            body = metadata.get(f"meta-data/{path}")
        except (MetadataError, ValueError) as error:
            # ValueError: a token that cannot be sent as a header.
            troubles.append(str(error))
            if isinstance(error, NoAnswer):
                break
            continue
        value = Seen._field_defaults[field]
        try:
            value = value if body is None else read(body, metadata.clock_offset_s)
            notices = notices._replace(**{field: value})
        except (KeyError, TypeError, ValueError):
            troubles.append(f"{path}: {(body or '')[:40]!r} is not {should_be}")
    return notices, tuple(troubles)


class Identity(NamedTuple):
    """Who the machine is; `group` is empty where metadata does not tell it."""

    instance_id: str
    region: str
    group: str = ""
    tags_on: bool = True


def identity(metadata: Metadata) -> Identity:
    """Read which instance this machine is. Raises MetadataError."""
    instance_id = metadata.get("meta-data/instance-id")
    region = metadata.get("meta-data/placement/region")
    if not instance_id or not instance_id.startswith("i-") or not region or "<" in region:
        raise MetadataError("meta-data/instance-id and placement/region: this is not EC2 metadata")
    tags_on = metadata.get("meta-data/tags/instance") is not None
    group = metadata.get("meta-data/tags/instance/aws:autoscaling:groupName") if tags_on else ""
    return Identity(instance_id.strip(), region.strip(), (group or "").strip(), tags_on)
